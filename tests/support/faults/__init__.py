"""Scripts that come by all that leakscope puts into a process, with errors of its own planted there."""
