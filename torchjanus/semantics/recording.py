"""A trace in the making: which object was found where, which tensor has which number, what was written since.

Knows nothing of hooks or of torch functions; the watching semantics and the framework recorder write into it.
"""

from __future__ import annotations

import contextvars
import types
from collections.abc import Callable
from typing import Any

import torch

from torchjanus.errors import NOWHERE, Place, Refusal
from torchjanus.origin import Origin, Step, token_of
from torchjanus.semantics.trusted import is_settled
from torchjanus.trace.events import (
    Absent,
    Event,
    Filled,
    Found,
    Held,
    Keys,
    Mutation,
    Pinned,
    Same,
    Stored,
    TensorRef,
    Trace,
)
from torchjanus.trace.values import Expr, Read, Traced, TracedFloat, TracedInt, TracedStr, plain, trace_value

__all__ = ["ABSENT", "CONSTANT_TYPES", "Recording", "tensor_detail"]

CONSTANT_TYPES: tuple[type, ...] = (
    bool,
    str,
    bytes,
    complex,
    type(None),
    type(Ellipsis),
    type(NotImplemented),
    range,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Size,
)


class _Absent:
    def __repr__(self) -> str:
        return "<deleted>"


ABSENT = _Absent()


def tensor_detail(tensor: torch.Tensor) -> tuple[Any, ...]:
    """All about a tensor that a graph holds constant: class, dtype, shape, strides, device, autograd flags."""
    with torch._C.DisableTorchFunction():
        strided = tensor.layout == torch.strided
        return (
            type(tensor).__name__,
            str(tensor.dtype).removeprefix("torch."),
            tuple(tensor.shape),
            tensor.stride() if strided else str(tensor.layout),
            str(tensor.device),
            tensor.requires_grad,
            tensor.is_leaf,
        )


def _version(tensor: torch.Tensor) -> int:
    with torch._C.DisableTorchFunction():
        return -1 if tensor.is_inference() else tensor._version


def _unchanged(known: Any, value: Any) -> bool:
    """Whether two reads of one place gave the same: scalars by value, containers made by a descriptor by type."""
    if type(known) is not type(value):
        return False
    if isinstance(value, int | float | complex | str | bytes):
        return bool(known == value) or (known != known and value != value)
    return isinstance(value, (*CONSTANT_TYPES, tuple, types.MappingProxyType, types.MethodType))


