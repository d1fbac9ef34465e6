"""Passes and analyses on ATen graphs: memory, strides, clean-up, checks."""
