"""What leakscope puts into the user's process: patches, hooks, threads, and the guard around them."""
