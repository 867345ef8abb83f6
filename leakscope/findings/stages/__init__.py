"""The stages of judging, each from what is known to what is known then."""
