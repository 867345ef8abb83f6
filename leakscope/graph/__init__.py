"""The heap as plain data, and the questions asked of it."""
