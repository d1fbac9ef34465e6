"""What the iterations of a traced loop did: alignment, recurrences, termination, effects."""
