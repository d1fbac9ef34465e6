"""Rewrites traces with one operation in the place of each iteration in which tensors decide."""
