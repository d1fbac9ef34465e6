"""The tensor program of one path, the numbers and sizes in it, and what lowering gives.

Knows nothing of loops and calls.
"""
