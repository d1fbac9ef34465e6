"""The expressions and the tensors in what operations are given and in recipes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchjanus.core.access_path import AccessPath
from torchjanus.core.kinds import isinstance
from torchjanus.core.trees import leaves_of, leaves_of_kind
from torchjanus.trace.recipes import CollectedItems, ExistingObject, Number, Recipe, parts_of
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Expr, Read, Traced, leaves

__all__ = ["expressions_in", "numbers_in", "paths_in", "refs_in"]


def expressions_in(value: Any) -> Iterator[Expr]:
    """Yield the expressions in the arguments of an operation, in a recipe or in several recipes."""
    for leaf in leaves_of(value):
        if isinstance(leaf, Expr):
            yield leaf
        else:
            yield from numbers_in(leaf)


def numbers_in(recipe: Recipe) -> Iterator[Expr]:
    """Yield the expressions of the numbers and texts in a recipe, and the counts of repeated parts."""
    for part in parts_of(recipe):
        if isinstance(part, Number):
            yield part.expr
        elif isinstance(part, CollectedItems):
            yield part.count


def paths_in(value: Any) -> Iterator[AccessPath]:
    """Yield the access paths in arguments, expressions, recipes and other access paths, each with its prefixes."""
    for leaf in leaves_of(value):
        if isinstance(leaf, AccessPath):
            for at in leaf.prefixes():
                yield at
                yield from paths_in(at.key if isinstance(at.key, Expr) else ())
        elif isinstance(leaf, Expr):
            yield from paths_in([read.access_path for read in leaves(leaf) if isinstance(read, Read)])
        elif isinstance(leaf, Traced):
            yield from paths_in(leaf.expr)
        else:
            yield from paths_in([part.access_path for part in parts_of(leaf) if isinstance(part, ExistingObject)])
            yield from paths_in(list(numbers_in(leaf)))


def refs_in(value: Any) -> Iterator[TensorRef]:
    """Yield the tensors in the arguments of an operation, each as often as it occurs."""
    return leaves_of_kind(value, TensorRef)
