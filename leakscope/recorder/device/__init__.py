"""The accelerator's counters, the recording of its allocator, and its failures."""
