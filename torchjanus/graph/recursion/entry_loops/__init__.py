"""Loops of a step over its trees, merged into one recursive call for each tree."""
