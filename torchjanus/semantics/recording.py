"""A trace in the making: which object was found where, and what was written since.

Knows nothing of hooks or of torch functions; the watching semantics and the framework recorder write into it.
"""

from __future__ import annotations

import enum
import inspect
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch

from torchjanus.errors import Place
from torchjanus.origin import Origin, Step, native_class
from torchjanus.rewrite import Anchor
from torchjanus.semantics.call_writes import CallWrites, Counts
from torchjanus.semantics.flags import Flags
from torchjanus.semantics.grown_lists import GrownLists
from torchjanus.semantics.replaced import ReplacedMemory
from torchjanus.semantics.round_states import note_kinds, with_numbers
from torchjanus.semantics.scalar_record import ScalarRecord
from torchjanus.semantics.tallies import Tallies
from torchjanus.semantics.trusted import is_settled, is_trusted_module
from torchjanus.trace.actions import Invoked, Mutation, Stored
from torchjanus.trace.facts import Absent, Filled, Found, Keys, Same
from torchjanus.trace.recipes import TensorOf, parts_of
from torchjanus.trace.values import (
    Expr,
    Read,
    leaves,
    plain,
    trace_value,
)

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


def _place(key: Any) -> Any:
    """What tells places in one container apart: keys, as dictionaries do (1, 1.0 and True are one)."""
    return ("tensor", id(key)) if isinstance(key, torch.Tensor) else plain(key)


def _is_closure(value: Any) -> bool:
    """Whether a value is a function of the user's with variables of its own: another one of the same code may come in
    its place at each call."""
    return (
        type(value) is types.FunctionType
        and bool(value.__closure__)
        and "<locals>" in value.__code__.co_qualname
        and not is_trusted_module(value.__globals__.get("__name__"))
    )


def tensor_detail(tensor: torch.Tensor) -> tuple[Any, ...]:
    """All about a tensor that a graph holds constant: class, dtype, shape, strides, device, autograd flags."""
    with torch._C.DisableTorchFunction():
        nested = tensor.is_nested and tensor.layout == torch.strided  # of these nobody may ask for sizes
        strided = tensor.layout == torch.strided and not nested
        return (
            type(tensor).__name__,
            str(tensor.dtype).removeprefix("torch."),
            () if nested else tuple(tensor.shape),
            tensor.stride() if strided else "nested" if nested else str(tensor.layout),
            str(tensor.device),
            tensor.requires_grad,
            tensor.is_leaf,
        )


def memory_of(tensor: torch.Tensor) -> int:
    """Which memory it lies in; 0 for one of which that is not known."""
    with torch._C.DisableTorchFunction():
        known = tensor.layout == torch.strided and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        return int(tensor.untyped_storage()._cdata) if known else 0


def version_of(tensor: torch.Tensor) -> int:
    """How often it has been changed in place; -1 where that is not counted."""
    with torch._C.DisableTorchFunction():
        return -1 if tensor.is_inference() else tensor._version


def _unchanged(known: Any, value: Any) -> bool:
    """Whether two reads of one place gave the same: scalars by value, containers made by a descriptor by type."""
    if type(known) is not type(value):
        return False
    if isinstance(value, int | float | complex | str | bytes):
        return bool(known == value) or (known != known and value != value)
    return isinstance(value, (*CONSTANT_TYPES, tuple, types.MappingProxyType, types.MethodType))


# Where parts were picked by numbers fetched from tensors, and were not used as copies may be: there a number is held
# constant from then on. As many as there are such places in the program's text.
HELD_NUMBERS: set[Place] = set()


def hold_numbers(places: Iterable[Place | None]) -> None:
    """Hold the numbers constant by which parts are picked at these places."""
    HELD_NUMBERS.update(place for place in places if place is not None)


