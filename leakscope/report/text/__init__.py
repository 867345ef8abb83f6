"""What is read in a terminal."""
