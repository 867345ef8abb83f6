"""What was recorded of a run, as plain data and on disk."""
