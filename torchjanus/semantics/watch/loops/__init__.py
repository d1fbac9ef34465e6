"""Watching loops, comprehensions and branches: iterations and the values that vary in them."""
