"""The commands for a job that runs: `leakscope look` and `status`."""
