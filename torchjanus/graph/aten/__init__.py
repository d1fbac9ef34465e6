"""Passes and analyses on ATen graphs: functional form, memory, strides, clean-up, checks."""
