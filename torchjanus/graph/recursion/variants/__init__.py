"""One variant of a recursive function's body: what it reads, computes, counts and returns."""
