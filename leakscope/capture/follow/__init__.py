"""Which processes does the script start that train? Each records itself, as a rank of the same run."""
