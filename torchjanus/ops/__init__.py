"""What is known of operators: of ATen's, of torch's functions by name, and of Python's on numbers.

One table for each kind. What PyTorch's schemas and tags tell is taken from there; only the rest is written by hand.
Closed by default: of an operator that no table names nothing is assumed.
"""
