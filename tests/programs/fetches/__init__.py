"""Tensors that become Python values, and Python numbers that enter operations."""
