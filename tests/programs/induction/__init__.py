"""Numbers of loops: iteration indices, trip counts, recurrences, lists of numbers."""
