"""Walks over trees of lists, tuples, dictionaries and slices, as in the arguments of a call. Knows no leaves.

Values of the program need not be trees: ``held_by`` takes any.

The parts of a tree are visited in order: a dictionary's values in its own order, a slice's start, stop and step.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from torchjanus.core.access_path import token_of
from torchjanus.core.kinds import is_one_of

__all__ = ["held_by", "leaves_of", "leaves_of_kind", "map_leaves", "map_parts", "tree_token"]

_Kind = TypeVar("_Kind")


def _parts(tree: Any) -> Iterable[Any] | None:
    """Return the immediate parts of a tree; None if it is a leaf."""
    kind = type(tree)
    if issubclass(kind, list | tuple):
        return tree  # type: ignore[no-any-return]
    if issubclass(kind, dict):
        return tree.values()  # type: ignore[no-any-return]
    return (tree.start, tree.stop, tree.step) if kind is slice else None


def leaves_of(tree: Any) -> Iterator[Any]:
    """Yield the leaves."""
    parts = _parts(tree)
    if parts is None:
        yield tree
    else:
        for part in parts:
            yield from leaves_of(part)


def held_by(value: Any) -> Iterator[Any]:
    """Yield what plain containers hold that are no containers themselves, in no order; ``value`` itself if it is none.
    A container may hold itself, and be nested to any depth; a set is none here. No code of the
    program runs."""
    waiting, seen = [value], set[int]()
    while waiting:
        one = waiting.pop()
        kind = type(one)
        is_named = issubclass(kind, tuple) and "_fields" in kind.__dict__
        if not (is_named or is_one_of(kind, _PLAIN)):
            yield one
        elif id(one) not in seen:
            seen.add(id(one))
            waiting += dict.values(one) if issubclass(kind, dict) else tuple.__iter__(one) if is_named else one


_PLAIN = (list, tuple, dict, OrderedDict, defaultdict, deque)


def leaves_of_kind(tree: Any, kind: type[_Kind]) -> Iterator[_Kind]:
    """Yield the leaves of a class."""
    return (leaf for leaf in leaves_of(tree) if issubclass(type(leaf), kind))


def map_parts(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Return the tree with ``change(part)`` in place of each immediate part; a leaf as it is. Named tuples keep their
    class; other containers become plain lists, tuples and dictionaries."""
    kind = type(tree)
    if issubclass(kind, list):
        return [change(part) for part in tree]
    if issubclass(kind, tuple):
        parts = [change(part) for part in tree]
        return kind(*parts) if hasattr(kind, "_fields") else tuple(parts)
    if issubclass(kind, dict):
        return {key: change(part) for key, part in tree.items()}
    return slice(change(tree.start), change(tree.stop), change(tree.step)) if kind is slice else tree


def map_leaves(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    """Return the tree with ``leaf(value)`` in place of each leaf; see ``map_parts``."""
    is_leaf = _parts(tree) is None
    return leaf(tree) if is_leaf else map_parts(tree, lambda part: map_leaves(part, leaf))


def tree_token(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    """Return a hashable key of a tree: its form, and ``leaf(value)`` of each leaf."""
    kind = type(tree)
    if issubclass(kind, dict):
        return ("dict", *((token_of(key), tree_token(part, leaf)) for key, part in tree.items()))
    parts = _parts(tree)
    return leaf(tree) if parts is None else (kind.__name__, *(tree_token(part, leaf) for part in parts))
