"""Exceptions: raised, handled, their texts, errors of assertions and kernels."""
