"""Decides which operations may run before it is known whether they are needed.

Such an operation is cheap, has no effect, raises for no values, and its derivative does not multiply by a value: zero
times a non-finite value is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from torchjanus.core.trees import map_leaves
from torchjanus.graph.ir.program import Node, Ref
from torchjanus.graph.tracing.ambient import Ambient
from torchjanus.ops.aten import operator_of

__all__ = ["SpeculationAnalysis", "ValueMetadata", "concrete", "looked"]

LARGEST = 1 << 16  # elements that one speculative operation may compute


@dataclass(slots=True)
class ValueMetadata:
    """Size, stride, dtype and device of a value."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def concrete(kinds: Sequence[tuple[Any, ...]]) -> tuple[tuple[Any, ...], ...] | None:
    """Return the kinds with the current values of dynamic sizes; None where these are not known."""
    found = tuple((tuple(map(_hint, size)), tuple(map(_hint, stride)), *rest) for size, stride, *rest in kinds)
    return None if any(None in (*size, *stride) for size, stride, *_ in found) else found


@dataclass(slots=True)
class SpeculationAnalysis:
    """The values of a body, and for each of its operations whether it may run speculatively."""

    known: dict[int, ValueMetadata]
    cheap: list[bool]


_Met = tuple[Any, tuple[Any, ...], dict[str, Any], Any]  # operator, args, kwargs, result


class _Operations(TorchDispatchMode):
    """Records the ATen operations that run."""

    def __init__(self, met: list[_Met]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.met = met

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.met.append((func, args, kwargs or {}, made))
        return made


def looked(nodes: Sequence[Node], outputs: Sequence[Ref], kinds: Sequence[tuple[Any, ...]]) -> SpeculationAnalysis:
    """Analyse a program on fake tensors of these kinds, whose sizes are known."""
    values: dict[int, torch.Tensor] = {}
    used = {leaf for node in nodes for leaf in node.inputs}
    used.update(outputs)
    found = SpeculationAnalysis({}, [])

    def leaf(value: Any) -> Any:
        return values[value.index] if isinstance(value, Ref) else value

    def note(index: int, tensor: torch.Tensor) -> None:
        found.known[index] = ValueMetadata(tuple(tensor.size()), tuple(tensor.stride()), tensor.dtype, tensor.device)

    with (
        _disable_current_modes(),
        Ambient() as ambient,
        torch.enable_grad(),
        FakeTensorMode(allow_non_fake_inputs=True),
    ):
        for place, (size, stride, dtype, device, needs) in enumerate(kinds):
            made = torch.empty_strided(size, stride, dtype=dtype, device=device)
            values[place] = made.requires_grad_(bool(needs))
            note(place, made)
        for node in nodes:
            ambient.switch(node.modes)
            met: list[_Met] = []
            with _Operations(met):
                result = node.func(*map_leaves(node.args, leaf), **map_leaves(node.kwargs, leaf))
            parts = [part for part in pytree.tree_leaves(result) if isinstance(part, torch.Tensor)]
            changed = any(ref.index in values for ref in node.outs)
            for ref, tensor in zip(node.outs, parts, strict=True):
                values[ref.index] = tensor
                note(ref.index, tensor)
            graded = any(part.requires_grad for ref, part in zip(node.outs, parts, strict=True) if ref in used)
            found.cheap.append(not changed and all(_is_cheap(*one, graded) for one in met))
    return found


def _hint(size: Any) -> Any:
    if isinstance(size, int):
        return size
    return int(size.node.hint) if size.node.has_hint() else None


def _is_cheap(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any, graded: bool) -> bool:
    if func.namespace == "prim":
        return True  # queries such as the device of a tensor
    known = operator_of(func)
    if known.writes or known.draws or not known.aten:
        return False
    parts = [part for part in pytree.tree_leaves(made) if isinstance(part, torch.Tensor)]
    if known.raises_on_integers and not all(part.is_floating_point() for part in parts):
        return False
    if known.name in ("max", "min", "amax", "amin", "argmax", "argmin") and any(
        isinstance(arg, torch.Tensor) and arg.numel() == 0 for arg in args
    ):
        return False
    if not (known.pointwise or known.view or known.cheap):
        return False
    if not known.view and sum(part.numel() for part in parts) > LARGEST:
        return False
    if not graded or known.view:
        return True
    if known.linear or known.rectifies:
        return not _has_factor((args, kwargs))
    if not known.scales or not isinstance(args[0], torch.Tensor) or not _is_number(args[1]):
        return False
    return math.isfinite(args[1]) and (known.name == "mul" or args[1] != 0)


def _has_factor(args: Any) -> bool:
    """Whether a numeric argument is not finite."""
    return any(isinstance(arg, float) and not math.isfinite(arg) for arg in pytree.tree_leaves(args))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)
