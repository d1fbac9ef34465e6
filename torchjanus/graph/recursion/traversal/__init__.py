"""Follows the recursive calls of one run on the host, and schedules them by levels."""
