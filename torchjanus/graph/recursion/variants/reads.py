"""What a watched call reads, is given and returns, from its trace. Independent of how calls are cut into cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.trace import facts
from torchjanus.trace.actions import ContainerMutation, HeapWrite, InvokeOp
from torchjanus.trace.calls import parts_made
from torchjanus.trace.events import Event, Trace
from torchjanus.trace.recipes import Constant, NewObject, Number, Recipe, TensorOf, parts_of
from torchjanus.trace.values import Expr, Fetch, Read, depends_on, is_local, leaves

__all__ = [
    "Written", "call_of", "calls_of", "class_of", "given_tensors", "is_read", "looks_into", "names_read",
    "numbers_made", "numbers_of", "places_of", "result_key", "tensors_of", "undecided", "written_by",
]  # fmt: skip

_ALL: Any = object()  # represents the names of all attributes of an object


def names_read(trace: Trace, without: frozenset[Any] = frozenset()) -> set[tuple[type | None, Any]]:
    """Return what a trace reads: a pair (class, name) for each attribute, with None for an unknown class, and a pair
    (None, token) for each container. ``without``: tokens of places to leave out."""
    found: set[tuple[type | None, Any]] = set()
    for event in trace.events:
        match event:
            case facts.HeapRead(access_path=access_path) | facts.InstanceTest(access_path=access_path) if (
                access_path.base is not None and access_path.token not in without
            ):
                found |= {(class_of(trace, access_path.base), access_path.key), (None, access_path.base.token)}
            case facts.KeyLookup(base=base, key=key):
                # An object's dictionary lacks an attribute; any other dictionary lacks a key and has no attributes.
                cls = class_of(trace, base) or (dict if base.step is Step.ITEM else None)
                found |= {(cls, key), (None, base.token)}
            case facts.EmptinessTest(access_path=access_path) | facts.KeySetRead(access_path=access_path):
                found |= {(class_of(trace, access_path), _ALL), (None, access_path.token)}
    return {(cls, name) for cls, name in found if isinstance(name, str | tuple) or name is _ALL}


def is_read(written: tuple[type | None, Any], read: set[tuple[type | None, Any]]) -> bool:
    """Whether a written name may be among those read."""
    cls, name = written
    return any(
        (other == name or (other is _ALL and isinstance(name, str))) and (cls is known or cls is None or known is None)
        for known, other in read
    )


@dataclass(frozen=True, slots=True)
class Written:
    """An object that the step changes: its access path, its class, and the name of the attribute."""

    access_path: AccessPath
    cls: type | None
    name: Any


def written_by(trace: Trace, events: Iterable[Event]) -> Iterator[Written]:
    """Yield the changes that these events make."""
    for event in events:
        if isinstance(event, HeapWrite | ContainerMutation) and not event.base.is_grown:
            name = event.key if isinstance(event, HeapWrite) and type(event.key) is str else _ALL
            yield Written(_object(event.base), class_of(trace, event.base), name)


def looks_into(trace: Trace, written: Sequence[Written]) -> Iterator[tuple[AccessPath, AccessPath]]:
    """Yield where a call reads an object of its own that may be one of these, each with the access path of that one."""
    asked: dict[tuple[Any, Any], tuple[AccessPath, AccessPath]] = {}
    for event in trace.events if written else ():
        match event:
            case facts.HeapRead(access_path=access_path) | facts.InstanceTest(access_path=access_path) if (
                access_path.base is not None
            ):
                base, key = access_path.base, access_path.key if type(access_path.key) is str else _ALL
            case facts.KeyLookup(base=base, key=key):
                key = key if type(key) is str else _ALL
            case facts.EmptinessTest(access_path=base) | facts.KeySetRead(access_path=base):
                key = _ALL
            case _:
                continue
        at = _object(base)
        for one in written if is_local(at) else ():
            cls = class_of(trace, at)
            if (one.cls is cls or None in (one.cls, cls)) and (one.name == key or _ALL in (one.name, key)):
                asked[at.token, one.access_path.token] = at, one.access_path
    return iter(asked.values())


def _object(access_path: AccessPath) -> AccessPath:
    """Return the object whose dictionary this is, or else the path itself."""
    return access_path.base if access_path.step is Step.DICT and access_path.base is not None else access_path


def class_of(trace: Trace, access_path: AccessPath) -> type | None:
    """Return the class of the object at the path, or of the object whose dictionary this is; None if unknown."""
    at = _object(access_path)
    if at.step is Step.CONST:
        return type(at.key)
    for event in trace.events:
        if isinstance(event, facts.HeapRead) and event.access_path == at:
            return type(event.value)
    return None


def undecided(one: Iterable[Event], other: Iterable[Event]) -> Event | None:
    """Return the event at which two traces part if a tensor decides there, so that the host cannot distinguish them."""
    for before, after in zip(one, other, strict=False):
        if before.token != after.token:
            fetched = isinstance(after, facts.NumberPredicate | facts.Specialization) and depends_on(after.expr, Fetch)
            return after if fetched or isinstance(after, facts.TensorPredicate) else None
    return None


def tensors_of(recipe: Any) -> list[TensorOf]:
    """Return the tensors of an argument or result, in order."""
    return [part for part in parts_of(recipe) if isinstance(part, TensorOf)]


def call_of(access_path: AccessPath) -> int | None:
    """Return the index of the inner call that returned the value at this path, or None."""
    at = access_path
    while at.base is not None:
        at = at.base
    known = at.step is Step.PARAMETER and at.key.startswith("call ")
    return int(at.key.removeprefix("call ")) if known else None


def calls_of(expr: Any) -> set[int]:
    """Return the inner calls on whose results the number depends."""
    found = (
        {call_of(leaf.access_path) for leaf in leaves(expr) if isinstance(leaf, Read)}
        if isinstance(expr, Expr)
        else set()
    )
    return {call for call in found if call is not None}


def numbers_of(recipe: Any, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Any]]:
    """Return the numbers of a result, in order, each with the keys that lead to it."""
    if isinstance(recipe, Number) or (isinstance(recipe, Constant) and type(recipe.value) in (int, float)):
        return [(path, recipe)]
    inside = _held(recipe) if isinstance(recipe, NewObject) else ()
    return [found for key, part in inside for found in numbers_of(part, (*path, key))]


def _held(recipe: NewObject) -> Iterator[tuple[Any, Recipe]]:
    """Yield the elements of a container or object, in order, each with its key or name."""
    for n, part in enumerate(recipe.items):
        yield (part[0].value, part[1]) if isinstance(part, tuple) else (n, part)
    yield from recipe.named


def numbers_made(made: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the keys that lead to each number in a result of this structure, in order."""
    if type(made) is tuple and made[0] == "number":
        return [path]
    return [found for key, part in parts_made(made) for found in numbers_made(part, (*path, key))]


def result_key(event: InvokeOp, which: int) -> Any:
    """Return the key of the buffer of a tensor that the call returns."""
    return ("result", event.callee, event.made, which)


def given_tensors(event: InvokeOp) -> tuple[Any, ...]:
    """Return the tokens of the callee's access paths to its tensor arguments, in order."""
    return tuple(o.token for name, recipe in event.given for o in places_of(recipe, AccessPath.parameter(name)))


def places_of(recipe: Recipe, access_path: AccessPath) -> Iterator[AccessPath]:
    """Yield the access paths of the tensors in an argument at ``access_path``."""
    if isinstance(recipe, TensorOf):
        yield access_path
    elif isinstance(recipe, NewObject):
        for index, part in enumerate(recipe.items):
            yield from places_of(part, access_path.item(index))
