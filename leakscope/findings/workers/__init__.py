"""What did the workers of data loaders take, and what of it is a leak, what could be done without?"""
