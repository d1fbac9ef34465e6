"""Python's own protocols, spelled out, and the meanings that need no more: imperative and virtualized."""
