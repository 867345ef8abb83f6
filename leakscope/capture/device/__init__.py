"""What does the accelerator count? Its counters, its allocator's recording, its failures."""
