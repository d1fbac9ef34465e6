"""Functional form: a graph with in-place operations becomes one that returns new contents."""
