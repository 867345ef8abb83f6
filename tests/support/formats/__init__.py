"""What the readers of each format refuse, written down from their schemas and documents."""
