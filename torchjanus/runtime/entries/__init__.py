"""Graphs of a function with their executors, and trees of graphs whose paths differ by a tensor's decision."""
