"""Iterations and branches in which tensors decide: the arms, their effects, and one program for all of them."""
