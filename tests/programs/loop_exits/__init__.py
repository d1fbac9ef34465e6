"""Loops that end by a condition: while loops, loops that a tensor terminates, loops that are left early."""
