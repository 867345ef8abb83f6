"""What do the recorded operations say? Works dropped, contexts left open, ranks that wait for each other."""
