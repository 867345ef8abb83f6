"""Sentences about the run as a whole: the verdict, what to do next, where the growth went."""
