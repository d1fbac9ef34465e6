"""Python numbers that are used as sizes or as bounds of slices: ``x[i : i + 28]``, ``zeros(n)``, ``x.view(n, -1)``.

Where such a number changes from call to call it is a symbol of the graph, like a changing dimension of an input. A
tensor without elements carries it into the graph: it has as many rows and two more, since a symbol is never 0 or 1.
Knows nothing of how a graph is made.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.graph.ir.program import Formula, Symbol
from torchjanus.ops.calls import SHAPING
from torchjanus.trace.actions import Op
from torchjanus.trace.facts import HeapRead
from torchjanus.trace.operands import expressions_in
from torchjanus.trace.values import Read, leaves

__all__ = ["carried", "carrier_of", "carries", "is_shaping", "number_of", "sized", "wanted"]

_MORE = 2
_MOST = 1 << 40

_SUBSCRIPTS = frozenset({"__getitem__", "__setitem__"})


@lru_cache(4096)
def sized(number: Any) -> torch.Tensor:
    """Return the tensor that carries a number into a graph; without rows where the number cannot be carried."""
    fits = type(number) is int and 0 <= number < _MOST
    return torch.empty((number + _MORE if fits else 0, 0), dtype=torch.bool)


sized.size_text = f"({{}} + {_MORE})"  # type: ignore[attr-defined]


def carrier_of(number: AccessPath) -> AccessPath:
    """Return the access path at which the host finds the tensor that carries this number."""
    return number.then(Step.OF, sized)


def carried(number: HeapRead) -> HeapRead:
    """Return the read of the carrier tensor that corresponds to the read of a number in a run."""
    value = sized(number.value)
    detail = ("Tensor", "bool", tuple(value.shape), value.stride(), "cpu", False, True)
    return HeapRead(carrier_of(number.access_path), value, "tensor", detail, place=number.place)


def carries(access_path: AccessPath) -> bool:
    """Whether the access path is that of a carrier tensor."""
    return access_path.step is Step.OF and access_path.key is sized


def number_of(symbol: int) -> Formula:
    """Return the formula of the number that a symbol carries."""
    return Formula(operator.sub, (Symbol(symbol), _MORE))


def shaping(op: Op) -> Iterator[Any]:
    """Yield the arguments of a call that are sizes or positions."""
    name = getattr(op.func, "__name__", "")
    if name in _SUBSCRIPTS and len(op.args) > 1:
        key = op.args[1]
        parts = key if isinstance(key, tuple) else (key,)
        yield from (part for part in parts if isinstance(part, slice))  # a single index is a lookup, not a size
    elif name in SHAPING:
        yield from (op.args, op.kwargs)


def is_shaping(op: Op) -> bool:
    """Whether some arguments of a call are sizes or positions."""
    return any(True for _ in shaping(op))


def wanted(ops: Iterable[Op]) -> dict[AccessPath, None]:
    """Return the numbers read on the heap, or given by extern calls, that are used as sizes or positions."""
    found: dict[AccessPath, None] = {}
    for op in ops:
        for part in shaping(op):
            for expr in expressions_in(part):
                for leaf in leaves(expr):
                    if (
                        isinstance(leaf, Read)
                        and leaf.access_path.step is not Step.SIZE
                        and not leaf.access_path.is_grown
                    ):
                        found[leaf.access_path] = None
    return found
