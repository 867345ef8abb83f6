"""Fixes of leaks: edits that are tried in a copy and proved by a run."""
