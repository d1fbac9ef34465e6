"""The semantics that watches one call: it answers the hooks by its parts, and tells which parts record an operation.

Each part is an attribute with a name: ``heap``, ``items``, ``values``, ``loops``, ``recursion``, ... What one part
answers alone is in a table. A method here says which parts see an operation, and in which order. What they record, and
how, is theirs; what Python's protocols do with an operation before it gets here is ``Protocols``'.
"""

from __future__ import annotations

import collections
import operator
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from torchjanus.core.kinds import isinstance
from torchjanus.rewrite import Site
from torchjanus.rewrite.hooks import Semantics, class_keyword, made_class
from torchjanus.semantics.known.closed import has_own_compiler
from torchjanus.semantics.native.dispatching import dispatched
from torchjanus.semantics.protocols.conversions import INDEX
from torchjanus.semantics.protocols.falling_back import falling_back
from torchjanus.semantics.protocols.leaves import mro_of
from torchjanus.semantics.protocols.protocols import Protocols
from torchjanus.semantics.protocols.stand_ins import stand_in_for
from torchjanus.semantics.watch.calls.left_native import left_native, without_dynamo
from torchjanus.semantics.watch.calls.passed_on import OF_LEAVES, ResultViews
from torchjanus.semantics.watch.calls.python_calls import PythonCalls
from torchjanus.semantics.watch.calls.recursion import RecursiveCalls
from torchjanus.semantics.watch.forwarding import answered_by
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
from torchjanus.semantics.watch.objects.unpacking import Unpacking
from torchjanus.semantics.watch.objects.values import Values

__all__ = ["Watch"]

_PLAIN_CALLABLES = frozenset(map(id, (types.FunctionType, types.MethodType, types.BuiltinFunctionType, type)))
_HIGHER_ORDER = torch._ops.HigherOrderOperator
# All hooks: where torchjanus fails in one, Python carries out the operation (see ``falling_back``).
_HOOKS = [name for name, hook in vars(Semantics).items() if isinstance(hook, types.FunctionType)]
_Binary = Callable[[Site, str, Any, Any], Any]
# Hooks and leaves that one part answers alone.
_ANSWERED = {
    "calls": "enter",
    "classes": "note_lookup note_subclass_check",
    "comprehensions": "making gathered made",
    "countdowns": "descend",
    "frames": "frame_reader",
    "heap": "hashed",
    "names": "load_global store_global drop_global load_cell store_cell drop_cell caught",
    "number_lists": "native_iter",
    "regions": "region",
    "values": "join kind_of same_number",
}


