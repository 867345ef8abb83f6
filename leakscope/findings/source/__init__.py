"""Which lines of the user's source put something there, and which edit would mend it?"""
