"""Calls that the host makes: files, NumPy, callbacks, statements that Python runs before the graph."""
