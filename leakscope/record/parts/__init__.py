"""Machines without a folder that all of them see: which folders are parts of one run, and what are they together?"""
