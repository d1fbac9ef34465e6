"""Which old gradients a call throws away before anybody could look at them.

A training step sets its gradients to None, first of all or once it has the loss; eager frees them there, and makes the
new ones after it. A graph that kept the old ones until its commit would need memory for both. But a call that fails is
made again by Python, which has to find what there was: gradients may go early only where nothing can fail before they
are thrown away (``risks.cannot_fail_within``). Where memory itself runs out they are gone a little sooner than eager
would have freed them. Knows nothing of who runs the graph.
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
    """The leaves whose gradients are set to None before anything looks at a gradient; True where other operations come
    before that. None in a program that may go another way: Python would find, on that way, that they are gone."""
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
    """Whether a gradient may be read or made by this, or code of the user's be run."""
    names = (getattr(func, "__name__", ""), getattr(getattr(func, "__self__", None), "__name__", ""))
    if isinstance(func, MARKS) or any(part in name for name in names for part in ("grad", "backward", "hook")):
        return True
    of = (getattr(func, "__module__", "") or "").partition(".")[0]
    return isinstance(func, types.FunctionType) and of not in ("torch", "torchjanus")