@falling_back(_HOOKS)
@records_inspection
@answered_by(_ANSWERED)
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
        self.unpacking = Unpacking(state, self, self.reads)
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

    # -- calls ----------------------------------------------------------------------------------------------------

    def leave_native(self, fn: Any) -> str | None:
        """Return why a Python function is called natively instead of being entered, or None."""
        return left_native(self.natives, fn) or super().leave_native(fn)

    def call(self, at: Site, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if fn is made_class:
            return self.made_classes.note(at, *args)
        if fn is class_keyword:
            return self.recording.pin(args[0], "is given to a class statement")
        if fn is collections.namedtuple and (made := self.made_classes.named_tuple(at, args, kwargs)) is not None:
            return made
        fn, args = self.calls.target(fn, args)
        # The class is abstract: isinstance() would hash the program's class through its metaclass.
        if id(type(fn)) not in _PLAIN_CALLABLES and any(one is _HIGHER_ORDER for one in mro_of(type(fn))):
            self.at(at)
            return self.natives.unknown(fn, args, kwargs)
        fn = dispatched(self.recording, self, at, stand_in_for(fn, args, kwargs), args)
        if any(type(arg) is Truth for arg in args):
            if (number := self.truths.converted(fn, args, kwargs)) is not None:
                return number
            args = tuple(map(self.truths.decided, args))
        return in_its_module(super().call(at, fn, args, kwargs))

    def instantiate(self, at: Site, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        made = super().instantiate(at, cls, args, kwargs)
        if issubclass(cls, type) and isinstance(made, type) and len(args) > 1:
            self.made_classes.note(at, made, watched=True)
        return made

    def call_builtin(self, at: Site, fn: Any, args: Any, kwargs: Any) -> Any:
        tensor = self.number_lists.tensor_of(at, fn, args, kwargs)
        return super().call_builtin(at, fn, args, kwargs) if tensor is None else tensor

    def call_native(self, at: Site, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        try:
            result = self._call_native(at, fn, args, kwargs)
        finally:
            # Applies to this call only: a later extern call may use its result.
            self.natives.externs.dropped = self.natives.externs.entered = False
        self.whiles.note_call(at, fn, args, kwargs, result)
        return result

    def _call_native(self, at: Site, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self.at(at)
        self.natives.externs.record_call_site(at, fn)
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

    # -- attributes, classes and items ----------------------------------------------------------------------------

    def load_attr(self, at: Site, obj: Any, name: str) -> Any:
        if name in OF_LEAVES:
            obj = self.result_views.read(obj, name)
        if self.natives.is_foreign(obj):
            return self.foreign.load_attr(at, obj, name)
        return self.heap.load_attr(at, obj, name)

    def store_attr(self, at: Site, obj: Any, name: str, value: Any) -> None:
        self._change(at, setattr, self.heap.store_attr, obj, name, value)

    def drop_attr(self, at: Site, obj: Any, name: str) -> None:
        self._change(at, delattr, self.heap.drop_attr, obj, name)

    def _change(
        self, at: Site, foreign: Callable[..., None], native: Callable[..., None], obj: Any, *rest: Any
    ) -> None:
        """Store or delete an attribute or item."""
        if self.natives.is_foreign(obj):
            self.foreign.change(at, foreign, obj, *rest)
        else:
            native(at, obj, *rest)

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

    def claim_defaults(self, fn: types.FunctionType) -> None:
        self.heap.claim_defaults(fn)

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
        self._note_change(at, obj, key)
        self._change(at, operator.setitem, self.items.store_item, obj, key, value)

    def drop_item(self, at: Site, obj: Any, key: Any) -> None:
        self._note_change(at, obj, key)
        self._change(at, operator.delitem, self.items.drop_item, obj, key)

    def _note_change(self, at: Site, obj: Any, key: Any) -> None:
        self.untraced.note_changed_item(at, obj, key)
        self.reads.note(obj)

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
        return self._operated(at, op, a, b, self.foreign.binary, self.values.native_binary)

    def native_inplace(self, at: Site, op: str, a: Any, b: Any) -> Any:
        return self._operated(at, op, a, b, self.foreign.inplace, self.values.native_inplace)

    def _operated(self, at: Site, op: str, a: Any, b: Any, foreign: _Binary, native: _Binary) -> Any:
        self.untraced.note_operation(at, op, a, b)
        self.reads.note(a, b)
        is_foreign = self.foreign.computes(op, a, b)
        result = (foreign if is_foreign else native)(at, op, a, b)
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
        if at is not None and at.kind == "loop_test":
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

    def one_nan(self, a: Any, b: Any) -> bool:
        return self.values.one_nan(a, b)

    # -- iteration ------------------------------------------------------------------------------------------------

    def iterate(self, at: Site, iterable: Any) -> Any:
        self.loops.over = iterable
        self.reads.note(iterable)
        return super().iterate(at, iterable)

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
        return self.unpacking.star(at, iterable, super().star)

    def double_star(self, at: Site, mapping: Any) -> Any:
        return self.unpacking.double_star(at, mapping, super().double_star)

    def unpack(self, at: Site, value: Any, before: int, star: bool, after: int) -> Any:
        return super().unpack(at, self.unpacking.source(at, value), before, star, after)

    def context(self, at: Site, manager: Any) -> Any:
        context = self.foreign.context(at, manager)
        return super().context(at, manager) if context is None else context
