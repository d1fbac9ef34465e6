"""The meanings under which a rewritten program can run."""
