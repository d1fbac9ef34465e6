"""Random numbers of torch, Python and NumPy, and what draws them."""
