"""Recognises, before a recursive call is made, that it and the calls within it take known variants.

A recognised call need not be watched. Each variant has generated code of its own, which stays valid when others are
learnt. Independent of how calls are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torchjanus.core.access_path import AccessPath
from torchjanus.graph.recursion.traversal.text import (
    SCOPE,
    UnseenVariant,
    by_size,
    checked,
    given_text,
    guarded,
    numbers_given,
)
from torchjanus.graph.recursion.variants.variant import Variant
from torchjanus.host.embed import compile_with_constants

__all__ = ["VariantMatcher", "room_within"]

_ROOM = 0.9  # share of Python's recursion limit; deeper calls are left to eager, which knows its own limit


def room_within(limit: int) -> int:
    """Return how many frames deep recognised calls may go under the recursion limit ``limit``."""
    return int(limit * _ROOM)


class _MatcherCode:
    """The generated code of one variant. ``take`` follows a call and the calls within it and returns (variant number,
    returned numbers...), or None if the call does not take this variant. ``reads``: the access paths of the step's
    values that ``take`` needs."""

    def __init__(self, variant: Variant) -> None:
        needs: dict[Any, tuple[int, AccessPath]] = {}
        names: dict[str, Any] = {}
        parameters = [f"p{number}" for number in range(len(variant.parameters))]
        source, passed = checked(variant, needs, names)
        body = list(_body(variant, passed, source))
        source.flush()
        lines = [f"def take({', '.join(['d', 'run', *parameters])}):"]
        lines += [
            "    if d > run.limit: raise UnseenVariant",
            f"    step = run.step[{variant.number}]",
            "    while True:",
        ]
        lines += [f"        {line}" for line in (*guarded(source.lines), *body)]
        scope: dict[str, Any] = {**SCOPE}
        compile_with_constants("\n".join(lines), "<torchjanus match>", names, scope)
        self.take: Callable[..., Any] = scope["take"]
        self.reads = tuple(access_path for _, access_path in needs.values())
        self.made = variant.made


def _body(variant: Variant, passed: Sequence[Sequence[str]], source: Any) -> Iterator[str]:
    """Yield the statements that run once a call is known to take the variant."""
    # It is known only after the call whether it takes such a variant, which counters it reads or writes, and where
    # gradients flow.
    if (
        variant.truths
        or variant.entered
        or variant.sides
        or variant.cuts_gradients
        or not variant.gradients.uniform
        or any(write.list is None for write in variant.writes)
    ):
        yield "raise UnseenVariant"
        return
    yield f"run.met.add({variant.number})"
    for number, (site, text) in enumerate(zip(variant.sites, passed, strict=True)):
        yield f"for take in run.takes({source.object(site.event.callee)}, ()):"
        yield f"    c{number} = take({', '.join([f'd + {site.frames}', 'run', *text])})"
        yield f"    if c{number} is not None: break"
        yield "else: raise UnseenVariant"
        yield f"if run.made[c{number}[0]] != {source.object(site.event.made)}: raise UnseenVariant"
        yield from numbers_given(site, number)
    numbers = [given_text(source, recipe) for recipe in variant.numbers]
    source.flush()
    yield f"return ({''.join(f'{text}, ' for text in (str(variant.number), *numbers))})"


class _MatchState:
    """The state of one attempt. ``step``: the step's values by variant; ``met``: the variants taken so far."""

    def __init__(self, matchers: Mapping[int, _MatcherCode], takes: Any, limit: int, given: Any) -> None:
        known: dict[Any, Any] = {}
        self.step = {
            number: [_read(access_path, given, known) for access_path in matcher.reads]
            for number, matcher in matchers.items()
        }
        self.made = {number: matcher.made for number, matcher in matchers.items()}
        self.takes, self.limit = takes, limit
        self.met: set[int] = set()


def _read(access_path: AccessPath, given: Any, known: dict[Any, Any]) -> Any:
    """Return the step's value at an access path, read once."""
    if access_path.token not in known:
        known[access_path.token] = access_path.read(*given)
    return known[access_path.token]


class VariantMatcher:
    """Matches calls with known variants. ``known`` caches the generated code by variant number; it is extended here."""

    def __init__(self, variants: Mapping[Any, Sequence[Variant]], known: dict[int, _MatcherCode]) -> None:
        self._takes: dict[Any, list[Any]] = {}
        self._matchers: dict[int, _MatcherCode] = {}
        for callee, own in variants.items():
            for variant in by_size(own):
                matcher = known.get(variant.number)
                if matcher is None:
                    matcher = known[variant.number] = _MatcherCode(variant)
                self._matchers[variant.number] = matcher
                self._takes.setdefault(callee, []).append(matcher.take)

    def match(self, callee: Any, step: Any, given: Sequence[Any], room: int) -> tuple[frozenset[int], int, Any] | None:
        """Return the variants that a call and the calls within it take, the call's own variant, and the structure of
        its result; or None if one of the variants is unknown, or if the calls go deeper than ``room`` allows. ``step``:
        the arguments of the step."""
        try:
            run = _MatchState(self._matchers, self._takes.get, room_within(room), step)
        except (KeyError, AttributeError, IndexError, TypeError):
            return None
        try:
            for take in self._takes.get(callee, ()):
                found = take(0, run, *given)
                if found is not None:
                    return frozenset(run.met), found[0], run.made[found[0]]
        except (UnseenVariant, RecursionError, ArithmeticError):
            pass
        return None
