"""How would the user write this reference?"""
