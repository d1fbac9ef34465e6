"""Traces a tensor program on fake tensors under ``make_fx``, with autograd, ambient state and the user's code."""
