"""Finds formulas that are applied to many fetched numbers, such as an optimizer's bias corrections for each parameter.

These numbers are usually all equal (see ``reading``), and then the formula is evaluated once. This module does not know
entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torchjanus.core.access_path import token_of
from torchjanus.host.embed import compile_with_constants
from torchjanus.host.source import Source
from torchjanus.trace.values import Apply, Expr, Fetch, Read, leaves

__all__ = ["Formula", "formulas"]

_WORTH = 4  # numbers, at least

Number = float | int


@dataclass(frozen=True, slots=True)
class Formula:
    """``computed[i][k]`` is computed of the number at ``places[i]`` and of ``others`` in the same way for each i. The
    numbers are of one type."""

    places: tuple[int, ...]
    computed: tuple[tuple[Apply, ...], ...]
    others: tuple[Read, ...]

    def compiled(self, fetches: Sequence[Fetch]) -> Callable[..., list[tuple[Number, ...]]]:
        """Return a function of the list of all numbers, and of ``others``, that returns the rows of computed values."""
        source, names = Source("    "), [f"other{k}" for k in range(len(self.others))]
        source.give_fetch(fetches[self.places[0]], "number")
        for other, name in zip(self.others, names, strict=True):
            source.give(other.access_path, name)
        results = "".join(f"{source.number(expr)}, " for expr in self.computed[0])
        lines = [f"def of({', '.join(['number', *names])}):", *source.lines, f"    return ({results})"]
        scope: dict[str, Any] = {}
        compile_with_constants("\n".join(lines), "<torchjanus formula>", source.names, scope)
        of, places = scope["of"], self.places

        def computed(numbers: Sequence[Number], *others: Number) -> list[tuple[Number, ...]]:
            first = numbers[places[0]]
            made = of(first, *others)
            return [made if (now := numbers[place]) is first else of(now, *others) for place in places]

        return computed


def formulas(fetches: Sequence[Fetch], exprs: Iterable[Any]) -> Iterator[Formula]:
    """Yield the formulas by which some of ``exprs`` are computed from many of ``fetches``, which are of one type."""
    places = {fetch.token: place for place, fetch in enumerate(fetches)}
    computed: dict[int, dict[Any, Apply]] = {}
    for expr in exprs:
        if isinstance(expr, Apply):
            found = {leaf.token: leaf for leaf in leaves(expr)}
            fetched = [token for token in found if token in places]
            if len(fetched) == 1 and all(isinstance(f, Read) or t == fetched[0] for t, f in found.items()):
                computed.setdefault(places[fetched[0]], {})[expr.token] = expr
    alike: dict[Any, list[int]] = {}
    for place, made in computed.items():
        alike.setdefault(tuple(_shape(expr, fetches[place]) for expr in made.values()), []).append(place)
    for group in alike.values():
        if len(group) >= _WORTH:
            rows = tuple(tuple(computed[place].values()) for place in group)
            others = {leaf.token: leaf for expr in rows[0] for leaf in leaves(expr) if isinstance(leaf, Read)}
            yield Formula(tuple(group), rows, tuple(others.values()))


def _shape(expr: Any, fetch: Fetch) -> Any:
    """Return a key that is equal for expressions that differ only in this fetch."""
    if isinstance(expr, Apply):
        return token_of(expr.func), *(_shape(arg, fetch) for arg in expr.args)
    if isinstance(expr, Expr):
        return "number" if expr.token == fetch.token else expr.token
    return token_of(expr)
