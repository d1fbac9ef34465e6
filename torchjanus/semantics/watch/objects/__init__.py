"""Watching values, attributes, subscripts, classes and errors."""
