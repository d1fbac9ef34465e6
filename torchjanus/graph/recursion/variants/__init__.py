"""A variant: one execution path through a recursive function's body, with what it reads, computes, counts and
returns."""
