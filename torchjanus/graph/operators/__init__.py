"""Operators of torchjanus's own, and functions that stand in for those of torch that cannot be traced."""
