"""Sentences about the workers of data loaders."""
