"""The tensor program of one path, the numbers and sizes in it, and the result of lowering it.

Knows nothing of loops and calls.
"""
