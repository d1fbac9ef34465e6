"""Decides which operators a graph may hold: those of namespaces whose operators do only what their schema says.

Closed by default. An operator that a user has registered (a custom operator, a collective, a remote call) may do what
no schema says: count, communicate, keep its arguments.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from torchjanus.core.kinds import isinstance

__all__ = ["NAMESPACES", "REMEDY", "foreign_overrides", "is_operator", "operator_name", "unsupported_operator"]

# Torch's own operators, those of its decompositions, marks for profilers, and torchjanus' own. Torchvision's are pure
# functions in C++.
NAMESPACES = frozenset({"aten", "prims", "profiler", "torchjanus", "torchvision"})
_COMMUNICATING = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "symm_mem"})
# Torch's operators that do more than their schema says, or something else each time.
_ACTING = frozenset(
    """aten::_print aten::from_file aten::_from_blob aten::record_stream aten::_async_error aten::set_data
    aten::_cufft_clear_plan_cache aten::_cufft_set_plan_cache_max_size
    aten::_debug_has_internal_overlap aten::_test_serialization_subcmul aten::_propagate_xla_data
    aten::_backward""".split()
)
# Where torch itself puts functions of Python's in place of its own kernels, as ``torch.library`` names them. Those
# of its registry (from PyTorch 2.14 on) depend on the libraries that are installed, and are found there.
_TORCH_OVERRIDES = frozenset(
    """aten/_foreach_mm/CUDA aten/linalg_lu_solve.out/MPS
    aten/to_dense/FuncTorchDynamicLayerFrontMode aten/to_dense/PythonTLSSnapshot""".split()
)
_REGISTRY = "torch._native.registry"
REMEDY = "Call it before the step or after it; or write it as a function of torch's operations in Python."


def is_operator(func: Any) -> bool:
    """Whether it is an operator of torch's dispatcher, or a higher-order operator."""
    return isinstance(func, torch._ops.OperatorBase | torch._ops.OpOverloadPacket)


def operator_name(operator: Any) -> str:
    """Return the name, such as ``aten::mul``, without that of the overload."""
    if isinstance(operator, torch._ops.OpOverloadPacket):
        return str(operator._qualified_op_name)
    if isinstance(operator, torch._ops.OpOverload):
        return str(operator._schema.name)
    return f"{getattr(operator, 'namespace', 'higher_order')}::{operator.name()}"


def foreign_overrides() -> set[str]:
    """Return where others have put functions of Python's in place of kernels of torch's own operators, as
    ``torch.library`` names it: ``aten/mul.Tensor/CPU``. Those for tensors without data are left out."""
    found = {key for key in torch.library._impls if key.startswith("aten/") and not key.endswith("/Meta")}
    registry = vars(sys.modules.get(_REGISTRY, sys))
    # By operator and key in PyTorch 2.14; by namespace, operator and key in 2.15.
    registered = [*registry.get("_aten_override_libs", ()), *registry.get("_override_libs", ())]
    return found - _TORCH_OVERRIDES - {"/".join(("aten", *where[-2:])) for where in registered}


def unsupported_operator(operator: Any) -> tuple[str, str] | None:
    """Return why a graph must not hold an operator, and what to do instead; None if it may."""
    name = operator_name(operator)
    namespace = name.partition("::")[0]
    if not isinstance(operator, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return "it calls functions that are not watched.", "Write it with Python's own if, for and while."
    if namespace in _COMMUNICATING:
        why = "processes communicate there, and a graph makes no such calls."
        return why, "Speculate on what comes before it and on what comes after it."
    if namespace not in NAMESPACES:
        return "what its kernels do besides computing is known to nobody else.", REMEDY
    if name in _ACTING:
        return "it does more than to compute.", REMEDY
    return None
