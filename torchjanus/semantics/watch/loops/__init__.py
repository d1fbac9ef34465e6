"""Watch loops, comprehensions and ``if`` regions: iterations and the values that vary in them."""
