"""The host traversal: follows the recursive calls of one run and schedules them by level."""
