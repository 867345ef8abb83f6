"""What has the process beside tensors, as counters tell: descriptors, shared memory, compiled code, pinned memory?"""
