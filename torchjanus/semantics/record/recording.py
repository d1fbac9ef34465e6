"""Record which object a watched run finds at which access path.

The watching semantics and the recorder of torch calls write into it. It knows neither hooks nor torch functions.
"""

from __future__ import annotations

import enum
import inspect
import types
import weakref
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from torchjanus.core.access_path import AccessPath, Step, native_class
from torchjanus.core.errors import Place
from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.rewrite import Anchor
from torchjanus.rewrite.hooks.lookup import MISSING, on_type
from torchjanus.semantics.known.details import memory_of, tensor_detail, version_of
from torchjanus.semantics.known.endings import what_ends
from torchjanus.semantics.known.trusted import is_settled, is_trusted_module
from torchjanus.semantics.protocols.falling_back import noted
from torchjanus.semantics.record.call_writes import Counts
from torchjanus.semantics.record.iteration_states import note_kinds, with_numbers
from torchjanus.semantics.record.output_lists import OutputLists
from torchjanus.semantics.record.replaced_data import ReplacedMemory
from torchjanus.semantics.record.write_record import ABSENT, WriteRecord
from torchjanus.trace.facts import EmptinessTest, HeapRead, IdentityTest, KeyLookup, KeySetRead
from torchjanus.trace.values import Expr, Read, leaves, plain, trace_value

__all__ = ["CONSTANT_TYPES", "Recording"]

CONSTANT_TYPES: tuple[type, ...] = (
    bool, str, bytes, complex, type(None), type(Ellipsis), type(NotImplemented), range, torch.dtype, torch.device,
    torch.layout, torch.memory_format, torch.Size
)  # fmt: skip


def _is_closure(value: Any) -> bool:
    """Whether a value is a closure of the user's code: each call may bring another closure of the same code."""
    return (
        type(value) is types.FunctionType
        and bool(value.__closure__)
        and "<locals>" in value.__code__.co_qualname
        and not is_trusted_module(value.__globals__.get("__name__"))
    )


def _is_bound(value: Any) -> bool:
    """Whether a value is a native method that is bound to a mutable object."""
    if not isinstance(value, types.BuiltinMethodType | types.MethodWrapperType):
        return False
    owner = value.__self__  # of a pybind11 function it is its own record
    constant = owner is None or isinstance(owner, (*CONSTANT_TYPES, int, float, type, types.ModuleType))
    return not constant and on_type(type(owner), value.__name__) is not MISSING


def _unchanged(known: Any, value: Any) -> bool:
    """Whether two reads of one place agree: scalars by value, objects that a descriptor creates by type."""
    if type(known) is not type(value):
        return False
    if isinstance(value, int | float | complex | str | bytes):
        return bool(known == value) or (known != known and value != value)
    return isinstance(value, (*CONSTANT_TYPES, tuple, types.MappingProxyType, types.MethodType))


# Places that index a tensor by a fetched number and use the part in a manner that a copy does not allow. There the
# number is a constant from then on. Bounded by the number of such places in the program's text.
HELD_NUMBERS: set[Place] = set()


def hold_numbers(places: Iterable[Place | None]) -> None:
    """Specialise on the index numbers at these places from the next run on."""
    HELD_NUMBERS.update(place for place in places if place is not None)


# What each method returns where torchjanus itself fails in it: the value that it was given.
_NOTED: dict[str, Callable[..., Any]] = {
    "found": lambda access_path, value, /, **_: value,
    "read_key": lambda base, container, key, /, **_: container[key],
    "length": lambda base, container: len(container),
    "hold": lambda expr, outcome: outcome,
    "computed": lambda value, /, *_, **__: value,
    **dict.fromkeys(
        ("store", "mutate", "absent", "filled", "keys", "held", "hold_argument", "dropping", "refuse", "note_once"),
        lambda *_, **__: None,
    ),
}


