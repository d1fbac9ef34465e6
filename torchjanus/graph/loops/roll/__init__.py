"""Rolls a tensor program up: repeated segments become one loop node."""
