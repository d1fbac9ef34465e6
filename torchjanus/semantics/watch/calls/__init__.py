"""Watching recursive calls each for itself."""
