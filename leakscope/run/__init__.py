"""A recorded run on disk: rows, writer, reader, status, and the merging of machines."""
