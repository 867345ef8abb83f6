"""Which storages are held by the same thing, and does it grow?"""
