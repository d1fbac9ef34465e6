"""Assumptions as sentences about the program's own lines. What libraries and Python's own protocols rely on is only
counted."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from textwrap import shorten

from torchjanus.core.access_path import REGISTRIES
from torchjanus.core.errors import NOWHERE, Place
from torchjanus.graph.ir.program import Assertion
from torchjanus.host.assumption import Assumption, Condition, Identity, InstanceOf, TypeOf, ValueOf, with_article
from torchjanus.host.tensor_assumptions import Distinct, TensorKind
from torchjanus.runtime.report.places import is_library, source

__all__ = ["DECIDED", "Fact", "facts_of", "sentence"]

SAME, VALUE, TENSOR, OTHER, TYPE, DECIDED = range(6)  # in the order of a sentence
_PLUMBING = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, type, tuple, property)
# Facts of Python's name lookup, of standard output, and of variables of an outlined step that say what is bound.
_UNSPOKEN = (
    "(id(",
    " not in globals",
    "of_output(",
    "of_errors(",
    "of_log(",
    "of_warnings(",
    "_torchjanus_",
    "globals is not ",
)
_DECISIONS = ("if ", "elif ", "while ", "assert ")
_LONGEST = 60  # characters that are quoted of a line


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that a line relies on: ``subject`` is what it says. ``evidence``: the assumption as it is checked."""

    place: Place
    kind: int
    subject: str
    says: str
    evidence: str


def facts_of(assumptions: Iterable[Assumption], assertions: Iterable[Assertion] = ()) -> tuple[Fact, ...]:
    """Return the facts that the program's own lines rely on, without what follows from Python's protocols."""
    placed = (one for one in assertions if one.place != NOWHERE and not is_library(one.place))
    return (*_assumed(assumptions), *map(_decided, placed))


def _decided(one: Assertion) -> Fact:
    text, line = f"stays {one.expected}", source(one.place).partition("  #")[0].rstrip(":")
    quoted = f"'{shorten(line, _LONGEST, placeholder=' ...')}'"
    if line and not line.startswith(_DECISIONS):
        quoted = f"a condition of {quoted}"
    return Fact(one.place, DECIDED, quoted if line else "the condition", text, f"checked in the graph: {text}")


def _unwrapped(text: str) -> str:
    """Return an expression without the parentheses around the whole of it."""
    while text.startswith("(") and text.endswith(")"):
        depths = list(accumulate((one == "(") - (one == ")") for one in text))
        if 0 in depths[:-1]:  # the first one is closed before the end
            break
        text = text[1:-1]
    return text


def _assumed(assumptions: Iterable[Assumption]) -> Iterator[Fact]:
    for one in assumptions:
        paths = [*one.access_paths()]
        if isinstance(one, Distinct) or not paths or is_library(one.place):
            continue
        text, subject = str(one), str(paths[0])
        if any("__" in str(path) for path in paths) or any(part in text for part in _UNSPOKEN):
            continue
        if isinstance(one, Identity):
            if not isinstance(one.value, _PLUMBING) and paths[0].key not in REGISTRIES:
                yield Fact(one.place, SAME, subject, "", text)
        elif isinstance(one, ValueOf):
            yield Fact(one.place, VALUE, subject, repr(one.value), text)
        elif isinstance(one, TensorKind):
            yield Fact(one.place, TENSOR, subject, text.partition(" is ")[2], text)
        elif isinstance(one, TypeOf):
            yield Fact(one.place, TYPE, subject, one.cls.__qualname__, text)
        elif isinstance(one, Condition) and one.outcome is True:
            yield Fact(one.place, OTHER, subject, _unwrapped(text.removesuffix(" is True")), text)
        elif not isinstance(one, InstanceOf) or one.outcome:
            yield Fact(one.place, OTHER, subject, text, text)


def sentence(facts: Sequence[Fact]) -> str:
    """Return what one line relies on. Graphs of several paths may rely on several values."""
    by_kind: dict[int, dict[str, list[str]]] = {}
    for fact in facts:
        said = by_kind.setdefault(fact.kind, {}).setdefault(fact.subject, [])
        if fact.says not in said:
            said.append(fact.says)
    known = {subject for kind in (SAME, VALUE, TENSOR) for subject in by_kind.get(kind, ())}
    parts = []
    if same := [*by_kind.get(SAME, ())]:
        parts.append(f"{_listed(same)} {'stays' if len(same) == 1 else 'stay'} the same")
    for kind in (VALUE, TENSOR):
        parts += [f"{subject} is {_or(said)}" for subject, said in by_kind.get(kind, {}).items()]
    parts += [
        f"{subject} is {_or([*map(with_article, said)])}"
        for subject, said in by_kind.get(TYPE, {}).items()
        if subject not in known
    ]
    parts += [text for said in by_kind.get(OTHER, {}).values() for text in said]
    parts += [f"{subject} {_or(said)}" for subject, said in by_kind.get(DECIDED, {}).items()]
    return "; ".join(parts)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _or(said: Sequence[str]) -> str:
    return " or ".join(said)
