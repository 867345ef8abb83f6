"""Which references must go so that the memory does?"""
