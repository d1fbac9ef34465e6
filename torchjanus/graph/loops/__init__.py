"""Loops of a step: analysis of their iterations, rewrites that make iterations alike, and rolling into loop nodes.

Whether a loop is rolled is decided in two places: ``analysis.candidates`` for loops of a trace, ``roll.roll`` for calls
that repeat in a tensor program.
"""
