"""The page: one file that opens offline, with its drawings and plots inside."""
