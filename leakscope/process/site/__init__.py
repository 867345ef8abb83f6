"""What every Python process of a followed tree finds first on its path; nothing here may import what takes time."""
