"""The text of functions that follow recursive calls on the host: how a call is matched with the way that it takes.

Ways begin alike: what they ask first of a node is asked once for all of them. Knows nothing of rows and forests.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, Step, read_item
from torchjanus.graph.recursion.variants.reads import Written, call_of, calls_of, looks_into, numbers_made
from torchjanus.graph.recursion.variants.variant import Site, Variant
from torchjanus.host.assumption import Assumption, TensorKind, TypeOf
from torchjanus.host.checks import BROKEN, same_keys, same_value
from torchjanus.host.requirements import Requirements
from torchjanus.host.source import Source
from torchjanus.trace.actions import Stored
from torchjanus.trace.calls import TENSOR, entered_at
from torchjanus.trace.recipes import Build, Constant, FoundAt, Number, Recipe, TensorOf
from torchjanus.trace.values import Apply, is_local

__all__ = [
    "SCOPE",
    "Matched",
    "Unknown",
    "VariantSource",
    "branches",
    "by_size",
    "checked",
    "given_text",
    "guarded",
    "number_text",
    "numbers_given",
]

_DEEPEST = 12  # blocks within each other: Python takes 20


class Unknown(Exception):
    """A call takes a way that was not seen."""


SCOPE: dict[str, Any] = {
    "BROKEN": BROKEN,
    "Unknown": Unknown,
    "MISS": Unknown,
    "same_keys": same_keys,
    "same_value": same_value,
    "item": read_item,
    "same": operator.is_,
}


def given_text(source: Source, recipe: Recipe) -> str:
    """The text of what a call is given, as the host knows it."""
    match recipe:
        case TensorOf():
            return source.object(TENSOR)
        case Constant(value=value):
            return source.constant(value)
        case Number(expr=expr):
            return number_text(source, expr)
        case FoundAt(access_path=access_path):
            return source.value(access_path)
        case Build(cls=cls, items=items):
            inner = "".join(f"{given_text(source, part)}, " for part in items)
            return f"[{inner}]" if cls is list else f"({inner})"
    raise AssertionError(recipe)


def number_text(source: Source, expr: Any) -> str:
    """The text of a number. Where it is made of what calls return it is computed in place, once those are followed."""
    if not calls_of(expr):
        return source.number(expr)
    if isinstance(expr, Apply):
        return f"{source.object(expr.func)}({', '.join(number_text(source, part) for part in expr.args)})"
    return source.number(expr)


class VariantSource(Source):
    """Checks of one call, within a loop that ends where one fails. What belongs to the step is read by the step."""

    def __init__(self, needs: dict[Any, tuple[int, AccessPath]], names: dict[str, Any]) -> None:
        super().__init__("")
        self._needs = needs
        self._shared = names

    def constant(self, value: Any, prefix: str = "C") -> str:
        name = super().constant(value, prefix)
        if name in self.names:
            name = f"X{id(value)}"
            self._shared[name] = value
        return name

    def object(self, value: Any) -> str:
        self._shared[f"X{id(value)}"] = value
        return f"X{id(value)}"

    def access(self, access_path: AccessPath) -> str:
        if not is_local(access_path) and access_path not in self._values:
            number, _ = self._needs.setdefault(access_path.token, (len(self._needs), access_path))
            return f"step[{number}]"
        base = access_path.base
        if (
            access_path.step is Step.ITEM
            and base is not None
            and base.step is Step.DICT
            and access_path not in self._values
        ):
            return f"{self.value(base)}[{self.constant(access_path.key)}]"
        return super().access(access_path)

    def flush(self) -> None:
        # A line for each: ways that begin alike have as many lines as can be in common.
        self.lines += [f"if {condition}: break" for condition in self._failing]
        self._failing.clear()


def checked(
    variant: Variant, needs: dict[Any, tuple[int, AccessPath]], names: dict[str, Any], written: Sequence[Written] = ()
) -> tuple[VariantSource, list[list[str]]]:
    """The lines that check whether a call takes this variant, and the texts of what its calls are given. ``written``:
    what the step has changed by then, though the host still finds what was there before."""
    source = VariantSource(needs, names)
    requirements = Requirements(source)
    for number, parameter in enumerate(variant.parameters):
        source.give(AccessPath.parameter(parameter), f"p{number}")
    for number, site in enumerate(variant.sites):
        for which, path in enumerate(numbers_made(site.event.made)):
            access_path = AccessPath.parameter(f"call {number}")
            for key in path:
                access_path = access_path.item(key)
            source.give(access_path, f"v{number}_{which}")
    for count in variant.entered:
        source.give(entered_at(count), f"y{count}")
    for access_path in variant.given.values():
        source.fail_if(f"{source.value(access_path)} is not {source.object(TENSOR)}")
    for assumption in _own(variant):
        if isinstance(assumption, TensorKind):
            held, detail = source.object(_held), source.object(assumption.detail)
            source.fail_if(f"not {held}({source.value(assumption.access_path)}, {detail})")
        else:
            requirements.require(assumption)
    for access_path, changed in looks_into(variant.trace, written):
        source.fail_if(f"{source.value(access_path)} is {source.value(changed)}")
    for write in variant.writes:
        if write.counts and isinstance(write.event, Stored) and not is_local(write.event.base):
            holder, key = source.value(write.event.base), source.constant(write.event.key)
            found = f"{holder}[{key}]" if write.event.how == "item" else f"getattr({holder}, {key})"
            source.fail_if(f"type({found}) is not {source.object(type(variant.seen_at(write.event)))}")
    requirements.require_collected()
    passed = [[given_text(source, recipe) for _, recipe in site.event.given] for site in variant.sites]
    source.flush()
    return source, passed


def _own(variant: Variant) -> Iterator[Assumption]:
    """What the way relies on of what its call is given. The rest is the step's affair."""
    for assumption in variant.plan.assumptions:
        access_paths = list(assumption.access_paths())
        if not any(map(is_local, access_paths)) or all(
            call_of(access_path) is not None for access_path in access_paths
        ):
            continue
        where = getattr(assumption, "access_path", None)
        if where is not None and where.token in variant.given and isinstance(assumption, TensorKind | TypeOf):
            continue  # a row of a buffer
        yield assumption


