"""What is alive in this process, as plain data? Live objects are read here and left as they were."""
