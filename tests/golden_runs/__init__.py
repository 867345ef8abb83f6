"""Recorded runs, and what is found in each."""
