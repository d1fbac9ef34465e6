"""What operations are given and recipes hold: the expressions and the tensors in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchjanus.core.kinds import isinstance
from torchjanus.trace.recipes import Build, Number, Perhaps, Repeat
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Expr

__all__ = ["expressions_in", "refs_in"]


def expressions_in(value: Any) -> Iterator[Expr]:
    """The expressions in an argument structure or a recipe."""
    if isinstance(value, Expr):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from expressions_in(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from expressions_in(part)
    elif isinstance(value, slice):
        yield from expressions_in((value.start, value.stop, value.step))
    elif isinstance(value, Number):
        yield value.expr
    elif isinstance(value, Perhaps):
        yield from expressions_in((value.item, value.when))
    elif isinstance(value, Repeat):
        yield value.count
        yield from expressions_in(value.item)
    elif isinstance(value, Build):
        yield from expressions_in(value.items)
        yield from expressions_in(tuple(recipe for _, recipe in (*value.attributes, *value.fields)))


def refs_in(value: Any) -> Iterator[TensorRef]:
    """The tensors in an argument structure."""
    if isinstance(value, TensorRef):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from refs_in(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from refs_in(part)
    elif isinstance(value, slice):
        yield from refs_in((value.start, value.stop, value.step))
