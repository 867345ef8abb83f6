"""Whose is it: the user's, or a library's?"""
