"""Python's own protocols in Python, and the two semantics that need no more: imperative and virtualized."""
