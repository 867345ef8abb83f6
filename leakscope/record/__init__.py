"""What was recorded of a run? Plain data, read from its folder and written there."""
