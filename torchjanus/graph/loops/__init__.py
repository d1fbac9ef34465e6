"""Loops of a step: analysis of their iterations, rewrites that make iterations alike, and rolling into loop nodes."""
