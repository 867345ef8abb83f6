"""Memory snapshots without a GPU: written by hand, and by a model of torch's allocator."""
