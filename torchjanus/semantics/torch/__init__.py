"""Calls of torch in a watched run: operators, gradients, sizes, selections, the user's code that autograd calls."""
