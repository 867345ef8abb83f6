"""When each storage of a watched step was made, last used and freed."""
