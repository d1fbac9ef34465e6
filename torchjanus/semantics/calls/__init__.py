"""Recursive functions of a program: which they are, and what their calls record and return."""
