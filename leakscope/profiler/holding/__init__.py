"""`holders` and `draw`."""
