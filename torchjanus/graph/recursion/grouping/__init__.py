"""Call grouping: which recursive calls of a step are made together."""
