"""The semantics that watches one call: it answers the hooks by its parts, and tells which parts record an operation.

Each part is an attribute with a name: ``heap``, ``items``, ``values``, ``loops``, ``recursion``, ... A method here says
which parts see an operation, and in which order. What they record, and how, is theirs; what Python's protocols do with
an operation before it gets here is ``Protocols``'.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from torchjanus.core.access_path import Step
from torchjanus.core.kinds import isinstance
from torchjanus.rewrite import Site
from torchjanus.rewrite.hooks import Semantics, class_keyword, made_class
from torchjanus.semantics.calls.recursions import Recursions
from torchjanus.semantics.containers.number_rows import Columns
from torchjanus.semantics.containers.releasing import forget
from torchjanus.semantics.known.closed import has_own_compiler
from torchjanus.semantics.native.containers import CONTAINERS
from torchjanus.semantics.native.dispatching import dispatched
from torchjanus.semantics.protocols.conversions import INDEX
from torchjanus.semantics.protocols.falling_back import falling_back
from torchjanus.semantics.protocols.leaves import MISSING, mro_of, on_type
from torchjanus.semantics.protocols.protocols import Protocols
from torchjanus.semantics.protocols.stand_ins import stand_in_for
from torchjanus.semantics.watch.calls.left_native import left_native, without_dynamo
from torchjanus.semantics.watch.calls.passed_on import OF_LEAVES, ResultViews
from torchjanus.semantics.watch.calls.python_calls import PythonCalls
from torchjanus.semantics.watch.calls.recursion import RecursiveCalls
from torchjanus.semantics.watch.loops.columns import NumberLists
from torchjanus.semantics.watch.loops.comprehensions import Comprehensions
from torchjanus.semantics.watch.loops.counted import ForLoops
from torchjanus.semantics.watch.loops.counting_down import Countdowns
from torchjanus.semantics.watch.loops.if_regions import Regions
from torchjanus.semantics.watch.loops.untraced import UntracedValues, text_of_counter
from torchjanus.semantics.watch.loops.while_loops import WhileLoops
from torchjanus.semantics.watch.objects.classes import Classes, stand_in_getter
from torchjanus.semantics.watch.objects.container_reads import ContainerReads
from torchjanus.semantics.watch.objects.errors import Errors
from torchjanus.semantics.watch.objects.foreign import ForeignObjects
from torchjanus.semantics.watch.objects.frame_readers import FrameReaders, in_its_module
from torchjanus.semantics.watch.objects.heap import Heap
from torchjanus.semantics.watch.objects.items import Items
from torchjanus.semantics.watch.objects.looking import records_inspection
from torchjanus.semantics.watch.objects.made_classes import MadeClasses
from torchjanus.semantics.watch.objects.names import Names
from torchjanus.semantics.watch.objects.state import WatchState
from torchjanus.semantics.watch.objects.tensor_indices import TensorIndices, is_index
from torchjanus.semantics.watch.objects.truths import Truth, Truths, is_counted
from torchjanus.semantics.watch.objects.values import Values
from torchjanus.trace.events import Trace

__all__ = ["Watch"]

_HIGHER_ORDER = torch._ops.HigherOrderOperator
# All hooks: where torchjanus fails in one, Python carries out the operation (see ``falling_back``).
_HOOKS = [name for name, hook in vars(Semantics).items() if isinstance(hook, types.FunctionType)]


@falling_back(_HOOKS)
@records_inspection
class Watch(Protocols):
    """The semantics that watches one call."""

    def __init__(self, state: WatchState, outer: Watch | None = None) -> None:
        """``outer``: the watch of the caller, if a recursive call is watched."""
        super().__init__()
        state.connect(self)
        self.state = state
        self.recording = state.recording
        self.framework = state.framework
        self.natives = state.natives
        self.out = state.out
        self.at = state.at
        # objects
        self.errors = Errors(state)
        self.values = Values(state, self.errors)
        self.truths = Truths(state)
        self.classes = Classes(state, self)
        self.heap = Heap(state, self, self.classes)
        self.names = Names(state)
        self.items = Items(state, self, self.errors)
        self.indices = TensorIndices(state, self)
        self.foreign = ForeignObjects(state)
        self.reads = ContainerReads(state)
        self.made_classes = MadeClasses(state)
        # loops
        self.untraced = UntracedValues(state)
        self.loops = ForLoops(state, self.untraced, self.reads)
        self.whiles = WhileLoops(state, self.loops, self._compared)
        self.countdowns = Countdowns(state, self.whiles)
        self.number_lists = NumberLists(state, self.loops, self._loaded_item)
        self.comprehensions = Comprehensions(state)
        self.regions = Regions(state)
        # calls
        self.result_views = ResultViews(state)
        self.recursion: RecursiveCalls = RecursiveCalls(state, self, None if outer is None else outer.recursion)
        self.calls = PythonCalls(state, self.heap, self.recursion)
        self.frames = FrameReaders(state, self.calls.enter_first.__code__)

    def forget(self) -> None:
        """Release everything but the trace, since the run has ended."""
        inner: list[Any] = [code.watch for code in self.framework.code.inner]
        forget([self, *inner], (Recursions, Columns))
        for watch in (self, *inner):
            watch.state.given = (), {}
            watch.calls.member = None
            watch.recording.trace = Trace()
            watch.recording.over = True
        self.recording.called_back.any = False
        self.out.made = self.out.first = None

    # -- calls ----------------------------------------------------------------------------------------------------

    def leave_native(self, fn: Any) -> str | None:
        """Return why a Python function is called natively instead of being entered, or None."""
        return left_native(self.natives, fn) or super().leave_native(fn)

    def enter(self, at: Site, fn: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.calls.enter(at, fn, args, kwargs)

    def call(self, at: Site, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if fn is made_class:
            return self.made_classes.note(at, *args)
        if fn is class_keyword:
            return self.recording.pin(args[0], "is given to a class statement")
        self.calls.find_receiver(fn)
        # A speculated function that another one calls belongs to the caller's trace.
        if isinstance(fn, types.MethodType) and on_type(type(fn.__func__), "__janus_target__") is not MISSING:
            fn, args = fn.__func__, (fn.__self__, *args)
        if on_type(type(fn), "__janus_target__") is not MISSING:
            access_path, fn = self.recording.owner(fn), fn.__janus_target__
            if access_path is not None and type(fn) is not types.FunctionType:
                self.recording.found(access_path.then(Step.FIELD, "fn"), fn)
                self.calls.find_receiver(fn)
        # The class is abstract: isinstance() would hash the program's class by way of its metaclass.
        if type(fn) is not types.FunctionType and any(one is _HIGHER_ORDER for one in mro_of(type(fn))):
            self.at(at)
            return self.natives.unknown(fn, args, kwargs)
        fn = dispatched(self.recording, self, at, stand_in_for(fn, args, kwargs), args)
        if any(type(arg) is Truth for arg in args):
            if (number := self.truths.converted(fn, args, kwargs)) is not None:
                return number
            args = tuple(map(self.truths.decided, args))
        result = super().call(at, fn, args, kwargs)
        return in_its_module(result)

    def instantiate(self, at: Site, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        made = super().instantiate(at, cls, args, kwargs)
        if issubclass(cls, type) and isinstance(made, type) and len(args) > 1:
            self.recording.made_classes.append(made)
        return made

    def call_builtin(self, at: Site, fn: Any, args: Any, kwargs: Any) -> Any:
        tensor = self.number_lists.tensor_of(at, fn, args, kwargs)
        return super().call_builtin(at, fn, args, kwargs) if tensor is None else tensor

    def frame_reader(self, at: Site, owner: dict[str, Any], fn: Any) -> Any:
        return self.frames.frame_reader(at, owner, fn)

    def call_native(self, at: Site, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        try:
            result = self._call_native(at, fn, args, kwargs)
        finally:
            # Applies to this call only: a later extern call may use its result.
            self.natives.externs.dropped = False
        self.whiles.note_call(at, fn, args, kwargs, result)
        return result

    def _call_native(self, at: Site, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self.at(at)
        self.natives.externs.dropped = fn if at is not None and at.kind == "procedure" else False
        if self.natives.is_foreign_function(fn):
            return self.natives.call(fn, args, dict(kwargs))
        if isinstance(fn, types.FunctionType) and (inner := without_dynamo(fn)) is not fn:
            return self.call(at, inner, args, dict(kwargs))
        if isinstance(fn, types.FunctionType) and has_own_compiler(fn):
            return self.natives.unknown(fn, args, dict(kwargs))
        try:
            return self.truths.counted(at, fn, self.natives.call(fn, args, dict(kwargs)))
        except Exception as error:
            self.errors.call_failed(error, fn, args, dict(kwargs))
            raise

    # -- attributes and classes -----------------------------------------------------------------------------------

    def load_attr(self, at: Site, obj: Any, name: str) -> Any:
        if name in OF_LEAVES:
            obj = self.result_views.read(obj, name)
        if self.natives.is_foreign(obj):
            return self.foreign.load_attr(at, obj, name)
        return self.heap.load_attr(at, obj, name)

    def store_attr(self, at: Site, obj: Any, name: str, value: Any) -> None:
        if self.natives.is_foreign(obj):
            self.foreign.change(at, setattr, obj, name, value)
        else:
            self.heap.store_attr(at, obj, name, value)

    def drop_attr(self, at: Site, obj: Any, name: str) -> None:
        if self.natives.is_foreign(obj):
            self.foreign.change(at, delattr, obj, name)
        else:
            self.heap.drop_attr(at, obj, name)

    def plain_attr(self, at: Site, obj: Any, name: str) -> Any:
        return super().plain_attr(at, obj, self.heap.attribute_name(at, name))

    def set_plain_attr(self, at: Site, obj: Any, name: str, value: Any) -> None:
        super().set_plain_attr(at, obj, self.heap.attribute_name(at, name), value)

    def del_plain_attr(self, at: Site, obj: Any, name: str) -> None:
        super().del_plain_attr(at, obj, self.heap.attribute_name(at, name))

    def hides(self, obj: Any, name: str) -> bool:
        hidden = super().hides(obj, name)
        if not hidden:
            self.heap.note_not_hidden(obj, name)
        return hidden

    def make_instance(self, at: Site, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.at(at)
        return super().make_instance(at, cls, self.natives.made_of(cls, args), kwargs)

    def getter(self, raw: Any) -> tuple[Any, Any] | None:
        return stand_in_getter(raw) or super().getter(raw)

    def dunder(self, tp: type, name: str) -> Any:
        found = super().dunder(tp, name)
        if found is None:
            self.classes.note_lookup(tp, name)  # missing or native
        return found

    def note_lookup(self, tp: type, name: str) -> None:
        self.classes.note_lookup(tp, name)

    def note_subclass_check(self, tp: type, kind: Any) -> None:
        self.classes.note_subclass_check(tp, kind)

    # -- names ----------------------------------------------------------------------------------------------------

    def load_global(self, at: Site, owner: dict[str, Any], name: str, value: Any) -> Any:
        return self.names.load_global(at, owner, name, value)

    def store_global(self, at: Site, owner: dict[str, Any], name: str, value: Any) -> Any:
        return self.names.store_global(at, owner, name, value)

    def drop_global(self, at: Site, owner: dict[str, Any], name: str) -> None:
        self.names.drop_global(at, owner, name)

    def load_cell(self, at: Site, cell: types.CellType, name: str, value: Any) -> Any:
        return self.names.load_cell(at, cell, name, value)

    def store_cell(self, at: Site, cell: types.CellType, name: str, value: Any) -> Any:
        return self.names.store_cell(at, cell, name, value)

    def drop_cell(self, at: Site, cell: types.CellType, name: str) -> None:
        self.names.drop_cell(at, cell, name)

    def caught(self, at: Site, exception: BaseException) -> None:
        self.names.caught(at, exception)

    def hashed(self, at: Site, value: Any) -> Any:
        return self.heap.hashed(at, value)

    def claim_defaults(self, fn: types.FunctionType, first: bool = False) -> None:
        self.heap.claim_defaults(fn, first)

    # -- items ----------------------------------------------------------------------------------------------------

    def load_item(self, at: Site, obj: Any, key: Any) -> Any:
        element = self.number_lists.element(at, obj, key)
        return self._loaded_item(at, obj, key) if element is None else element

    def _loaded_item(self, at: Site, obj: Any, key: Any) -> Any:
        self.untraced.note_item(at, obj, key)
        self.reads.note(obj)
        is_foreign = self.natives.is_foreign
        if is_foreign(obj) or (not isinstance(obj, dict | list | tuple) and is_foreign(key)):
            found = self.foreign.load_item(at, obj, key)
        else:
            found = self.items.load_item(at, obj, key)
        self.untraced.note_part(at, obj, key, found)
        self.loops.trip_counts.note_item(obj, key, found)
        return found

    def store_item(self, at: Site, obj: Any, key: Any, value: Any) -> None:
        self.untraced.note_part(at, obj, key)
        self.reads.note(obj)
        if self.natives.is_foreign(obj):
            self.foreign.change(at, operator.setitem, obj, key, value)
        else:
            self.items.store_item(at, obj, key, value)

    def drop_item(self, at: Site, obj: Any, key: Any) -> None:
        self.untraced.note_part(at, obj, key)
        self.reads.note(obj)
        if self.natives.is_foreign(obj):
            self.foreign.change(at, operator.delitem, obj, key)
        else:
            self.items.drop_item(at, obj, key)

    def special_result(self, at: Site, value: Any, names: tuple[str, ...]) -> Any:
        if names == INDEX and is_index(value):
            return self.call_native(at, int, (value,), {})
        return super().special_result(at, value, names)

    def _index(self, at: Site, obj: Any, key: Any) -> Any:
        return self.indices.in_numbers(at, key) if self.natives.is_foreign(obj) else super()._index(at, obj, key)

    # -- values ---------------------------------------------------------------------------------------------------

    def truth(self, at: Site, value: Any) -> bool:
        if at is not None and at.kind == "while" and type(value) is int and self.countdowns.is_answered():
            return bool(value)
        self.untraced.note_truth(at, value)
        self.reads.note(value)
        if self.natives.is_foreign(value):
            return self.foreign.truth(at, value)
        return self.values.truth(at, value)

    def branch(self, at: Site, value: Any) -> bool:
        if is_counted(at):
            value = self.truths.predicate(at, value)
            if type(value) is Truth:
                return True
        return super().branch(at, value)

    def binary(self, at: Site, op: str, a: Any, b: Any) -> Any:
        if type(a) is Truth or type(b) is Truth:
            a, b = self.truths.numbers(a, b)
        return super().binary(at, op, a, b)

    def inplace(self, at: Site, op: str, a: Any, b: Any) -> Any:
        if (truth := self.truths.take_pending(at)) is not None:
            if (added := self.truths.added(truth, op, a, b)) is not None:
                return added
            return super().inplace(at, op, a, b) if self.truths.decide(truth) else a
        if type(b) is Truth:
            a, b = self.truths.numbers(a, b)
        return super().inplace(at, op, a, b)

    def native_binary(self, at: Site, op: str, a: Any, b: Any) -> Any:
        self.untraced.note_operation(at, op, a, b)
        self.reads.note(a, b)
        is_foreign = self.natives.is_foreign(a) or self.natives.is_foreign(b)
        result = (self.foreign.binary if is_foreign else self.values.native_binary)(at, op, a, b)
        self.untraced.note_result(at, (a, b), result)
        return result

    def native_inplace(self, at: Site, op: str, a: Any, b: Any) -> Any:
        self.untraced.note_operation(at, op, a, b)
        self.reads.note(a, b)
        is_foreign = self.natives.is_foreign(a) or self.natives.is_foreign(b)
        result = (self.foreign.inplace if is_foreign else self.values.native_inplace)(at, op, a, b)
        self.untraced.note_result(at, (a, b), result)
        return result

    def native_unary(self, at: Site, op: str, a: Any) -> Any:
        self.untraced.note_made(at, op, a)
        result = (self.foreign.unary if self.natives.is_foreign(a) else self.values.native_unary)(at, op, a)
        self.untraced.note_result(at, (a,), result)
        return result

    def compare(self, at: Site, op: str, a: Any, b: Any) -> Any:
        try:
            return super().compare(at, op, a, b)
        finally:
            self.whiles.end_compare()

    def native_compare(self, at: Site, op: str, a: Any, b: Any) -> Any:
        if op in ("is", "is not"):
            a, b = self.result_views.compared(a, b)
        if at is not None and at.kind == "turning":
            outcome = self.countdowns.compared(op, a, b)
            if outcome is None:
                outcome = self.whiles.predicate(at, op, a, b)
            if outcome is not None:
                return outcome
        return self._compared(at, op, a, b)

    def _compared(self, at: Site, op: str, a: Any, b: Any) -> Any:
        self.untraced.note_compare(at, op, a, b)
        if op not in ("is", "is not"):
            self.reads.note(a, b)
            if self.foreign.is_compared(op, a, b):
                return self.foreign.compare(at, op, a, b)
        return self.values.native_compare(at, op, a, b)

    def native_format(self, at: Site, value: Any, spec: str) -> str:
        counts = type(spec) is str and self.untraced.is_counter(value)
        if not counts:
            self.untraced.note_made(at, f":{spec}", value)
        self.reads.note(value)
        text = self.values.native_format(at, value, spec)
        return text_of_counter(text, value, spec) if counts else text

    def native_text(self, at: Site, value: Any, conversion: str) -> str:
        self.reads.note(value)
        return self.values.native_text(at, value, conversion)

    def join(self, at: Site, pieces: tuple[str, ...]) -> str:
        return self.values.join(at, pieces)

    def one_nan(self, a: Any, b: Any) -> bool:
        return self.values.one_nan(a, b)

    def kind_of(self, value: Any) -> type:
        return self.values.kind_of(value)

    def same_number(self, answer: Any, number: Any) -> Any:
        return self.values.same_number(answer, number)

    # -- iteration ------------------------------------------------------------------------------------------------

    def iterate(self, at: Site, iterable: Any) -> Any:
        self.loops.over = iterable
        self.reads.note(iterable)
        return super().iterate(at, iterable)

    def native_iter(self, at: Site, obj: Any) -> Any:
        return self.number_lists.native_iter(at, obj)

    def descend(self, at: Site, value: Any, op: str, bound: int) -> Any:
        return self.countdowns.descend(at, value, op, bound)

    def making(self, at: Site) -> int:
        return self.comprehensions.making(at)

    def gathered(self, at: Site, value: Any) -> Any:
        return self.comprehensions.gathered(at, value)

    def made(self, at: Site, level: int, container: Any) -> Any:
        return self.comprehensions.made(at, level, container)

    def region(self, at: Site) -> Any:
        return self.regions.region(at)

    def consume(self, at: Site, fn: Any, args: Any, kwargs: Any, where: Any) -> Any:
        rows = self.number_lists.rows_to_zip(at, fn, args, kwargs)
        if not rows:
            return super().consume(at, fn, args, kwargs, where)
        made = super().consume(at, fn, tuple(rows.get(n, part) for n, part in enumerate(args)), kwargs, where)
        self.number_lists.note_zip(made, args, rows)
        return made

    def native_next(self, at: Site, iterator: Iterator[Any]) -> Any:
        if self.natives.is_foreign(iterator):
            return self.foreign.native_next(at, iterator)
        return self.out(super().native_next, at, iterator)

    def next_of(self, at: Site, iterator: Any) -> Any:
        item = super().next_of(at, iterator)
        self.recording.turn(at)
        return item

    def star(self, at: Site, iterable: Any) -> Any:
        several = self._starred(at, iterable)
        # Without a site these are the starred arguments of a ``partial``.
        if at is None or at.kind != "elements":
            return several
        if isinstance(iterable, set | frozenset) or type(iterable) is dict:
            held = self.natives.consumed(iterable)
            self.natives.note_new_keys(*held)
            return held  # a set display takes over hashes, and the order of a table
        return map(self._put_together, several)

    def _put_together(self, key: Any) -> Any:
        self.natives.note_new_keys(key)
        return key

    def _starred(self, at: Site, iterable: Any) -> Any:
        self.at(at)
        iterable = self.natives.live(iterable)
        if self._is_found(iterable) and not self.reaches(iterable):
            return tuple(self.natives.iterable(iterable))
        if self.natives.is_foreign(iterable):
            return tuple(self.natives.iterable(iterable))
        iterable = self.recording.pin(iterable, "its characters are taken")
        self.reads.note(iterable)
        return super().star(at, iterable)

    def _is_found(self, value: Any) -> bool:
        """Whether this is a container that existed before the call."""
        return self.recording.owner(value) is not None and isinstance(value, CONTAINERS)

    def double_star(self, at: Site, mapping: Any) -> Any:
        self.at(at)
        mapping = self.natives.live(mapping)
        if self.recording.owner(mapping) is not None and isinstance(mapping, dict):
            mapping = self.natives.consumed(mapping)
        else:
            mapping = super().double_star(at, mapping)
        if type(mapping) is dict:
            self.natives.note_new_keys(*mapping)
        return mapping

    def unpack(self, at: Site, value: Any, before: int, star: bool, after: int) -> Any:
        self.at(at)
        value = self.natives.live(value)
        if self._is_found(value) and not self.reaches(value):
            value = tuple(self.natives.iterable(value))
        elif self.natives.is_foreign(value):
            value = iter(self.natives.iterable(value))
        value = self.recording.pin(value, "its characters are taken")
        self.reads.note(value)
        return super().unpack(at, value, before, star, after)

    def context(self, at: Site, manager: Any) -> Any:
        context = self.foreign.context(at, manager)
        return super().context(at, manager) if context is None else context
