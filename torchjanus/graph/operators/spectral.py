"""Traces functions of singular values and eigenvalues so that they compute what eager computes.

Where nothing is differentiated, ATen computes these values without the vectors. For fake tensors it computes the
vectors, too: ``_may_require_fw_or_bw_grad`` assumes that each tensor subclass may be differentiated. LAPACK's routines
for the two differ in their last bits.

The backward passes of complex eigenvectors raise where the loss depends on the phase of a vector. They do not look at
that on fake tensors, so they are refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchjanus.core.errors import refused

__all__ = ["as_eager"]

_NAMES = frozenset("svdvals eigvalsh eigvals cond matrix_rank matrix_norm norm nuclear_norm".split())
_NAMES |= {f"linalg_{name}" for name in _NAMES}
_VECTORS = frozenset({"eig", "linalg_eig", "eigh", "linalg_eigh"})
_aten = torch.ops.aten


class _ValuesOnly(TorchDispatchMode):
    """Computes decompositions without vectors. Their callers use the values only."""

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _aten._linalg_svd.default:
            return func(args[0], False, False, **kwargs)
        if func is _aten._linalg_eigh.default:
            return func(args[0], *(args[1:2] or ("L",)), False)
        if func is _aten.linalg_eig.default:
            values = _aten._linalg_eigvals.default(args[0])
            return values, values
        return func(*args, **kwargs)


def as_eager(name: str, tensors: Callable[[], Iterable[torch.Tensor]]) -> contextlib.AbstractContextManager[Any]:
    """Return the mode in which to trace a function of this name on these tensors. Raises Refused."""
    if name in _VECTORS and torch.is_grad_enabled():
        if any(one.requires_grad and (one.is_complex() or name.endswith("eig")) for one in tensors()):
            what = f"{name} is differentiated, and its vectors are complex"
            why = "its backward pass raises if the loss depends on their phase, which a graph does not look at."
            raise refused("trace-failed", what, why, "Do it outside of the step.")
    if name not in _NAMES or (torch.is_grad_enabled() and any(one.requires_grad for one in tensors())):
        return contextlib.nullcontext()
    return _ValuesOnly()  # type: ignore[no-untyped-call]