def _held(tensor: Any, detail: tuple[Any, ...]) -> bool:
    """Whether a tensor that a node holds is like the one that was seen."""
    _, dtype, shape, _, device, grad, _ = detail
    return (
        isinstance(tensor, torch.Tensor)
        and tuple(tensor.shape) == shape
        and str(tensor.dtype).removeprefix("torch.") == dtype
        and str(tensor.device) == device
        and tensor.requires_grad == grad
    )


@dataclass(frozen=True, slots=True)
class Matched:
    """One way: the ``checks`` that tell that a call takes it, each a line that breaks off where it fails, and the
    ``body`` of what is done then, which returns."""

    checks: tuple[str, ...]
    body: tuple[str, ...]


def branches(variants: Sequence[Matched], indent: int = 2) -> Iterator[str]:
    """The lines that find the way that a call takes. Where none fits they are left at their end."""
    blank = "    " * indent
    # Their order is kept: one that asks less would take what is for one that asks more.
    for _, neighbours in itertools.groupby(variants, lambda variant: variant.checks[0] if variant.checks else ""):
        group = list(neighbours)
        alike = len(group) > 1 and indent < _DEEPEST
        for some in [group] if alike else [[variant] for variant in group]:
            shared = _in_common(some)
            yield f"{blank}while True:"
            yield from (f"{blank}    {line}" for line in guarded(some[0].checks[:shared]))
            if len(some) == 1:
                yield from (f"{blank}    {line}" for line in some[0].body)
            else:
                yield from branches([Matched(variant.checks[shared:], variant.body) for variant in some], indent + 1)
                yield f"{blank}    break"


def _in_common(variants: Sequence[Matched]) -> int:
    """How many checks are the same, from the first on."""
    count = 0
    for lines in zip(*(variant.checks for variant in variants), strict=False):
        if len(set(lines)) > 1:
            break
        count += 1
    while count and variants[0].checks[count - 1].endswith(":"):
        count -= 1
    return count


def guarded(lines: Sequence[str]) -> Iterator[str]:
    """The checks, which also fail where there is nothing that they could ask."""
    if lines:
        yield "try:"
        yield from (f"    {line}" for line in lines)
        yield "except BROKEN: break"


def by_size(variants: Sequence[Variant]) -> list[Variant]:
    """The ways in the order in which they are tried: those without calls of their own are taken most often; and those
    that ask more of what they pass on before those that leave it to the calls."""
    return sorted(variants, key=lambda variant: (len(variant.sites), -len(variant.plan.assumptions)))


def numbers_given(site: Site, number: int, rows: int) -> Iterator[str]:
    """Take the numbers that a call has returned, behind so many rows."""
    for which in range(len(numbers_made(site.event.made))):
        yield f"v{number}_{which} = c{number}[{1 + rows + which}]"
