"""Runs loops, switches and batched recursive calls by ATen calls."""
