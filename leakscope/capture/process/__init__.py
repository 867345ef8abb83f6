"""What is put into the process, and how does it end? Every patch, hook, thread and child."""