class Recording:
    """State of one watched run. Every object whose ``id`` is used as a key is kept alive by ``trace.alive``."""

    def __init__(self) -> None:
        self.trace = Trace()
        self.place: Place = NOWHERE
        self.ops = 0
        self.externs = 0  # extern calls so far
        # What native code was given, and how to tell whether it has changed since: looked at when the run ends.
        self._handed: list[tuple[Callable[[], bool], str, Place]] = []
        self._versions: dict[int, int] = {}  # of tensors from before the call, when they were first seen
        self._found: dict[Origin, Any] = {}
        self._noted: set[Any] = set()
        self._owners: dict[int, Origin] = self.trace.owners
        self._numbers: dict[int, int] = {}
        # What this run wrote, by (id of the container or object, key token): reads after it see it.
        self._contexts: dict[int, tuple[contextvars.ContextVar[Any], Any]] = {}
        self._written: dict[tuple[int, Any], Any] = {}
        # Containers whose keys, length or order this run has changed.
        self.restructured: set[int] = set()

        # Functions and the like that were there before the call.
        self._functions: set[int] = set()
        # Tuples that hold traced numbers, and what the heap holds in their place.
        self._bare_tuples: dict[int, tuple[tuple[Any, ...], tuple[Any, ...]]] = {}

    # -- events ---------------------------------------------------------------------------------------------------

    def note(self, event: Event) -> None:
        self.trace.events.append(event)

    def note_once(self, event: Event) -> None:
        """Record a fact about the heap as it was; facts that are known already are not repeated."""
        token = event.token
        if token not in self._noted:
            self._noted.add(token)
            self.note(event)

    def refuse(self, what: str, why: str, remedy: str = "", place: Place | None = None) -> None:
        """The run goes on for real, but no graph will be made of it."""
        refusal = Refusal(place or self.place, what, why, remedy)
        if refusal not in self.trace.refusals:
            self.trace.refusals.append(refusal)

    def keep(self, value: Any) -> None:
        self.trace.alive.append(value)

    def remember_context(self, variable: contextvars.ContextVar[Any]) -> None:
        """The call is about to change a context variable."""
        self._contexts.setdefault(id(variable), (variable, variable.get(ABSENT)))

    def remembers_context(self, variable: contextvars.ContextVar[Any]) -> bool:
        return id(variable) in self._contexts

    def finish(self) -> None:
        """Let go of the run's own tensors: only what was there before the call is spoken of from now on."""
        for variable, before in self._contexts.values():
            if variable.get(ABSENT) is not before:
                self.refuse(
                    f"the call leaves the context variable '{variable.name}' changed", "that cannot be held back.", ""
                )
        for same, what, place in self._handed:
            if not same():
                self.refuse(what, "native code may still see it, and a graph's changes are held back.", "", place)
        trace = self.trace
        trace.tensors = [t if n in trace.origins else None for n, t in enumerate(trace.tensors)]

    # -- where things come from -----------------------------------------------------------------------------------

    def owner(self, value: Any) -> Origin | None:
        """The path on which this object was found, or None for one made in this run."""
        return self._owners.get(id(value))

    def claim(self, value: Any, origin: Origin) -> None:
        """From now on, ``value`` is the object at ``origin``."""
        if id(value) not in self._owners:
            self._owners[id(value)] = origin
            self.keep(value)

    def handed(self, same: Callable[[], bool], what: str) -> None:
        """Native code was given something that must not change until the call ends."""
        self._handed.append((same, what, self.place))

    def is_as_before(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor from before the call has not been changed in place so far."""
        return self._versions.get(id(tensor)) == _version(tensor)

    def is_written(self, value: Any) -> bool:
        """Whether this run has changed the container or the attributes of the object."""
        parts = {id(value), id(getattr(value, "__dict__", None))}
        return bool(parts & self.restructured) or any(container in parts for container, _ in self._written)

    def found(
        self, origin: Origin, value: Any, *, trusted: bool = False, kept: bool = False, foreign: bool = False
    ) -> Any:
        """A read of the heap as it was before the call. Returns what the program gets: numbers come back traced.

        ``trusted``: the namespace is a library's own; ``kept``: its owner never puts another object there; ``foreign``:
        only foreign code understands the object.
        """
        known = self._found.get(origin, ABSENT)
        if known is not ABSENT:
            if known is not value and not _unchanged(plain(known), value):
                self.refuse(
                    f"{origin} was changed by code that is not watched",
                    "native code or another thread has put something else there during the call.",
                    "",
                )
                return value
            return known
        result, kind = value, "object"
        detail: Any = None
        if type(value) is int or type(value) is float or (type(value) is str and origin.waits_for):
            kind = "number"
            result = trace_value(value, Read(origin))
        elif isinstance(value, CONSTANT_TYPES):
            kind = "constant"
        elif isinstance(value, torch.Tensor):
            kind, detail = "tensor", tensor_detail(value)
            self._versions.setdefault(id(value), _version(value))
            if id(value) in self._numbers and id(value) not in self._owners:
                self.refuse(
                    f"{origin} holds a tensor made in this very call",
                    "it was stored by code that is not watched, so its place in the heap cannot be speculated on.",
                    "Store it from Python code.",
                )
        elif isinstance(value, type) or (callable(value) and is_settled(value)) or isinstance(value, type(torch)):
            kind = "pinned"
            self._functions.add(id(value))
        else:
            kind, detail = "foreign" if foreign else "object", type(value).__qualname__
        self._found[origin] = result
        self.keep(value)
        if kind in ("tensor", "object", "foreign"):
            first = self._owners.get(id(value))
            self.claim(value, origin)
            if first is not None:
                # Two paths to one object: the graph relies on their staying one.
                self.note(Found(origin, value, kind, detail, kept, self.place))
                self.note_once(Same(first, origin, True, self.place))
                return result
        if not (trusted and (kind in ("pinned", "constant") or is_settled(value))):
            self.note(Found(origin, value, kind, detail, kept, self.place))
        return result

    def was_there(self, fn: Any) -> bool:
        """Whether a function was found in the heap, and not made in this run."""
        return id(fn) in self._functions

    def held(self, origin: Origin, value: Any) -> None:
        """A graph is right only as long as this very object is found there."""
        if origin not in self._found:
            self._found[origin] = value
            self.keep(value)
            self.note(Found(origin, value, "pinned", None, place=self.place))

    # -- tensors --------------------------------------------------------------------------------------------------

    def number(self, tensor: torch.Tensor) -> int | None:
        return self._numbers.get(id(tensor))

    def new_tensor(self, tensor: torch.Tensor) -> TensorRef:
        """Number a tensor that a framework call has just made."""
        number = len(self.trace.tensors)
        self._numbers[id(tensor)] = number
        self.trace.tensors.append(tensor)
        return TensorRef(number)

    def input_tensor(self, tensor: torch.Tensor, origin: Origin) -> TensorRef:
        """Number a tensor that was there before the call."""
        ref = self.new_tensor(tensor)
        self.trace.origins[ref.number] = origin
        return ref

    # -- numbers --------------------------------------------------------------------------------------------------

    def bare(self, value: Any) -> Any:
        """What the real heap gets for ``value``: plain numbers, also in tuples, since those cannot be settled later."""
        if isinstance(value, Traced):
            return plain(value)
        if not isinstance(value, tuple) or self.owner(value) is not None or isinstance(value, torch.Size):
            return value
        known = self._bare_tuples.get(id(value))
        if known is None:
            parts = [self.bare(part) for part in value]
            same = all(new is old for new, old in zip(parts, value, strict=True))
            made = value if same else tuple.__new__(type(value), parts)
            known = self._bare_tuples[id(value)] = (value, made)
        return known[1]

    def pin(self, value: Any, why: str) -> Any:
        """The bare value of a traced one; the trace remembers that only this value will do."""
        if isinstance(value, TracedInt | TracedFloat | TracedStr):
            bare = plain(value)
            self.note_once(Pinned(value.expr, bare, self.place, why))
            return bare
        return value

    def hold(self, expr: Expr, outcome: bool) -> bool:
        self.note_once(Held(expr, outcome, self.place))
        return outcome

    # -- the heap since the call began ----------------------------------------------------------------------------

    def written(self, container: Any, key: Any) -> Any:
        """What this run wrote there last: a value, ABSENT after a deletion, or KeyError raised if it never wrote."""
        return self._written[(id(container), token_of(key))]

    def has_written(self, container: Any, key: Any) -> bool:
        return (id(container), token_of(key)) in self._written

    def store(self, how: str, container: Any, key: Any, value: Any, base: Origin) -> None:
        """A write of ``value`` (ABSENT: a deletion) to an object that was there before the call."""
        self.keep(container)
        self.keep(key)
        self.keep(value)
        self._written[(id(container), token_of(key))] = value
        self.note(Stored(how, base, key, value, self.place))

    def mutate(self, container: Any, method: str, args: tuple[Any, ...], base: Origin) -> None:
        """Record a mutation that has been made."""
        self.keep(args)
        self.restructured.add(id(container))
        self.note(Mutation(base, method, args, self.place))

    def read_key(self, base: Origin, container: Any, key: Any, *, trusted: bool = False, kept: bool = False) -> Any:
        """``container[key]`` of a dictionary, list or tuple found at ``base``; the key exists."""
        if self.has_written(container, key):
            return self.written(container, key)
        return self.found(base.item(key), container[key], trusted=trusted, kept=kept)

    def absent(self, base: Origin, key: Any, present: bool = False) -> None:
        self.note_once(Absent(base, key, present, self.place))

    def filled(self, base: Origin, outcome: bool) -> None:
        self.note_once(Filled(base, outcome, self.place))

    def keys(self, base: Origin, keys: tuple[Any, ...]) -> None:
        for key in keys:
            self.keep(key)
        self.note_once(Keys(base, keys, self.place))

    def length(self, base: Origin, container: Any) -> Any:
        """``len(container)``, traced."""
        return self.found(base.then(Step.LEN), len(container))
