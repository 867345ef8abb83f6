"""What is alive, and who refers to whom? The heap of the live process as plain data."""
