"""Somebody asks a job that runs: by a file in the run's folder, or by a signal."""
