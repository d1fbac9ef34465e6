"""Loops of a step over its trees, as one recursive call for each tree."""
