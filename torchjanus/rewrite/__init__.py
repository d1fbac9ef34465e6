"""Python to Python: rewrites source so that every construct that matters calls a hook. Knows no torch."""
