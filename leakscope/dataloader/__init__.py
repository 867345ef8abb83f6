"""The memory of DataLoader worker processes."""
