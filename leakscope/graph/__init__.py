"""The heap as plain data, and its algorithms: reference paths, retained size, cycles, ownership."""
