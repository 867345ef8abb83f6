"""How is a foreign snapshot file read? Safely, whatever is in it, and without a dictionary for each event."""
