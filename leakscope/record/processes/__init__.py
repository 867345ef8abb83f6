"""Processes that the script has started: which of them is which rank of the run?"""
