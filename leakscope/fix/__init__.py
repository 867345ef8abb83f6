"""Fixes of leaks: edits that are tried in a copy and proved by a repetition of the run."""

from leakscope.fix.search import MINUTES, TRIES, FoundFixes, find_fixes

__all__ = ["MINUTES", "TRIES", "FoundFixes", "find_fixes"]
