"""PyTorch's own databases of operators, modules and optimizers, as programs: each speculated, and compared with eager.

Nobody here has written them, so they show what our own programs cannot.
``python -m benchmarks.robustness.torch_databases``.
"""
