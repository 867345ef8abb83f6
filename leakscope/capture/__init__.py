"""The room that touches live objects: it turns them into plain data at once and leaves the process as it was."""
