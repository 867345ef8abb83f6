"""The live Python and autograd heap, read into a graph without changing it."""
