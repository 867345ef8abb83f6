"""The leak corpus: small leaks, each with a clean variant that must be left in peace."""
