"""What has been recorded: told again, put together, set against another run."""
