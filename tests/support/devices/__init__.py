"""Devices where there is none: objects that answer as torch does, and a backend that torch loads."""
