"""The identity corpus: CPython's own tests, run as they are and rewritten, must come out alike."""
