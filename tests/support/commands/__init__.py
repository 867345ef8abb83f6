"""The command line as tests run it: copies of one process that has imported it, and runs that are shared."""
