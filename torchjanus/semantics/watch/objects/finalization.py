"""Finalise a watched run: build recipes for all values that leave the call, and remove traced numbers from them.

During a run, new objects may hold traced numbers. In objects that escape, each is replaced in place by its untraced
value.
"""

from __future__ import annotations

import collections
import enum
import functools
import sys
import types
from typing import Any

import torch

from torchjanus.core.access_path import native_class
from torchjanus.core.errors import Place
from torchjanus.core.kinds import getattr, is_one_of, isinstance, namespace_of
from torchjanus.host.deferred_writes import make_parameter
from torchjanus.rewrite.hooks.lookup import attributes_of
from torchjanus.semantics.containers.parts import is_rewritten, original_code, parts_of, slots_of
from torchjanus.semantics.containers.suspended import is_native_iterator, settle_iterator, settle_variables
from torchjanus.semantics.external.plain_parts import ARGS
from torchjanus.semantics.known.live_views import dictionary_behind, is_view
from torchjanus.semantics.known.trusted import is_settled
from torchjanus.semantics.native.text_expressions import history_of
from torchjanus.semantics.protocols.indexed_iterators import WrappedIterable
from torchjanus.semantics.record.recording import CONSTANT_TYPES, Recording
from torchjanus.semantics.record.variables import variables_of
from torchjanus.semantics.record.write_record import ABSENT
from torchjanus.semantics.torch.sizes import holds_traced
from torchjanus.trace import recipes
from torchjanus.trace.actions import ContainerMutation, Extern, HeapWrite, place_of
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import DisplayedValue, Traced, TracedObject, plain

__all__ = ["Finalization"]

_EFFECTS = (HeapWrite, ContainerMutation, Extern)


