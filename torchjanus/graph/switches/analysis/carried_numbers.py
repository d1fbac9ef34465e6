"""Resolves the numbers that iterations carry in Python, and builds their expressions for each iteration of a run.

A resolved number is a tree:

    ("c", token, value)               a loop-invariant value
    ("t", offset)                     the iteration index plus an offset
    ("v", variable)                   a variable's value before the iteration
    ("f", variable, type, index)      a fetch of a tensor that the iteration makes
    ("m", function, *trees)           a value computed from others
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torchjanus.core.access_path import token_of
from torchjanus.core.caches import Interned
from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.switches.analysis.numbers import ArmSelection, Form, Source, is_safe
from torchjanus.trace.values import Apply, Expr, Fetch

__all__ = ["CarriedNumbers", "Tree", "build", "chosen", "names_in", "parts_of"]

Tree = tuple[Any, ...]
_OPEN = "?"  # a subtree that is not resolved


_SELECTIONS: Interned[ArmSelection] = Interned()  # expressions are compared by them


def chosen(arm: Fetch, values: Sequence[Any]) -> Any:
    """Return the expression that selects one of the values by the arm taken. Raises NotMergeable if one may raise."""
    different: list[Any] = []
    places = []
    for value in values:
        known = next((n for n, one in enumerate(different) if _is_same(one, value)), None)
        if known is None:
            known = len(different)
            different.append(value)
        places.append(known)
    if len(different) == 1:
        return different[0]
    if not all(map(is_safe, different)):
        raise NotMergeable("branch-numbers", "a number of one arm may raise in another arm")
    return Apply(_SELECTIONS.get(tuple(places), lambda: ArmSelection(tuple(places))), (arm, *different))


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (
        not isinstance(one, Expr) and not isinstance(other, Expr) and token_of(one) == token_of(other)
    )


class CarriedNumbers:
    """Resolves the numbers of iterations that took one of several arms.

    ``ends``: for each arm, the possible sources of each variable's final value; ``takes``: for each arm, those of each
    operand; ``initial``: the values before the first iteration."""

    def __init__(
        self,
        ends: Sequence[Mapping[Any, frozenset[Source]]],
        takes: Sequence[Mapping[Any, frozenset[Source]]],
        initial: Mapping[Any, Any],
    ) -> None:
        self.ends, self.takes = ends, takes
        names = set(initial).union(*ends)
        self.moving = {name for name in names if any(("name", name) not in some.get(name, ()) for some in ends)}
        for name in list(self.moving):
            offsets = [{one[1] for one in some.get(name, ()) if one[0] == "index"} for some in ends]
            if offsets and set.intersection(*offsets):
                self.moving.discard(name)  # it is the iteration index
        self._classes: dict[Any, Any] = {name: (_OPEN, self._initial(initial.get(name))) for name in self.moving}
        order = sorted(self.moving, key=repr)
        while True:
            forms = {name: (self._classes[name], self._signature(name)) for name in order}
            numbers: dict[Any, int] = {}
            found = {name: numbers.setdefault(forms[name], len(numbers)) for name in order}
            if len(set(found.values())) == len(set(self._classes.values())):
                break
            self._classes = found
        first: dict[Any, Any] = {}
        for name in order:
            if name in initial:
                first.setdefault(self._classes[name], name)
        for name in order:
            first.setdefault(self._classes[name], name)
        self.names = first  # a representative variable of each class

    @staticmethod
    def _initial(value: Any) -> Any:
        return value.token if isinstance(value, Expr) else token_of(value)

    def _signature(self, name: Any) -> Any:
        return tuple(self._trees(number, some.get(name, ())) for number, some in enumerate(self.ends))

    def _trees(self, arm: int, candidates: Iterable[Source]) -> frozenset[Tree]:
        found = {self._tree(arm, source) for source in candidates}
        return frozenset(tree for tree in found if tree is not None)

    def _tree(self, arm: int, source: Source) -> Tree | None:
        match source[0]:
            case "constant":
                return ("c", source[1], source[2])
            case "index":
                return ("t", source[1])
            case "name":
                return ("v", self._classes[source[1]]) if source[1] in self.moving else None
        return self._made(arm, source[1])

    def _made(self, arm: int, form: Form) -> Tree:
        if form[0] == "take":
            found = self._trees(arm, self.takes[arm].get(form[1], ()))
            return next(iter(found)) if len(found) == 1 else (_OPEN, found)
        if form[0] == "literal":
            return ("c", token_of(form[1]), form[1])
        if form[0] == "fetch":
            return ("f", *form[1:])
        parts = [self._made(arm, part) for part in form[2:]]
        if form[1] is operator.add and all(part[0] in "ct" for part in parts):
            values = [part[-1] for part in parts]
            indices = sum(part[0] == "t" for part in parts)
            if indices == 0 and not any(isinstance(value, Expr) for value in values):
                return ("c", token_of(values[0] + values[1]), values[0] + values[1])
            if indices == 1 and all(type(value) is int for value in values):
                return ("t", sum(values))
        if form[1] is operator.sub and [part[0] for part in parts] == ["t", "c"] and type(parts[1][2]) is int:
            return ("t", parts[0][1] - parts[1][2])
        if all(part[0] == "c" and type(part[2]) is int for part in parts) and len(parts) == 2:
            value = form[1](*(part[2] for part in parts))
            return ("c", token_of(value), value)
        return ("m", form[1], *parts)

    def settle(self, arm: int, candidates: Iterable[Source]) -> Tree:
        """Return the resolved tree of the candidates. Raises NotMergeable while they are ambiguous."""
        found = self._trees(arm, candidates)
        if len(found) != 1:
            raise NotMergeable("branch-numbers", "it is not known from which number an iteration goes on")
        return self._settled(next(iter(found)))

    def is_constant(self, arm: int, candidates: Iterable[Source]) -> bool:
        """Whether the number is a constant of the program's text."""
        words = {tree[0] for tree in self._trees(arm, candidates)}
        return "c" in words and words <= {"c", "t"}

    def settle_form(self, arm: int, form: Form) -> Tree:
        """Return the resolved tree of a computed form. Raises NotMergeable."""
        return self._settled(self._made(arm, form))

    def _settled(self, tree: Tree) -> Tree:
        if tree[0] == _OPEN:
            raise NotMergeable("branch-numbers", "it is not known which number an iteration carries to the next")
        if tree[0] == "v":
            return ("v", self.names[tree[1]])
        if tree[0] == "m":
            return ("m", tree[1], *map(self._settled, tree[2:]))
        return tree

    def name(self, name: Any) -> Any:
        """Return the representative of a variable's class; None if it is loop-invariant."""
        return self.names[self._classes[name]] if name in self.moving else None

    def closed(self, wanted: Iterable[Any]) -> dict[Any, tuple[Tree, ...]]:
        """Return the trees of the variables and of all variables that these depend on, one tree per arm."""
        found: dict[Any, tuple[Tree, ...]] = {}
        pending = list(wanted)
        while pending:
            name = pending.pop()
            if name not in found:
                found[name] = tuple(self.settle(arm, some.get(name, ())) for arm, some in enumerate(self.ends))
                pending += [one for tree in found[name] for one in names_in(tree)]
        return found


def parts_of(tree: Tree) -> Iterator[Tree]:
    """Yield a tree and all trees in it."""
    yield tree
    if tree[0] == "m":
        for part in tree[2:]:
            yield from parts_of(part)


def names_in(tree: Tree) -> Iterator[Any]:
    """Yield the variables that a tree reads."""
    return (part[1] for part in parts_of(tree) if part[0] == "v")


def build(tree: Tree, iteration: int, held: Callable[[Any], Any], fetch: Callable[[Tree], Any]) -> Any:
    """Return the value of a tree in an iteration. ``held``: a variable's value before it; ``fetch``: makes a fetch."""
    match tree[0]:
        case "c":
            return tree[2]
        case "t":
            return tree[1] + iteration
        case "v":
            return held(tree[1])
        case "f":
            return fetch(tree)
    return Apply(tree[1], tuple(build(part, iteration, held, fetch) for part in tree[2:]))
