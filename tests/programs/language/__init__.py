"""Constructs of Python: statements, calls, imports, names of arguments."""
