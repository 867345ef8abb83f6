"""What does CPython itself show of the heap?"""