@noted(_NOTED)
class Recording(WriteRecord):
    """The record of one watched run with its view of the heap."""

    def __init__(self, loose: Collection[AccessPath] = ()) -> None:
        """``loose``: access paths of strings and looked up objects that vary from call to call: they are traced."""
        super().__init__()
        self.loose = loose
        self.counts = Counts()
        self.lists = OutputLists()
        # Arguments of native calls that must stay unchanged: check, description and place. Checked when the run ends.
        self._native_arguments: list[tuple[Callable[[], bool], str, Place]] = []
        # By tensor number of a view that is recorded as a copy: where a Python number selected it.
        self.copied: dict[int | None, Place | None] = {}
        self.shapes: dict[int, tuple[int, ...]] = {}  # by id of an input tensor: its shape at the first read
        self._versions: dict[int, int] = {}  # by id of an input tensor: its version at the first read
        self._found: dict[AccessPath, Any] = {}
        # Ids of functions, classes and modules that existed before the call.
        self._functions: set[int] = set()
        self.made_classes: list[type] = []
        self.named_tuples: list[type] = []  # made by collections.namedtuple(): no name says that they are local
        self.settled: set[AccessPath] = set()  # reads of libraries that need no guard
        self.replaced = ReplacedMemory()

    def finish(self) -> None:
        """Run the final checks, number the loop states, and release the tensors that the run itself has made."""
        self.check_contexts()
        for note in self.unfinished:
            note()
        self.unfinished.clear()
        if self.ending:
            return
        for same, what, place in self._native_arguments:
            if not same():
                why = "native code may still see it, and a graph's changes are held back."
                self.refuse("native-argument-changed", what, why, place=place)
        trace = self.trace
        if self.replaced.shared(trace.tensors[number] for number in trace.access_paths):
            what = "'x.data = y' is done to a tensor that shares its memory with another"
            self.refuse(
                "data-assignment",
                what,
                "a graph would not know what belongs together at the next call.",
                "Use x.copy_(y).",
            )
        self._check_leaving()
        if self.lifetimes and self.lost:
            self.let_go()
            return
        with_numbers(trace, self._numbers, self._owners, self.variable_changes.made)
        note_kinds(trace)
        trace.memory = self.replaced.joined([memory_of(tensor) for tensor in trace.tensors])
        trace.tensors = [t if n in trace.access_paths else None for n, t in enumerate(trace.tensors)]

    def _check_leaving(self) -> None:
        trace = self.trace
        made = sorted(trace.leaving())
        if shown := [number for number in made if number in self.copied]:
            hold_numbers(self.copied[number] for number in shown)
            self.refuse(
                "index-view",
                "a part of a tensor, picked by a tensor, leaves the step",
                "it is a view of that, and a graph gives a copy.",
                "Return a clone, or pick it by a number (tensor[int(index)]): each number has a graph of its own.",
            )
        if self.call_writes.shows(tensor for n in made if (tensor := trace.tensors[n]) is not None):
            self.refuse_call_writes()

    # -- where things come from -----------------------------------------------------------------------------------

    def hold_argument(self, same: Callable[[], bool], what: str) -> None:
        """Record an argument of native code that must not change until the call ends. ``same`` checks that."""
        if not self.ending:
            self._native_arguments.append((same, what, self.place))

    def version_before(self, tensor: torch.Tensor) -> int | None:
        """Return the version counter of an input tensor at its first read, None if it was not read."""
        return self._versions.get(id(tensor))

    def is_as_before(self, tensor: torch.Tensor) -> bool:
        """Whether an input tensor has not been changed in place so far."""
        return self._versions.get(id(tensor)) == version_of(tensor) and tensor not in self.replaced

    def claim_unless_plain(self, value: Any, access_path: AccessPath) -> None:
        """Record an object's access path in a refused run, unless it is a constant or the run has stored it there."""
        if id(value) in self._put:
            return  # the run has stored it there: it is finalised when the run ends
        if not is_one_of(type(value), (int, float)) and not isinstance(value, CONSTANT_TYPES):
            if callable(value):
                self._functions.add(id(value))
            if self._numbers.get(id(value)) is None:
                self.claim(value, access_path)

    def found(self, access_path: AccessPath, value: Any, *, trusted: bool = False, foreign: bool = False) -> Any:
        """Record a read of the heap as it was before the call. Return what the program gets: numbers are traced.

        ``trusted``: the namespace belongs to a library; ``foreign``: only native code can read the object.
        """
        known = self._found.get(access_path, ABSENT)
        if known is value and not self.trace.refusals and not self.call_writes:
            return value  # an object that this run has read here before
        value = plain(value)  # a generator that an earlier run has begun may hold a number traced by that
        if self.lost:
            self.claim_unless_plain(value, access_path)
            return value
        if self.refuse_view((value,)):
            return value
        self._look_at(access_path.base)
        if known is not ABSENT:
            if known is not value and not _unchanged(plain(known), value):
                self.refuse(
                    "unwatched-change",
                    f"{access_path} was changed by code that is not watched",
                    "native code or another thread has put something else there during the call.",
                    "",
                )
                return value
            return known
        kind, detail = self._kind_of(access_path, value, foreign)
        if self.lifetimes and kind in ("tensor", "object", "foreign") and (ends := what_ends(value, True)):
            self.refuse_ending(f"uses a {type(value).__qualname__}, {ends}", "Use it outside of the step.")
            return value
        result = trace_value(value, Read(access_path)) if kind == "number" else value
        self._found[access_path] = result
        self.keep(value)
        if kind in ("tensor", "object", "foreign"):
            first = self._owners.get(id(value))
            self.claim(value, access_path)
            if first is not None:
                # Two access paths to one object: the graph assumes that they stay aliases.
                self.note(HeapRead(access_path, value, kind, detail, self.place))
                self.note_once(IdentityTest(first, access_path, True, self.place))
                return result
        if not (trusted and (kind in ("pinned", "constant") or is_settled(value))):
            self.note(HeapRead(access_path, value, kind, detail, self.place))
            if kind == "pinned" and _is_bound(value):  # the receiver is found through the method
                self.found(access_path.then(Step.FIELD, "__self__"), value.__self__)
            elif kind == "object":
                self.hold_value(value, access_path)
        else:
            self.settled.add(access_path)
        return result

    def _kind_of(self, access_path: AccessPath, value: Any, foreign: bool) -> tuple[str, Any]:
        """Return the kind of a value at its first read, and the details that become part of its guard."""
        if is_one_of(type(value), weakref.ProxyTypes):
            self.refuse_weak("reads a weak reference that was there before the call")
        changing = type(value) is str and (access_path.waits_for or access_path in self.loose)
        if type(value) is int or type(value) is float or changing:
            return "number", None
        if isinstance(value, CONSTANT_TYPES) and type(value).__dictoffset__ == 0:
            return "constant", None
        if isinstance(value, torch.Tensor):
            return "tensor", self._detail_of(access_path, value)
        if _is_closure(value):
            self._functions.add(id(value))
            self.held(access_path.then(Step.FIELD, "__code__"), value.__code__)
            cells = access_path.then(Step.FIELD, "__closure__")
            for index, cell in enumerate(value.__closure__):
                self.claim(cell, cells.item(index))
            return "object", "function"
        settled = callable(value) and (is_settled(value) or isinstance(value, types.MethodWrapperType))
        if isinstance(value, enum.Enum | type | types.ModuleType) or settled:
            self._functions.add(id(value))
            if isinstance(value, type):
                self._functions.update(map(id, (*inspect.getmro(value), *inspect.getmro(type(value)))))
            return "pinned", None
        if isinstance(value, BaseExceptionGroup):  # ``except*``, str() and split() look into it natively
            return "pinned", None
        self._functions.update(map(id, type(value).__mro__))
        return "foreign" if foreign else "object", type(value).__qualname__

    def _detail_of(self, access_path: AccessPath, tensor: torch.Tensor) -> tuple[Any, ...]:
        """Return ``tensor_detail``, and record shape and version at the first read."""
        detail = tensor_detail(tensor)
        if detail[3] == "nested":
            self.refuse(
                "tensor-uninitialized",
                "a tensor of type Tensor with layout nested is read",
                "only plain strided tensors go into a graph.",
                "Convert it before the step.",
            )
        if is_lazy(tensor):
            what = f"{access_path} is a parameter or buffer that is not initialized yet"
            why = "it gets its shape, its memory and its class in this very call."
            self.refuse("tensor-uninitialized", what, why, "Nothing to do: the next calls find it initialized.")
        self.shapes.setdefault(id(tensor), detail[2])
        self._versions.setdefault(id(tensor), version_of(tensor))
        if id(tensor) in self._numbers and id(tensor) not in self._owners:
            self.refuse(
                "unwatched-tensor",
                f"{access_path} holds a tensor made in this very call",
                "it was stored by code that is not watched, so its place in the heap cannot be speculated on.",
                "Store it from Python code.",
            )
        return detail

    def _object_at(self, access_path: AccessPath) -> Any:
        return self._found.get(access_path)

    def has_found(self, access_path: AccessPath) -> bool:
        """Whether this run has read the value that was there before the call."""
        return access_path in self._found

    def reads(self) -> dict[Any, set[Any]]:
        """Return the reads so far: by token of the container's access path the names read, None for other keys."""
        known: dict[Any, set[Any]] = {}
        for access_path in self._found:
            key = access_path.key if isinstance(access_path.key, str) else None
            known.setdefault((access_path if access_path.base is None else access_path.base).token, set()).add(key)
        for event in self.trace.events:
            if isinstance(event, KeyLookup):
                known.setdefault(event.base.token, set()).add(event.key if isinstance(event.key, str) else None)
            elif isinstance(event, KeySetRead | EmptinessTest):
                known.setdefault(event.access_path.token, set()).add(None)
        return known

    def was_there(self, fn: Any) -> bool:
        """Whether a function existed before the call."""
        return id(fn) in self._functions

    def is_new_class(self, cls: type) -> bool:
        """Whether this run has made a class: it is local, and neither it nor an instance was read from the heap."""
        local = "<locals>" in cls.__qualname__ or any(cls is made for made in self.named_tuples)
        return local and id(cls) not in self._functions

    def is_new_function(self, fn: types.FunctionType) -> bool:
        """Whether rewritten code has made a function in this run."""
        return id(fn) not in self._functions and any(isinstance(value, Anchor) for value in fn.__code__.co_consts)

    def holds_cell(self, fn: Any, cell: types.CellType) -> bool:
        """Whether a cell in the closure of a new function existed before the call: its maker holds it."""
        anchor = next((value for value in fn.__code__.co_consts if isinstance(value, Anchor)), None)
        return anchor is not None and any(cell is known for known in anchor.cells.values())  # type: ignore[attr-defined]

    def held(self, access_path: AccessPath, value: Any, functions: Iterable[Any] = ()) -> None:
        """Record a guard on the identity of the object at a path. ``functions``: functions that the object implies."""
        self._functions.update(map(id, functions))
        if access_path not in self._found and not self.ending:
            self._found[access_path] = value
            self.keep(value)
            self.note(HeapRead(access_path, value, "pinned", None, place=self.place))

    def dropping(self, value: Any) -> None:
        """Refuse if the program may see that a reference to ``value`` is dropped."""
        if ends := what_ends(value):
            self.refuse_ending(f"drops a {type(value).__qualname__}, {ends}", "Drop it outside of the step.")
            self._forget(value)

    def _forget(self, value: Any) -> None:
        """Release an object that the run has stored, so that it goes when the program drops it."""
        self._stores = {where: event for where, event in self._stores.items() if event.value is not value}
        for written in self._written.values():
            for key in [key for key, known in written.items() if known is value]:
                del written[key]
        self.escaped = [one for one in self.escaped if one is not value]

    def let_go(self, found: Iterable[Any] = ()) -> None:
        found, self._found = [*self._found.values(), *found], {}
        self._native_arguments.clear()
        if self.settling is not None:  # afterwards nothing is known of what the run has made
            self.settling()
        super().let_go(found)
        for other in self.chain:
            if not other.ending:  # of the run, or of a recursive call that is still active
                other.let_go()

    # -- what is in containers ------------------------------------------------------------------------------------

    def may_be_key(self, expr: Expr, base: AccessPath, value: Any) -> bool:
        """Whether ``expr`` may index a container as a graph input: it depends on no tensor. ``base``: the container's
        access path; ``value``: the element that was read."""
        return all(isinstance(leaf, Read) for leaf in leaves(expr))

    def read_key(self, base: AccessPath, container: Any, key: Any, *, trusted: bool = False) -> Any:
        """Return ``container[key]`` of a dictionary, list or tuple at ``base``. The key exists."""
        if self.has_written(container, key):
            return self.written(container, key)
        native = native_class(type(container))  # bypass a __getitem__ that is written in Python
        value = container[key] if native is None else native.__getitem__(container, key)
        return self.found(base.item(key), value, trusted=trusted)

    def absent(self, base: AccessPath, key: Any, present: bool = False) -> None:
        self.note_once(KeyLookup(base, key, present, self.place))

    def filled(self, base: AccessPath, outcome: bool) -> None:
        self._look_at(base)
        self.note_once(EmptinessTest(base, outcome, self.place))

    def keys(self, base: AccessPath, keys: tuple[Any, ...]) -> None:
        for key in keys:
            self.keep(key)
        self.note_once(KeySetRead(base, keys, self.place))

    def numbers(self, base: AccessPath, numbers: tuple[Any, ...]) -> Expr:
        """Return one expression for all elements of the sequence at ``base``. ``numbers``: see ``numbers_of``."""
        access_path = base.then(Step.NUMBERS)
        if access_path not in self._found:
            self._found[access_path] = numbers
            self.note(HeapRead(access_path, numbers, "number", place=self.place))
        return Read(access_path)

    def length(self, base: AccessPath, container: Any) -> Any:
        """Return ``len(container)``, traced."""
        native = native_class(type(container))  # bypass a __len__ that is written in Python
        return self.found(base.then(Step.LEN), len(container) if native is None else native.__len__(container))
