"""Graphs and regions compiled by Inductor: the processes that compile, the store, what is loaded."""
