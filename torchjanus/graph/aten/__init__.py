"""Passes and questions on ATen graphs: functional form, memory, strides, clean-up, checks."""
