"""Runs made in memory for tests."""
