"""Traces a tensor program on fake tensors under ``make_fx``, with autograd, the ambient state and the user's own
code.
"""
