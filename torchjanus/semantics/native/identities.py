"""Assumptions about the identity of objects, where the program depends on it: ``id(x)``, ``x in seen``, ``memo[x]``,
``x == best``.

The only observable of an object whose class compares by identity is which object it is. For two objects that are
compared, it is assumed that they are the same or different. The keys in containers of this run are assumed to stay
distinct. A key that is looked up in a container from before the call is assumed to be that very object, unless other
calls have looked up other ones. ``id()`` is read like any other number.
"""

from __future__ import annotations

import enum
import operator
import types
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.rewrite.hooks.lookup import on_type
from torchjanus.semantics.record.recording import Recording
from torchjanus.trace.facts import IdentityTest
from torchjanus.trace.values import Apply, Expr, Read, Traced, plain, trace_value

__all__ = [
    "IDENTICAL",
    "IDENTITIES",
    "as_key",
    "compared",
    "hashed",
    "held_as_key",
    "hold_identity",
    "identity_of",
    "varying_object",
    "watch_lookup",
]

_FIXED = (enum.Enum, type, types.ModuleType, types.BuiltinFunctionType)  # reading one assumes its identity
_SEQUENCES = (tuple, list)

IDENTITIES: frozenset[Any] = frozenset({id, hash})  # return the identity of their argument
IDENTICAL: dict[Any, str] = {operator.is_: "is", operator.is_not: "is not"}


def are_distinct(*numbers: int) -> bool:
    """Whether all numbers differ."""
    return len(set(numbers)) == len(numbers)


def identity_of(recording: Recording, fn: Any, args: tuple[Any, ...]) -> Any:
    """Return ``id(x)`` or ``hash(x)`` of an object; NotImplemented where the result depends on its value only."""
    if len(args) != 1:
        return NotImplemented
    if isinstance(args[0], Traced):
        if fn is id:  # of a number, as ``copy.deepcopy()`` calls it: not the id of any object of the call
            recording.new_ids.add(id(args[0]))
        return NotImplemented
    access_path = recording.owner(args[0])
    if access_path is None or isinstance(args[0], _FIXED):
        if fn is id:
            recording.new_ids.add(id(args[0]))
        return NotImplemented
    if fn is hash and not _is_by_identity(args[0], "__hash__"):
        return NotImplemented
    return recording.found(access_path.then(Step.OF, fn), fn(args[0]))


def as_key(recording: Recording, value: Any, why: str) -> Any:
    """Return a key for a container of this run: a constant. An ``id()`` is only assumed to differ from the others."""
    if isinstance(value, Traced) and _is_id(value.expr):
        if not recording.identities:
            recording.unfinished.append(lambda: note_apart(recording))
        recording.identities[plain(value)] = value.expr
        return plain(value)
    return recording.pin(value, why)


def hashed(recording: Recording, value: Traced) -> None:
    """Native code uses a computed value as a key. Which keys are equal decides what the container holds."""
    as_key(recording, value, "used as a key")


def held_as_key(recording: Recording, value: Any) -> bool:
    """Assume that an object used as a key differs from the other keys. Return False if it has its own hash."""
    if id(value) in recording.identities and recording.owner(value) is not None:
        return True  # it was used as a key before, and the run keeps it alive
    if not _is_by_identity(value, "__hash__"):
        return False
    number = identity_of(recording, id, (value,))
    if number is not NotImplemented:
        as_key(recording, number, "used as a key")
    return True


def watch_lookup(recording: Recording, container: Any, key: Any) -> None:
    """Assume that a key that is looked up in a container of this run equals no key that varies."""
    for other in list(container):
        held_as_key(recording, other)
    # In the order of the keys, which is the same in all runs.
    numbers = dict.fromkeys(one for one in (key, *container) if type(one) is int and one not in recording.new_ids)
    ids = [one for one in numbers if one in recording.identities]
    for one in ids if len(ids) < len(numbers) else ():  # any other number may be an id
        recording.pin(trace_value(one, recording.identities[one]), "is looked for among numbers")


def varying_object(recording: Recording, value: Any) -> AccessPath | None:
    """Return the access path of an object that compares by identity, if it is known that other calls find other objects
    there and look them up."""
    access_path = recording.owner(value)
    if access_path is None or not recording.varies(access_path) or isinstance(value, _FIXED):
        return None
    return access_path if _is_by_identity(value, "__hash__") else None


def hold_identity(recording: Recording, value: Any) -> None:
    """Assume that an object that is a key of a container from before the call is that very object."""
    if isinstance(value, tuple):
        for part in value:
            hold_identity(recording, part)
        return
    access_path = recording.owner(value)
    if access_path is None or isinstance(value, _FIXED) or not _is_by_identity(value, "__hash__"):
        return
    if access_path.step is not Step.CONST:
        recording.note_once(IdentityTest(access_path, AccessPath.const(value), True, recording.place))


def compared(recording: Recording, a: Any, b: Any) -> None:
    """Record the comparison by ``==`` of two objects, or of two tuples or lists of them, that compare by identity."""
    if type(a) is type(b) and is_one_of(type(a), _SEQUENCES):
        for one, other in zip(a, b, strict=False):
            compared(recording, one, other)
    elif isinstance(a, types.MethodType) and isinstance(b, types.MethodType):
        compared(recording, a.__self__, b.__self__)
    elif _is_by_identity(a, "__eq__") and _is_by_identity(b, "__eq__"):
        first, second = recording.owner(a), recording.owner(b)
        if first is not None and second is not None and first != second and not isinstance(a, _FIXED):
            recording.note_once(IdentityTest(first, second, a is b, recording.place))


def note_apart(recording: Recording) -> None:
    """At the end of the run, assume that the objects used as keys are distinct in the next call, too."""
    if len(recording.identities) > 1:
        recording.hold(Apply(are_distinct, tuple(recording.identities.values())), True)


def _is_by_identity(value: Any, method: str) -> bool:
    """Whether the value's class inherits this method from ``object``, or hashes a tensor."""
    if isinstance(value, Traced):
        return False
    if isinstance(value, torch.Tensor):
        return method == "__hash__"
    return on_type(type(value), method) is getattr(object, method)


def _is_id(expr: Expr) -> bool:
    return isinstance(expr, Read) and expr.access_path.step is Step.OF and expr.access_path.key in (id, hash)
