"""The end of a watched run: what leaves the call is described by recipes, and holds only real values from now on.

While the run goes on, objects made in it may hold traced numbers. Those that escape are settled here: every traced
number in them is replaced by its plain value, in place.
"""

from __future__ import annotations

import collections
import types
from typing import Any

import torch

from torchjanus.semantics.recording import ABSENT, CONSTANT_TYPES, Recording
from torchjanus.semantics.trusted import is_settled
from torchjanus.trace.events import Extern, Mutation, Stored, TensorRef
from torchjanus.trace.recipes import Again, Build, Constant, FoundAt, Number, Recipe, TensorAt, TensorOf
from torchjanus.trace.values import Described, Traced, plain

__all__ = ["Settlement"]

_SEQUENCES = (list, tuple, set, frozenset, collections.deque)


class Settlement:
    """Describes and settles everything that one run lets out."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.trace = recording.trace
        self._built: dict[int, int] = {}
        self._settled: dict[int, Any] = {}
        self._extern: Extern | None = None  # the extern call whose arguments are being described

    def settle(self, result: Any) -> Any:
        """Fill in the trace's recipes; return ``result`` with plain numbers."""
        trace = self.trace
        for event in trace.events:
            if isinstance(event, Stored):
                if event.value is not ABSENT:
                    trace.recipes[id(event)] = (self.recipe(event.value),)
            elif isinstance(event, Mutation):
                trace.recipes[id(event)] = tuple(self.recipe(a) for a in event.args)
            elif isinstance(event, Extern):
                self._extern = event
                trace.recipes[id(event)] = tuple(self.recipe(a) for a in (*event.args, *event.kwargs.values()))
                self._extern = None
        trace.result = self.recipe(result)
        for event in trace.events:
            if isinstance(event, Stored | Mutation | Extern):
                for value in self._parts_of(event):
                    self.bare(value)
        return self.bare(result)

    @staticmethod
    def _parts_of(event: Stored | Mutation | Extern) -> tuple[Any, ...]:
        if isinstance(event, Stored):
            return () if event.value is ABSENT else (event.value,)
        if isinstance(event, Mutation):
            return event.args
        return (*event.args, *event.kwargs.values())

    def recipe(self, value: Any) -> Recipe:
        """How to make ``value`` again. What cannot be made again is refused."""
        if isinstance(value, Traced | Described):
            return Number(value.expr)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if type(value) in (int, float) or isinstance(value, CONSTANT_TYPES):
            return Constant(value)
        origin = self.recording.owner(value)
        if origin is not None:
            return FoundAt(origin)
        if id(value) in self._built:
            return Again(self._built[id(value)])
        if isinstance(value, types.FunctionType) and not self.recording.was_there(value):
            self.recording.refuse(
                "a new function leaves the step",
                "it holds variables of the call that made it.",
                "Define it outside of the step.",
            )
            return Constant(value)
        if is_settled(value) or isinstance(value, type):
            return Constant(value)
        if isinstance(value, slice):
            return self._build(value, (value.start, value.stop, value.step), ())
        return self._object(value)

    def _tensor(self, value: torch.Tensor) -> Recipe:
        origin = self.recording.owner(value)
        number = self.recording.number(value)
        if origin is not None and (self._extern is None or number is None or self.recording.is_as_before(value)):
            return FoundAt(origin)
        if self._extern is not None and number is not None:
            return TensorAt(TensorRef(number), self._extern.after)
        if number is None:
            self.recording.refuse(
                "a tensor leaves the step that no watched operation made", "its origin is unknown.", "Clone it."
            )
            return Constant(None)
        if type(value) is not torch.Tensor:
            self.recording.refuse(
                f"a new {type(value).__name__} leaves the step", "only plain tensors can be made by a graph.", ""
            )
        return TensorOf(TensorRef(number))

    def _object(self, value: Any) -> Recipe:
        cls = type(value)
        attributes = getattr(value, "__dict__", {})
        if not isinstance(attributes, dict) or not _rebuildable(cls):
            self.recording.refuse(
                f"a new {cls.__qualname__} leaves the step",
                "an object of this class cannot be made again from its parts.",
                "Return or store tensors, numbers and containers of them.",
            )
            return Constant(None)
        if isinstance(value, dict):
            return self._build(value, tuple(dict.items(value)), tuple(attributes.items()))
        if isinstance(value, _SEQUENCES):
            return self._build(value, tuple(value), tuple(attributes.items()))
        return self._build(value, (), tuple(attributes.items()))

    def _build(self, value: Any, items: tuple[Any, ...], attributes: tuple[tuple[str, Any], ...]) -> Build:
        number = self._built[id(value)] = len(self._built)
        self.recording.keep(value)
        if isinstance(value, dict):
            parts: tuple[Any, ...] = tuple((self.recipe(k), self.recipe(v)) for k, v in items)
        else:
            parts = tuple(self.recipe(v) for v in items)
        maxlen = value.maxlen if isinstance(value, collections.deque) else None
        return Build(number, type(value), parts, tuple((n, self.recipe(v)) for n, v in attributes), maxlen)

    def bare(self, value: Any) -> Any:
        """``value`` without traced numbers: containers made in this call are changed in place, tuples made anew."""
        if isinstance(value, Traced):
            return plain(value)
        if (
            isinstance(value, (torch.Tensor, type, types.FunctionType, types.ModuleType, *CONSTANT_TYPES))
            or type(value) in (int, float)
            or self.recording.owner(value) is not None
        ):
            return value
        if id(value) in self._settled:
            return self._settled[id(value)]
        self._settled[id(value)] = value
        if isinstance(value, dict):
            items = list(dict.items(value))
            settled_items = [(self.bare(key), self.bare(part)) for key, part in items]
            if any(new[0] is not old[0] for new, old in zip(settled_items, items, strict=True)):
                dict.clear(value)
            for (key, settled), (_, part) in zip(settled_items, items, strict=True):
                if settled is not part or not dict.__contains__(value, key):
                    dict.__setitem__(value, key, settled)
        elif isinstance(value, set):
            for part in [part for part in value if self.bare(part) is not part]:
                value.discard(part)
                value.add(self.bare(part))
        elif isinstance(value, list | collections.deque):
            for index, part in enumerate(list(value)):
                if (settled := self.bare(part)) is not part:
                    value[index] = settled
        elif isinstance(value, tuple):
            for part in value:
                self.bare(part)
            # The same new tuple that the heap may have got already.
            made = self._settled[id(value)] = self.recording.bare(value)
            return made
        attributes = getattr(value, "__dict__", None)
        if type(attributes) is dict and (_rebuildable(type(value)) or type(value) is types.SimpleNamespace):
            for name, part in list(attributes.items()):
                if (settled := self.bare(part)) is not part:
                    attributes[name] = settled
        for slot in _slots(type(value)):
            part = slot.__get__(value, type(value)) if hasattr(value, slot.__name__) else None
            if (settled := self.bare(part)) is not part:
                slot.__set__(value, settled)
        return value


def _slots(cls: type) -> list[types.MemberDescriptorType]:
    """What ``__slots__`` of classes written in Python made."""
    heap_types = [base for base in cls.__mro__ if base.__flags__ & (1 << 9)]
    return [m for base in heap_types for m in vars(base).values() if isinstance(m, types.MemberDescriptorType)]


def _rebuildable(cls: type) -> bool:
    """Whether instances are all in their attributes and, for containers, their elements."""
    if issubclass(cls, torch.nn.Module | BaseException) or hasattr(cls, "__next__"):
        return False
    if cls in (list, tuple, dict, set, frozenset, slice, collections.deque, collections.OrderedDict):
        return True
    if cls is collections.defaultdict or not cls.__flags__ & (1 << 9):  # a class written in C
        return cls.__module__ == "torch.return_types"
    for base in cls.__mro__[:-1]:
        if base.__dict__.get("__slots__") and not issubclass(cls, tuple):
            return False
        if not base.__flags__ & (1 << 9) and base not in (list, tuple, dict, set, collections.OrderedDict):
            return base.__module__ in ("typing", "abc")
    return True