class Finalization:
    """Builds the recipes of one run, and finalises the objects that leave it."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.trace = recording.trace
        self._built: dict[int, int] = {}
        self._settled: dict[int, Any] = {}
        self._extern: Extern | None = None  # the extern call whose arguments are being described
        self._write: HeapWrite | ContainerMutation | None = None  # the write whose values are being described
        self._open: set[int] = set()  # numbers of unfinished recipes that are built after their parts

    def settle(self, result: Any) -> Any:
        """Fill in the recipes of the trace. Return ``result`` with untraced numbers."""
        trace = self.trace
        effects = [event for event in trace.events if isinstance(event, _EFFECTS)]
        for event in effects:
            self._write = None if isinstance(event, Extern) else event
            if isinstance(event, HeapWrite):
                computed = (self.recipe(event.key),) if isinstance(event.key, Traced) else ()
                values = () if event.value is ABSENT else (self.recipe(event.value),)
                trace.recipes[id(event)] = (*values, *computed)
            elif isinstance(event, ContainerMutation):
                trace.recipes[id(event)] = tuple(self.recipe(a) for a in event.args)
            elif isinstance(event, Extern):
                self._extern = event
                trace.recipes[id(event)] = tuple(self.recipe(a) for a in (*event.args, *event.kwargs.values()))
                self._extern = None
        self._write = None
        trace.result = self.recipe(result)
        trace.built = self._built
        for event in effects:
            for value in self._parts_of(event):
                self.bare(value)
        for made in self.recording.made_classes:  # reachable through their bases and metaclasses
            self._settle_class(made)
        return self.bare(result)

    def settle_running(self) -> None:
        """Finalise what the run has made so far, except for the values of operations that are under way: what has been
        written to the heap, and what the variables of rewritten code hold."""
        for event in list(self.trace.events):
            if isinstance(event, _EFFECTS):
                for value in self._parts_of(event):
                    self.bare(value)
        frame: types.FrameType | None = sys._getframe()
        while frame is not None:
            if is_rewritten(frame.f_code):
                for value in variables_of(frame).values():
                    self.bare(value)
            frame = frame.f_back

    def _settle_class(self, cls: type) -> None:
        """Remove traced numbers and hooks from the namespace of a class that the run has made."""
        self._settled[id(cls)] = cls
        for name, part in list(namespace_of(cls).items()):
            if (settled := self.bare(part)) is not part:
                type.__setattr__(cls, name, settled)

    @staticmethod
    def _parts_of(event: HeapWrite | ContainerMutation | Extern) -> tuple[Any, ...]:
        if isinstance(event, HeapWrite):
            return () if event.value is ABSENT else (event.value,)
        if isinstance(event, ContainerMutation):
            return event.args
        return (*event.args, *event.kwargs.values())

    def recipe(self, value: Any) -> recipes.Recipe:
        """Return the recipe to make ``value`` at each call. Values without one are refused."""
        if isinstance(value, TracedObject):
            return recipes.ExistingObject(value.expr.access_path)
        if isinstance(value, Traced | DisplayedValue):
            return recipes.Number(value.expr)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, WrappedIterable):
            return self.recipe(self.recording.bare(value))
        if is_one_of(type(value), (int, float)) or (is_one_of(type(value), CONSTANT_TYPES) and not holds_traced(value)):
            return recipes.Constant(value)
        access_path = self.recording.owner(value)
        if access_path is not None:
            return recipes.ExistingObject(access_path)
        number = self._built.get(id(value))
        if number is not None:
            if number in self._open:
                self._refuse(value, "it holds itself, and cannot be made before what it holds.")
            return recipes.ObjectReference(number)
        if type(value) is torch.Size:
            number = self._built[id(value)] = len(self._built)
            self.recording.keep(value)
            return recipes.NewObject(number, torch.Size, tuple(map(self.recipe, value)), ())
        if self._is_constant(value):
            return recipes.Constant(value)
        return self._new(value)

    def _is_constant(self, value: Any) -> bool:
        """Whether a value is the same object at each call."""
        if isinstance(value, type):
            if self.recording.is_new_class(value):
                self._refuse(value, "each call would have to run its class statement again.")
            return True
        if isinstance(value, types.FunctionType):
            # Functions made in the call have rewritten code, or native code has made them.
            return self.recording.was_there(value) or original_code(value.__code__) is value.__code__
        if isinstance(value, types.BuiltinMethodType):
            return isinstance(value.__self__, types.ModuleType | type | None)
        return isinstance(value, enum.Enum) or (is_settled(value) and not isinstance(value, str))

    def _refuse(self, value: Any, why: str) -> None:
        named: Any = value if isinstance(value, type | types.FunctionType) else type(value)
        name = named.__qualname__.rpartition("<locals>.")[2]
        what = "function " if isinstance(value, types.FunctionType) else "class " if isinstance(value, type) else ""
        self.recording.refuse(
            "new-object-leaves",
            f"a new {what}{name} leaves the step",
            why,
            "Return or store tensors, numbers and containers of them.",
            self._place,
        )

    @property
    def _place(self) -> Place | None:
        """The place of the write by a library whose values are being described: no last statement of the step's, which
        would be left to Python without use. None otherwise."""
        return self._write.place if self._write is not None and self._write.place.is_library else None

    def _tensor(self, value: torch.Tensor) -> recipes.Recipe:
        access_path = self.recording.owner(value)
        number = self.recording.number(value)
        if access_path is not None and (self._extern is None or number is None or self.recording.is_as_before(value)):
            return recipes.ExistingObject(access_path)
        if self._extern is not None and number is not None:
            return recipes.TensorAt(TensorRef(number), self._extern.after)
        if number is None:
            self.recording.refuse(
                "tensor-unknown-origin",
                "a tensor leaves the step that no watched operation made",
                "its access path is unknown.",
                "Clone it.",
                self._place,
            )
            return recipes.Constant(None)
        if type(value) is torch.nn.Parameter and _is_bare(value) and self._extern is None:
            if (known := self._built.get(id(value))) is not None:
                return recipes.ObjectReference(known)
            made = self._built[id(value)] = len(self._built)
            self.recording.keep(value)
            parts = recipes.Constant(value.requires_grad), recipes.TensorOf(TensorRef(number))
            return recipes.NewObject(made, torch.nn.Parameter, parts, (), None, make_parameter, ())
        if type(value) is not torch.Tensor:
            stored, written = "", self._write
            if isinstance(written, HeapWrite) and written.how in ("item", "field") and type(written.key) is str:
                stored = f", and it is kept as {place_of(written)}"
            replaces = stored and type(value) is torch.nn.Parameter
            self.recording.refuse(
                "new-object-leaves",
                f"a new {type(value).__name__} leaves the step",
                f"only plain tensors can be made by a graph{stored}.",
                "Write into the old one, under torch.no_grad(): p.copy_(y)." if replaces else "",
                self._place,
            )
        return recipes.TensorOf(TensorRef(number), history_of(value) or "")

    def _new(self, value: Any) -> recipes.Recipe:
        """Return the recipe of an object that the call has made."""
        parts = parts_of(value)
        cls = type(value)
        if not isinstance(parts, str) and self.recording.is_new_class(cls):
            parts = "each call would have to run its class statement again."
        if isinstance(parts, str):
            self._refuse(value, parts)
            return recipes.Constant(None)
        number = self._built[id(value)] = len(self._built)
        self.recording.keep(value)
        opened = self._open
        # Contents of cells are filled in last.
        self._open = set() if cls is types.CellType else opened | {number} if parts.fixed else opened
        if isinstance(value, dict):
            items: tuple[Any, ...] = tuple((self.recipe(k), self.recipe(v)) for k, v in parts.items)
        else:
            same = tuple(recipes.Constant(part) for part in parts.items[: parts.constants])
            items = (*same, *(self._item(value, part) for part in parts.items[parts.constants :]))
        self._open = opened if parts.fixed else self._open
        fields = tuple((descriptor, self.recipe(part)) for descriptor, part in parts.fields)
        attributes = tuple((name, self.recipe(part)) for name, part in (parts.attributes or {}).items())
        self._open = opened
        maxlen = value.maxlen if isinstance(value, collections.deque) else None
        return recipes.NewObject(number, cls, items, attributes, maxlen, parts.make, fields)

    def _item(self, owner: Any, part: Any) -> recipes.Recipe:
        if isinstance(part, types.CellType) and self.recording.holds_cell(owner, part):
            return recipes.Constant(part)
        return self.recipe(part)

    def bare(self, value: Any) -> Any:
        """Return ``value`` without traced numbers. New objects are changed in place; tuples are replaced."""
        if isinstance(value, Traced):
            return plain(value)
        if isinstance(value, WrappedIterable):
            own = self.recording.bare(value)  # the program's iterator, which may hold traced numbers itself
            return own if isinstance(own, WrappedIterable) else self.bare(own)
        if type(value) is torch.Size or isinstance(value, torch.Tensor):
            return self.recording.bare(value)
        if (
            isinstance(value, (type, types.ModuleType, enum.Enum, *CONSTANT_TYPES))
            or is_one_of(type(value), (int, float))
            or self.recording.owner(value) is not None
        ):
            return value
        if isinstance(value, types.FunctionType) and self._is_constant(value):
            return value
        if (bare := self.recording.bare(value)) is not value and not isinstance(value, tuple):
            return bare
        if id(value) in self._settled:
            return self._settled[id(value)]
        self._settled[id(value)] = value
        if isinstance(value, dict):
            items = list(dict.items(value))
            settled_items = [(self.bare(key), self.bare(part)) for key, part in items]
            anew = any(new[0] is not old[0] for new, old in zip(settled_items, items, strict=True))
            if anew:
                dict.clear(value)
            for (key, settled), (_, part) in zip(settled_items, items, strict=True):
                if settled is not part or anew:  # avoids a lookup, which may call methods of the program
                    dict.__setitem__(value, key, settled)
        elif isinstance(value, set):
            for part in [part for part in value if self.bare(part) is not part]:
                value.discard(part)
                value.add(self.bare(part))
        elif isinstance(value, list | collections.deque):
            native = native_class(type(value))
            for index, part in enumerate(list(native.__iter__(value))):
                if (settled := self.bare(part)) is not part:
                    native.__setitem__(value, index, settled)
        elif isinstance(value, tuple):
            for part in value:
                self.bare(part)
            # The heap may have got this tuple already.
            made = self._settled[id(value)] = self.recording.bare(value)
            if made is not value and type(attributes := attributes_of(value)) is dict:
                attributes_of(made).update(attributes)  # those set since
            value = made
        else:
            self._settle_others(value)
        attributes = attributes_of(value)
        if type(attributes) is dict:
            for name, part in list(attributes.items()):
                if (settled := self.bare(part)) is not part:
                    attributes[name] = settled
        for slot in slots_of(type(value)):
            try:
                part = slot.__get__(value, type(value))
            except AttributeError:
                continue  # it is empty
            if (settled := self.bare(part)) is not part:
                slot.__set__(value, settled)
        return value

    def _settle_others(self, value: Any) -> None:
        """Finalise the parts of an instance of a native class."""
        match value:
            case _ if isinstance(value, types.FunctionType):
                code = original_code(value.__code__)
                if code is not None:
                    value.__code__ = code  # functions that leave the step have no hooks
                value.__defaults__ = self.bare(value.__defaults__)
                self.bare(value.__kwdefaults__)
                for cell in value.__closure__ or ():
                    if self.recording.owner(cell) is None:
                        self.bare(cell)
            case _ if isinstance(value, types.CellType):
                try:
                    value.cell_contents = self.bare(value.cell_contents)
                except ValueError:
                    return  # an empty cell
            case _ if is_view(value):
                self.bare(dictionary_behind(value))
            case _ if isinstance(value, staticmethod | classmethod):
                self.bare(value.__func__)
            case _ if isinstance(value, property):
                for part in (value.fget, value.fset, value.fdel):
                    self.bare(part)
            case _ if isinstance(value, types.MethodType | types.BuiltinMethodType):
                self.bare(value.__self__)
                self.bare(getattr(value, "__func__", None))
            case _ if type(value) is functools.partial:
                held = (self.bare(value.func), self.bare(value.args), self.bare(value.keywords))
                value.__setstate__((*held, attributes_of(value)))  # type: ignore[attr-defined]
            case _ if isinstance(value, types.GeneratorType | types.CoroutineType):
                settle_variables(value, self.bare)
            case _ if is_native_iterator(value):
                settle_iterator(value, self.bare)
            case _ if isinstance(value, BaseException):
                given = ARGS.__get__(value)
                bare = self.bare(given)
                if bare is not given:  # bypasses a ``__setattr__`` of the program
                    ARGS.__set__(value, bare)


def _is_bare(parameter: torch.nn.Parameter) -> bool:
    """Whether a parameter is nothing but its contents: it has no gradient, hooks or attributes of Python's."""
    hooks = parameter._backward_hooks or parameter._post_accumulate_grad_hooks
    return parameter.is_leaf and parameter.grad is None and not hooks and not vars(parameter)
