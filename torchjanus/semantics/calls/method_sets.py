"""Methods of one name that one place of the program finds on objects of several classes, one of which calls itself.

Calls of any of them are calls of one function: what a caller asks of the receiver only to find the method is asked by
the call itself. So a caller is the same whatever the classes of the nodes below it. Knows nothing of traces.
"""

from __future__ import annotations

import types
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from torchjanus.rewrite import Site, code_of
from torchjanus.semantics.protocols.leaves import on_type

__all__ = ["Families", "Lookups", "Member"]


@dataclass(frozen=True, slots=True)
class Member:
    """A method that is about to be called, found by its ``name``; ``alike``: the functions that were found so where it
    was, where those were, and so on."""

    name: str
    receiver: Any
    alike: frozenset[types.CodeType]


@dataclass(slots=True)
class Lookups:
    """The methods that a run has looked up, and not called yet."""

    _found: dict[int, tuple[types.MethodType, str]] = field(default_factory=dict)

    def add(self, method: Any, receiver: Any, name: str) -> bool:
        """A method was looked up only to be called. Returns whether it can wait to be said what it was asked of."""
        if type(method) is not types.MethodType or method.__self__ is not receiver:
            return False
        if on_type(type(receiver), name) is not method.__func__ or type(method.__func__) is not types.FunctionType:
            return False
        self._found[id(method)] = (method, name)
        return True

    def take(self, method: Any) -> str | None:
        """By which name the method was found, if it was."""
        found = self._found.pop(id(method), None)
        return None if found is None else found[1]


class Families:
    """Which methods were found at which place, over all runs."""

    def __init__(self) -> None:
        self._met: dict[tuple[str, int, int, str], set[types.CodeType]] = {}
        self._names: dict[tuple[str, int], tuple[str, ...]] = {}

    def meet(self, at: Site, name: str, method: types.MethodType) -> Member:
        """The method was found there."""
        self._met.setdefault((at.file, at.line, at.column, name), set()).add(code_of(method.__func__))
        places = [met for (*_, known), met in self._met.items() if known == name]
        alike, before = {code_of(method.__func__)}, 0
        while len(alike) > before:
            before = len(alike)
            alike = alike.union(*(met for met in places if not met.isdisjoint(alike)))
        return Member(name, method.__self__, frozenset(alike))

    def parameters(self, name: str, own: Collection[str]) -> dict[str, str]:
        """What the parameters of a method are called in all methods of its family: as in the first that was seen."""
        names = self._names.setdefault((name, len(own)), tuple(own))
        return dict(zip(own, names, strict=True))
