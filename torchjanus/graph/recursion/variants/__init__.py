"""A variant: one execution path through a recursive function's body."""
