"""Ranks by the hundred: how is each read, asked what is to be known of it, and let go of?"""
