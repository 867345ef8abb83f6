"""A run that goes on: who records it, what is asked of it, what it has answered, and how far it is."""
