"""Python's native functions, methods and containers in a watched run."""
