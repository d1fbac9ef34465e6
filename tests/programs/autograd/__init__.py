"""Gradients, hooks, modes and operators that others have registered."""
