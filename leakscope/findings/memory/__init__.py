"""What do the allocator's and the host's counters say beside the heap?"""
