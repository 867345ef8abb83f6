"""Callbacks for Lightning, transformers and accelerate, and for training loops in classes.

Import the module of a framework directly; it requires that framework.
"""
