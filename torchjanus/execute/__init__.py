"""Executors of a lowered graph. They know neither traces nor guards nor Python programs."""
