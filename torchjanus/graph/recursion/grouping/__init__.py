"""Which recursive calls of a step are made together."""
