"""Method sets: methods of one name that a call site finds on receivers of several classes, one of them recursive.

Calls of any member are calls of one function: the call itself records the class of its receiver. So the caller's trace
does not depend on the classes of the nodes below it.
"""

from __future__ import annotations

import types
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from torchjanus.rewrite import Site, code_of
from torchjanus.semantics.protocols.leaves import on_type

__all__ = ["Lookups", "Member", "MethodSets"]


@dataclass(frozen=True, slots=True)
class Member:
    """A method that was looked up by ``name`` to be called. ``alike``: the code of all methods of its set."""

    name: str
    receiver: Any
    alike: frozenset[types.CodeType]


@dataclass(slots=True)
class Lookups:
    """The methods that a run has looked up and not yet called."""

    _found: dict[int, tuple[types.MethodType, str]] = field(default_factory=dict)

    def add(self, method: Any, receiver: Any, name: str) -> bool:
        """Record a method lookup for a call. Return whether inspection of the receiver can be left to the call."""
        if type(method) is not types.MethodType or method.__self__ is not receiver:
            return False
        if on_type(type(receiver), name) is not method.__func__ or type(method.__func__) is not types.FunctionType:
            return False
        self._found[id(method)] = (method, name)
        return True

    def clear(self) -> None:
        """Hold no method any more."""
        self._found.clear()

    def take(self, method: Any) -> str | None:
        """Remove a method and return the name of its lookup, or None."""
        found = self._found.pop(id(method), None)
        return None if found is None else found[1]


class MethodSets:
    """The method sets over all runs: which methods were found at which call site."""

    def __init__(self) -> None:
        self._met: dict[tuple[str, int, int, str], set[types.CodeType]] = {}
        self._names: dict[tuple[str, int], tuple[str, ...]] = {}

    def record_method(self, at: Site, name: str, method: types.MethodType) -> Member:
        """Record a method found at a site. Return it with its method set."""
        self._met.setdefault((at.file, at.line, at.column, name), set()).add(code_of(method.__func__))
        places = [met for (*_, known), met in self._met.items() if known == name]
        alike, before = {code_of(method.__func__)}, 0
        while len(alike) > before:
            before = len(alike)
            alike = alike.union(*(met for met in places if not met.isdisjoint(alike)))
        return Member(name, method.__self__, frozenset(alike))

    def parameters(self, name: str, own: Collection[str]) -> dict[str, str]:
        """Return the method set's parameter names by the method's ``own``: those of the first method seen."""
        names = self._names.setdefault((name, len(own)), tuple(own))
        return dict(zip(own, names, strict=True))
