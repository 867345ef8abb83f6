"""Frames, call sites and kept source text of the user."""
