"""Analysis of the iterations of a recorded loop: alignment, recurrences, termination, effects."""
