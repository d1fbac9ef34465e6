"""Rolling: repeated segments of a tensor program become one loop node."""
