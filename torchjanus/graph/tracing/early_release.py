"""Finds the old gradients that a call sets to None before anything reads a gradient, so that they can be freed early.

A training step sets its gradients to None at its start or after the loss; eager frees them there and allocates the new
ones later. A graph that kept the old ones until its commit would need memory for both. But a call that fails is made
again by Python, which needs the earlier state: gradients may be freed early only where nothing can fail before they are
set to None (``risks.cannot_fail_within``). Where memory itself runs out, they are gone slightly earlier than in eager.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from torchjanus.graph.ir.program import Program, Ref
from torchjanus.trace.user_code import MARKS

__all__ = ["SET_GRAD", "thrown_early"]

SET_GRAD = torch.Tensor.grad.__set__  # type: ignore[union-attr]


def thrown_early(program: Program) -> dict[Ref, bool]:
    """Return the leaves whose gradients become None before any is read; True if other operations come first.

    Empty for a program with assertions or cuts: after a failure Python would find the gradients gone."""
    found: dict[Ref, bool] = {}
    if program.assertions or program.cuts:
        return found
    later = False
    for node in program.nodes:
        if node.func == SET_GRAD and node.args[1] is None:
            found.setdefault(node.args[0], later)
        elif _may_look(node.func):
            break
        else:
            later = True
    return found


def _may_look(func: Any) -> bool:
    """Whether this may read or make a gradient, or run the user's code."""
    names = (getattr(func, "__name__", ""), getattr(getattr(func, "__self__", None), "__name__", ""))
    if isinstance(func, MARKS) or any(part in name for name in names for part in ("grad", "backward", "hook")):
        return True
    of = (getattr(func, "__module__", "") or "").partition(".")[0]
    return isinstance(func, types.FunctionType) and of not in ("torch", "torchjanus")
