"""Callbacks for Lightning, transformers and accelerate, and for training loops in classes.

Each module is imported by whoever uses its framework, and needs that one installed.
"""
