"""Runs that are damaged on purpose: a small one with every kind of file, what is done to it, and who reads it."""
