"""What stands in the files of one rank, line by line: one frozen dataclass for each kind of row."""