class Recording(ScalarRecord):
    """One watched run, and the heap as it sees it."""

    def __init__(self, loose: Collection[Origin] = ()) -> None:
        """``loose``: where texts were found that change from call to call."""
        super().__init__()
        self._loose = loose
        self.call_writes = CallWrites()
        self.flags = Flags()
        self.counts = Counts()
        self.lists = GrownLists()
        self.tallies = Tallies()
        # What native code was given, and how to tell whether it has changed since: looked at when the run ends.
        self._handed: list[tuple[Callable[[], bool], str, Place]] = []
        # Numbers of views that are told as copies, and where they were picked by a Python number.
        self.copied: dict[int | None, Place | None] = {}
        self.shapes: dict[int, tuple[int, ...]] = {}  # of tensors from before the call, when they were first seen
        self._versions: dict[int, int] = {}  # of tensors from before the call, when they were first seen
        self._found: dict[Origin, Any] = {}
        # What this run wrote, by the id of the container or object and then by key: reads after it see it.
        self._written: dict[int, dict[Any, Any]] = {}
        self._changed: dict[int, Any] = {}  # objects that it wrote to, in this order
        self._stores: dict[tuple[int, Any], Stored] = {}  # its last write to each place
        self._mutated: set[Origin | None] = set()  # containers that a mutation was recorded of as a whole
        # The run, the recursive call that it is in, and so on to the innermost; and those that have written anything.
        self.chain: list[Recording] = [self]
        self.depth = 0
        self.writers: list[Recording] = []
        # Functions and the like that were there before the call.
        self._functions: set[int] = set()
        self.settled: set[Origin] = set()  # what was found of libraries, and never changes
        self.replaced = ReplacedMemory()

    def finish(self) -> None:
        """Let go of the run's own tensors: only what was there before the call is spoken of from now on."""
        self.check_contexts()
        for note in self.unfinished:
            note()
        self.unfinished.clear()
        for same, what, place in self._handed:
            if not same():
                self.refuse(what, "native code may still see it, and a graph's changes are held back.", "", place)
        trace = self.trace
        if self.replaced.shared(trace.tensors[number] for number in trace.origins):
            what = "'x.data = y' is done to a tensor that shares its memory with another"
            self.refuse(what, "a graph would not know what belongs together at the next call.", "Use x.copy_(y).")
        self._check_leaving()
        with_numbers(trace, self._numbers, self._owners)
        note_kinds(trace)
        trace.memory = self.replaced.joined([memory_of(tensor) for tensor in trace.tensors])
        trace.tensors = [t if n in trace.origins else None for n, t in enumerate(trace.tensors)]

    def refused(self) -> None:
        self.tallies.give_up()

    def forget(self) -> None:
        """The run is over, and only its trace is needed. What watched it refers to itself in circles, and would keep
        what it knew until Python's collector comes by: old gradients, for some steps."""
        self._found.clear()
        self._written.clear()
        self._changed.clear()
        self._stores.clear()
        self.tallies.give_up()
        self._handed.clear()
        self.replaced.clear()

    def _check_leaving(self) -> None:
        trace = self.trace
        recipes = (trace.result, *(recipe for some in trace.recipes.values() for recipe in some))
        made = [part.ref.number for r in recipes if r is not None for part in parts_of(r) if isinstance(part, TensorOf)]
        if shown := [number for number in made if number in self.copied]:
            hold_numbers(self.copied[number] for number in shown)
            self.refuse(
                "a part of a tensor, picked by a tensor, leaves the step",
                "it is a view of that, and a graph gives a copy.",
                "Return a clone, or pick it by a number (tensor[int(index)]): each number has a graph of its own.",
            )
        if self.call_writes.shows(tensor for n in made if (tensor := trace.tensors[n]) is not None):
            self.refuse_call_writes()

    # -- where things come from -----------------------------------------------------------------------------------

    def handed(self, same: Callable[[], bool], what: str) -> None:
        """Native code was given something that must not change until the call ends."""
        self._handed.append((same, what, self.place))

    def is_as_before(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor from before the call has not been changed in place so far."""
        return self._versions.get(id(tensor)) == version_of(tensor) and tensor not in self.replaced

    def is_written(self, value: Any) -> bool:
        """Whether this run has changed the container or the attributes of the object."""
        parts = {id(value), id(getattr(value, "__dict__", None))}
        return not parts.isdisjoint(self._written) or self.owner(value) in self._mutated

    def has_set_flag(self, container: Any, key: Any) -> bool:
        """Whether a flag is what this run wrote there last."""
        return self.knows_write(container, key) and _place(key) in self.flags.at(container)

    def is_changed(self, value: Any) -> bool:
        """Whether this run has changed more of an object than flags, and what calls add up."""
        if self.owner(value) in self._mutated:
            return True
        parts = (value, getattr(value, "__dict__", None))
        return any(
            self._written.get(id(part), {}).keys() - self.flags.at(part) - self.tallies.keys_of(part) for part in parts
        )

    def claim_unless_plain(self, value: Any, origin: Origin) -> None:
        """Remember where an object was found, in a run of which no graph is made."""
        if any(event.value is value for event in self._stores.values()):
            return  # the run itself has put it there: it is settled when the run ends
        if type(value) not in (int, float) and not isinstance(value, CONSTANT_TYPES):
            if callable(value):
                self._functions.add(id(value))
            if self._numbers.get(id(value)) is None:
                self.claim(value, origin)

    def found(
        self, origin: Origin, value: Any, *, trusted: bool = False, kept: bool = False, foreign: bool = False
    ) -> Any:
        """A read of the heap as it was before the call. Returns what the program gets: numbers come back traced.

        ``trusted``: the namespace is a library's own; ``kept``: its owner never puts another object there; ``foreign``:
        only foreign code understands the object.
        """
        if self.lost:
            self.claim_unless_plain(value, origin)
            return value
        self._look_at(origin.base)
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
        if type(value) in weakref.ProxyTypes:
            self.refuse_weak("reads a weak reference that was there before the call")
        result, kind = value, "object"
        detail: Any = None
        if (
            type(value) is int
            or type(value) is float
            or (type(value) is str and (origin.waits_for or origin in self._loose))
        ):
            kind = "number"
            result = trace_value(value, Read(origin))
        elif isinstance(value, CONSTANT_TYPES):
            kind = "constant"
        elif isinstance(value, torch.Tensor):
            kind, detail = "tensor", tensor_detail(value)
            if detail[3] == "nested":
                what = "a tensor of type Tensor with layout nested is read"
                self.refuse(what, "only plain strided tensors go into a graph.", "Convert it before the step.")
            self.shapes.setdefault(id(value), detail[2])
            self._versions.setdefault(id(value), version_of(value))
            if id(value) in self._numbers and id(value) not in self._owners:
                self.refuse(
                    f"{origin} holds a tensor made in this very call",
                    "it was stored by code that is not watched, so its place in the heap cannot be speculated on.",
                    "Store it from Python code.",
                )
        elif _is_closure(value):
            detail = "function"
            self._functions.add(id(value))
            self.held(origin.then(Step.FIELD, "__code__"), value.__code__)
            cells = origin.then(Step.FIELD, "__closure__")
            for index, cell in enumerate(value.__closure__):
                self.claim(cell, cells.item(index))
        elif (
            isinstance(value, enum.Enum | type)
            or (callable(value) and is_settled(value))
            or isinstance(value, type(torch))
        ):
            kind = "pinned"
            self._functions.add(id(value))
            if isinstance(value, type):
                self._functions.update(map(id, (*inspect.getmro(value), *inspect.getmro(type(value)))))
        else:
            kind, detail = "foreign" if foreign else "object", type(value).__qualname__
            self._functions.update(map(id, type(value).__mro__))
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
        else:
            self.settled.add(origin)
        return result

    def has_found(self, origin: Origin) -> bool:
        """Whether what was there before the call has been read."""
        return origin in self._found

    def was_there(self, fn: Any) -> bool:
        """Whether a function was found in the heap, and not made in this run."""
        return id(fn) in self._functions

    def is_new_class(self, cls: type) -> bool:
        """Whether a class was made in this run: a local one that was not found, nor any object of it."""
        return "<locals>" in cls.__qualname__ and id(cls) not in self._functions

    def is_new_function(self, fn: types.FunctionType) -> bool:
        """Whether a function was made in this run, by rewritten code."""
        return id(fn) not in self._functions and any(isinstance(value, Anchor) for value in fn.__code__.co_consts)

    def holds_cell(self, fn: Any, cell: types.CellType) -> bool:
        """Whether a cell in the closure of a new function was there before the call: it is one of its maker's."""
        anchor = next((value for value in fn.__code__.co_consts if isinstance(value, Anchor)), None)
        return anchor is not None and any(cell is known for known in anchor.cells.values())  # type: ignore[attr-defined]

    def held(self, origin: Origin, value: Any, functions: Iterable[Any] = ()) -> None:
        """A graph is right only as long as this very object is found there. ``functions``: that it stands for."""
        self._functions.update(map(id, functions))
        if origin not in self._found:
            self._found[origin] = value
            self.keep(value)
            self.note(Found(origin, value, "pinned", None, place=self.place))

    # -- the heap since the call began ----------------------------------------------------------------------------

    def written(self, container: Any, key: Any) -> Any:
        """What this run wrote there last: a value, ABSENT after a deletion, or KeyError raised if it never wrote."""
        self.tallies.close(self, container, _place(key))
        return self._written[id(container)][_place(key)]

    def has_written(self, container: Any, key: Any) -> bool:
        if self.call_writes.is_stored(container, _place(key), self):
            self.refuse_call_writes()
        return not self.lost and self.knows_write(container, key)

    def _look_at(self, origin: Origin | None) -> None:
        """Something is asked of what was found there."""
        if origin is not None and self.call_writes.is_appended(self._object_at(origin)):
            self.refuse_call_writes()

    def _object_at(self, origin: Origin) -> Any:
        return self._found.get(origin)

    def refuse_call_writes(self) -> None:
        """What recursive calls write is seen in the same step."""
        self.refuse(
            "what recursive calls write to objects is used in the same step",
            "calls are run many at a time, in another order, and their writes are made at the end.",
            "Return it from the call.",
        )
        calls = [event for event in self.trace.events if isinstance(event, Invoked)]
        if calls:  # it is they that cannot be watched each for itself
            calls[-1].call.refusals.append(self.trace.refusals[-1])

    def own_writes(self) -> Iterator[tuple[Any, Any, Any]]:
        """What this run has written to objects: the object, or its dictionary; the name; what is there now."""
        for container in self._changed.values():
            yield from ((container, key, value) for key, value in self._written.get(id(container), {}).items())

    def knows_write(self, container: Any, key: Any) -> bool:
        """Whether this run has written there, be a graph made of it or not."""
        known = self._written.get(id(container))
        return known is not None and _place(key) in known

    def dropping(self, value: Any) -> None:
        """The call is about to drop a reference to something from before it."""
        finalizer = getattr(type(value), "__del__", None)
        if isinstance(finalizer, types.FunctionType) and not is_trusted_module(type(value).__module__):
            self.refuse(
                f"drops a {type(value).__qualname__}, whose class has a __del__",
                "when that runs depends on when the last reference goes, which a graph does not repeat.",
                "Drop it outside of the step.",
            )
            self._forget(value)

    def _forget(self, value: Any) -> None:
        """Hold on to an object no longer, so that it goes when the program lets it go. No graph is made of this run."""
        trace = self.trace
        trace.alive[:] = [kept for kept in trace.alive if kept is not value]
        trace.events[:] = [e for e in trace.events if not (isinstance(e, Found) and e.value is value)]
        self._found = {origin: known for origin, known in self._found.items() if known is not value}
        self._owners.pop(id(value), None)

    def store(self, how: str, container: Any, key: Any, value: Any, base: Origin, *, field: str | None = None) -> None:
        """A write of ``value`` (ABSENT: a deletion) to an object that was there before the call. ``field``: what the
        object itself calls the place."""
        self.tallies.close(self, container, _place(key))
        self.keep(container)
        self.keep(key)
        self.keep(value)
        self._changed[id(container)] = container
        self._wrote(container, key, value)
        self.flags.store(container, _place(key), value, base)
        event = Stored(how, base, field or key, value, self.place)
        self._stores[id(container), _place(key)] = event
        self.note(event)

    def last_store(self, container: Any, key: Any) -> Stored | None:
        """This run's last write to the place."""
        return self._stores.get((id(container), key))

    def tallied_now(self, container: Any, key: Any, value: Any) -> None:
        """Recursive calls have made this of what the run wrote there (see ``tallies``)."""
        self.keep(value)
        self._written[id(container)][key] = value

    def mutate(self, owner: type, method: str, args: tuple[Any, ...], base: Origin) -> None:
        """Record a mutation that has been made: the method is that of ``owner``, a class written in C."""
        self.keep(args)
        self._look_at(base)
        self._mutated.add(base)
        self._writes()
        self.note(Mutation(base, method, args, owner, self.place))

    def forget_writes(self, container: Any) -> None:
        """What was written to single keys is gone, or lies elsewhere now."""
        self._written.pop(id(container), None)
        self.flags.forget(container)

    def now_holds(self, container: Any, key: Any, value: Any) -> None:
        """``container[key]`` is this value (ABSENT: it is gone) since a mutation that is recorded as a whole."""
        self.keep(container)
        self.keep(key)
        self.keep(value)
        self._wrote(container, key, value)
        self.flags.forget(container)

    def _wrote(self, container: Any, key: Any, value: Any) -> None:
        self._written.setdefault(id(container), {})[_place(key)] = value
        self._writes()

    def _writes(self) -> None:
        if not any(writer is self for writer in self.writers):
            self.writers.append(self)

    def may_be_key(self, expr: Expr, base: Origin, value: Any) -> bool:
        """Whether what is found in a container under the expression's value can be an input of a graph,
        whatever the value is: it is no tensor that the host would have to ask. ``base``: where the container was
        found; ``value``: what was found in it."""
        return all(isinstance(leaf, Read) for leaf in leaves(expr))

    def read_key(self, base: Origin, container: Any, key: Any, *, trusted: bool = False, kept: bool = False) -> Any:
        """``container[key]`` of a dictionary, list or tuple found at ``base``; the key exists."""
        if self.has_written(container, key):
            return self.written(container, key)
        return self.found(base.item(key), container[key], trusted=trusted, kept=kept)

    def absent(self, base: Origin, key: Any, present: bool = False) -> None:
        self.note_once(Absent(base, key, present, self.place))

    def filled(self, base: Origin, outcome: bool) -> None:
        self._look_at(base)
        self.note_once(Filled(base, outcome, self.place))

    def keys(self, base: Origin, keys: tuple[Any, ...]) -> None:
        for key in keys:
            self.keep(key)
        self.note_once(Keys(base, keys, self.place))

    def numbers(self, base: Origin, numbers: tuple[Any, ...]) -> Expr:
        """All elements of the sequence at ``base``, as ``numbers_of`` gave them, as one expression."""
        origin = base.then(Step.NUMBERS)
        if origin not in self._found:
            self._found[origin] = numbers
            self.note(Found(origin, numbers, "number", place=self.place))
        return Read(origin)

    def length(self, base: Origin, container: Any) -> Any:
        """``len(container)``, traced."""
        native = native_class(type(container))  # its class may count in its own way
        return self.found(base.then(Step.LEN), len(container) if native is None else native.__len__(container))
