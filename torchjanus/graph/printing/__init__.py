"""Traces, tensor programs and graphs as text that a person can read. Knows nothing of files."""
