"""Which line of the user's is this? Frames, call sites and kept source text."""
