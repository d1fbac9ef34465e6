"""Recursive functions of a program: their discovery, and what their calls record and return."""
