"""Which leakscope is this?"""

__version__ = "0.1.0"
