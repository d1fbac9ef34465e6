"""Generates the checks that match a recursive call on the host with the variant that it takes.

Variants with a common prefix of checks share it: the prefix runs once. Independent of rows and schedules.
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
from torchjanus.graph.recursion.variants.schedule import Site
from torchjanus.graph.recursion.variants.variant import Variant
from torchjanus.host.assumption import Assumption, TypeOf
from torchjanus.host.checks import BROKEN, same_keys, same_value
from torchjanus.host.requirements import Requirements
from torchjanus.host.source import Source
from torchjanus.host.tensor_assumptions import TensorKind
from torchjanus.trace.actions import HeapWrite
from torchjanus.trace.calls import TENSOR, entered_at
from torchjanus.trace.recipes import Constant, ExistingObject, NewObject, Number, Recipe, TensorOf
from torchjanus.trace.values import Apply, is_local

__all__ = [
    "SCOPE", "MatchedVariant", "UnseenVariant", "VariantSource", "branches", "by_size", "checked", "given_text",
    "guarded", "number_text", "numbers_given",
]  # fmt: skip

_DEEPEST = 12  # nested blocks: Python allows 20


class UnseenVariant(Exception):
    """A call takes a variant that was not seen."""


SCOPE: dict[str, Any] = {
    "BROKEN": BROKEN,
    "UnseenVariant": UnseenVariant,
    "MISS": UnseenVariant,
    "same_keys": same_keys,
    "same_value": same_value,
    "item": read_item,
    "same": operator.is_,
}


def given_text(source: Source, recipe: Recipe) -> str:
    """Return the expression of an argument as far as the host knows it: tensors become a placeholder."""
    match recipe:
        case TensorOf():
            return source.object(TENSOR)
        case Constant(value=value):
            return source.constant(value)
        case Number(expr=expr):
            return number_text(source, expr)
        case ExistingObject(access_path=access_path):
            return source.value(access_path)
        case NewObject(cls=cls, items=items):
            inner = "".join(f"{given_text(source, part)}, " for part in items)
            return f"[{inner}]" if cls is list else f"({inner})"
    raise AssertionError(recipe)


def number_text(source: Source, expr: Any) -> str:
    """Return the expression of a number. One made of what calls return is computed after those calls are followed."""
    if not calls_of(expr):
        return source.number(expr)
    if isinstance(expr, Apply):
        return f"{source.object(expr.func)}({', '.join(number_text(source, part) for part in expr.args)})"
    return source.number(expr)


class VariantSource(Source):
    """Checks of one call, in a loop that a failing check breaks. Values of the step are read once, by the step."""

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
        # One line for each check, so that variants share as long a prefix as possible.
        self.lines += [f"if {condition}: break" for condition in self._failing]
        self._failing.clear()


def checked(
    variant: Variant, needs: dict[Any, tuple[int, AccessPath]], names: dict[str, Any], written: Sequence[Written] = ()
) -> tuple[VariantSource, list[list[str]]]:
    """Return the lines that check whether a call takes this variant, and the argument expressions of each of its calls.
    ``written``: what the step has changed before the call; the host still finds the old values there."""
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
        if write.counts and isinstance(write.event, HeapWrite) and not is_local(write.event.base):
            holder, key = source.value(write.event.base), source.constant(write.event.key)
            found = f"{holder}[{key}]" if write.event.how == "item" else f"getattr({holder}, {key})"
            source.fail_if(f"type({found}) is not {source.object(type(variant.seen_at(write.event)))}")
    requirements.require_collected()
    passed = [[given_text(source, recipe) for _, recipe in site.event.given] for site in variant.sites]
    source.flush()
    return source, passed


def _own(variant: Variant) -> Iterator[Assumption]:
    """Yield the variant's assumptions about its arguments; the step checks all others."""
    for assumption in variant.plan.assumptions:
        access_paths = list(assumption.access_paths())
        if not any(map(is_local, access_paths)) or all(
            call_of(access_path) is not None for access_path in access_paths
        ):
            continue
        where = getattr(assumption, "access_path", None)
        if where is not None and where.token in variant.given and isinstance(assumption, TensorKind | TypeOf):
            continue  # the tensor is a row of a buffer
        yield assumption


def _held(tensor: Any, detail: tuple[Any, ...]) -> bool:
    """Whether a tensor held by a node matches the recorded one."""
    _, dtype, shape, _, device, grad, _ = detail
    return (
        isinstance(tensor, torch.Tensor)
        and tuple(tensor.shape) == shape
        and str(tensor.dtype).removeprefix("torch.") == dtype
        and str(tensor.device) == device
        and tensor.requires_grad == grad
    )


@dataclass(frozen=True, slots=True)
class MatchedVariant:
    """The generated code of one variant: ``checks``, lines that break if they fail, and a ``body`` that returns."""

    checks: tuple[str, ...]
    body: tuple[str, ...]


def branches(variants: Sequence[MatchedVariant], indent: int = 2) -> Iterator[str]:
    """Yield the lines that find the variant that a call takes and run its body. They fall through if none matches."""
    blank = "    " * indent
    # The order matters: a variant with fewer checks would match calls of one with more.
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
                yield from branches(
                    [MatchedVariant(variant.checks[shared:], variant.body) for variant in some], indent + 1
                )
                yield f"{blank}    break"


def _in_common(variants: Sequence[MatchedVariant]) -> int:
    """Return the length of the common prefix of checks."""
    count = 0
    for lines in zip(*(variant.checks for variant in variants), strict=False):
        if len(set(lines)) > 1:
            break
        count += 1
    while count and variants[0].checks[count - 1].endswith(":"):
        count -= 1
    return count


def guarded(lines: Sequence[str]) -> Iterator[str]:
    """Yield the checks so that they also fail where a value to check does not exist."""
    if lines:
        yield "try:"
        yield from (f"    {line}" for line in lines)
        yield "except BROKEN: break"


def by_size(variants: Sequence[Variant]) -> list[Variant]:
    """Return the variants in the order of trial: first those without recursive calls, which are taken most often; then
    those with more assumptions before those with fewer."""
    return sorted(variants, key=lambda variant: (len(variant.sites), -len(variant.plan.assumptions)))


def numbers_given(site: Site, number: int) -> Iterator[str]:
    """Yield the statement that unpacks each number that a call has returned."""
    for which in range(len(numbers_made(site.event.made))):
        yield f"v{number}_{which} = c{number}[{1 + which}]"
