"""Recursive functions: variants of their bodies, batched over all calls of a step (JANUS 4.2.1 and 5)."""
