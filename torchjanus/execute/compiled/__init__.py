"""Graphs and regions compiled by Inductor: the processes that compile, the store, and the code that loads artifacts."""
