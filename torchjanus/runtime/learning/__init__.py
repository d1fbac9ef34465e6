"""Learns from the watched runs: when to watch, and when graphs are made, weakened or dropped."""
