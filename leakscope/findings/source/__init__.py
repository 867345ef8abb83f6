"""Reads the user's source: the lines that add to a leak, and the edit that stops it."""
