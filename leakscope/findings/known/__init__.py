"""What was known before: by a baseline, by a file of suppressions, or from another run."""
