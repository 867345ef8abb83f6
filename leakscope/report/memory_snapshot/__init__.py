"""What memory snapshots of the allocator show: by themselves, and as a section of a run's report."""
