"""The version of leakscope."""

__version__ = "0.1.0"
