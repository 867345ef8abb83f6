"""What do the workers of a DataLoader take? Read from the kernel by their parent, and in a worker by a light walk."""
