"""The record of one watched run: its events, its heap reads and writes, and the state of its variables."""
