"""Does the cut free what was said? It is made in a forked copy."""
