"""Output in notebooks: HTML without scripts."""
