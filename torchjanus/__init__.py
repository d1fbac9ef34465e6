"""A speculative just-in-time compiler for imperative PyTorch programs."""

__version__ = "0.1.0"
