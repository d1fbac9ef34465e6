"""Native calls on foreign objects and of foreign functions, which are extern calls.

``foreign`` defines what is foreign and what is known of its effects. ``extern_calls`` makes and records the calls.
"""

from __future__ import annotations

import operator
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath
from torchjanus.core.kinds import getattr, hasattr, is_one_of, isinstance, module_of
from torchjanus.host.journal import Journal, method
from torchjanus.rewrite.hooks.lookup import attributes_of
from torchjanus.semantics.containers.shadows import SequenceShadow
from torchjanus.semantics.external.collectives import Collectives
from torchjanus.semantics.external.data_parallel import DataParallel
from torchjanus.semantics.external.extern_calls import ExternCalls, take
from torchjanus.semantics.external.host_functions import host_effects
from torchjanus.semantics.external.logs import with_program_line
from torchjanus.semantics.external.print_calls import PrintCalls
from torchjanus.semantics.known.callers import searches
from torchjanus.semantics.known.consumers import iterated
from torchjanus.semantics.known.foreign import (
    foreign_verdict,
    is_foreign_function,
    is_left_to_host,
    is_numpy_scalar,
    only_makes_tensor,
)
from torchjanus.semantics.known.foreign_effects import (
    ARRAYS,
    GENERATOR_FUNCTIONS,
    OUTPUT,
    draw_places,
    effects_of,
    is_draw,
)
from torchjanus.semantics.known.host_memory import bounds_of
from torchjanus.semantics.known.live_views import dictionary_behind, is_view
from torchjanus.semantics.native.comparisons import generated_fields
from torchjanus.semantics.native.containers import WatchHooks
from torchjanus.semantics.native.methods import NativeMethods
from torchjanus.semantics.native.shown_parts import SHOWN, text_by_python
from torchjanus.semantics.native.texts import CONVERSIONS
from torchjanus.semantics.record.recording import Recording
from torchjanus.semantics.torch.dynamic_index import DynamicIndexWatch
from torchjanus.semantics.torch.framework import FrameworkRecorder
from torchjanus.semantics.torch.packed_sequences import PackedSequences
from torchjanus.semantics.torch.selections import Selections
from torchjanus.trace.effects import ATTRIBUTES, PURE, Effects
from torchjanus.trace.values import Apply, Read, Traced, plain, trace_value

__all__ = ["FOREIGN_ANSWERS", "ForeignCalls"]

# Builtins that run foreign code when they are given a foreign object.
_ASKING: frozenset[Any] = frozenset(
    {len, float, int, bool, complex, abs, round, divmod, pow, hash, min, max, sum, sorted, repr, str, ascii, reversed}
    | {bytes, bytearray}
)
_USING_UP: frozenset[Any] = frozenset({list, tuple, set, frozenset, dict, enumerate, zip, map, filter, any, all})
FOREIGN_ANSWERS: frozenset[Any] = _ASKING | _USING_UP | {next, operator.contains}


def _may_change(value: Any) -> bool:
    """Whether a foreign object can change later in the call. NumPy scalars that are no views cannot."""
    own = is_numpy_scalar(value) and getattr(value, "base", None) is None
    return not own and bounds_of(value) is not None


def _text_by_library(value: Any) -> bool:
    """Whether Python code that is not entered makes the text of an object of which native code is asked for it."""
    cls = type(value)
    return text_by_python(cls) and not isinstance(value, BaseException) and generated_fields(cls, "__repr__") is None


def _is_array(value: Any) -> bool:
    return type(value).__name__ == "ndarray" and module_of(type(value)) == "numpy"


def _drawn_from(fn: Any, args: tuple[Any, ...]) -> Any:
    """Return the sequence argument of ``random.Random.sample`` or the like; None if it is passed by name."""
    place = 0 if isinstance(fn, types.MethodType) else 1
    return args[place] if len(args) > place else None


class ForeignCalls(NativeMethods):
    """Extern calls for the native calls of one watched run."""

    def __init__(self, recording: Recording, framework: FrameworkRecorder, watch: WatchHooks, journal: Journal) -> None:
        super().__init__(recording, framework, watch)
        self.externs = ExternCalls(recording, framework, journal)
        self.collectives = Collectives(framework, self.externs, watch)
        self.data_parallel = DataParallel(self.collectives, journal)
        self.prints = PrintCalls(recording, watch, self.extern, self.is_foreign)
        framework.reductions = self.data_parallel
        framework.share_memory = self._share_memory
        framework.arguments.convert_foreign = self._convert_foreign

        def call(fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            return framework.call(fn, args, kwargs)

        def really(make: Any, fn: Any, *args: Any) -> Any:
            return framework.recorded_as(make, fn, args)

        def holds(op: str, one: Any, other: Any) -> None:
            watch.branch(None, watch.compare(None, op, one, other))

        framework.picks = DynamicIndexWatch(recording, call, really)
        framework.selections = Selections(
            self._selected,
            call,
            really,
            holds,
            framework.picks,
            lambda tensor: recording.owner(tensor) is not None,
        )
        framework.packs = PackedSequences(recording, self._selected, call, really, framework.selections.plain, holds)

    def is_foreign(self, value: Any) -> bool:
        verdict = foreign_verdict(type(value))
        if verdict is not None:
            return verdict
        if is_view(value) and dictionary_behind(value) is not None:
            return False
        return self.recording.owner(value) is not None

    def is_foreign_function(self, fn: Any) -> bool:
        """Whether the function or class is defined in a module that is not entered."""
        if is_one_of(getattr(fn, "__wrapped__", fn), GENERATOR_FUNCTIONS):
            return True
        return is_foreign_function(fn) and getattr(fn, "__module__", None) != "torch.random"

    def host_effects_of(self, fn: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Effects | None:
        """Return the effects of a user's function that the host can call as a whole; None if it has to be entered."""
        given = (*args, *kwargs.values())
        arrays = [value for value in given if type(value).__name__ == "ndarray" and self.is_foreign(value)]
        plain = all(isinstance(v, int | float | str | type(None)) or any(v is a for a in arrays) for v in given)
        return host_effects(fn) if arrays and plain else None

    # -- memory that is shared ------------------------------------------------------------------------------------

    def takes_arrays(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call makes a tensor of foreign memory: it takes an array and no tensor."""
        given = (*args, *kwargs.values())
        if any(isinstance(value, torch.Tensor) for value in given):
            return False
        return any(self.is_foreign(value) and not is_numpy_scalar(value) for value in given)

    def holds_arrays(self, value: Any) -> bool:
        """Whether nested lists hold arrays or NumPy scalars, and no tensors."""
        parts = list(self._parts(value))
        return any(map(self.is_foreign, parts)) and not any(isinstance(part, torch.Tensor) for part in parts)

    def _parts(self, value: Any) -> Iterator[Any]:
        if is_one_of(type(value), (list, tuple)):
            for part in value:
                yield from self._parts(part)
        else:
            yield value

    def as_tensors(self, value: Any) -> Any:
        """Return nested lists with tensors of the same dtype in place of NumPy values."""
        if is_one_of(type(value), (list, tuple)):
            parts = [self.as_tensors(part) for part in value]
            return type(value)(parts) if any(map(operator.is_not, parts, value)) else value
        return self.extern(torch.as_tensor, (value,), {}) if self.is_foreign(value) else value

    def _share_memory(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return a tensor's memory as an array."""
        tensor, rest = args[0], args[1:]
        self.framework.ref(tensor, "Tensor.numpy")
        # The call only shares the memory: later calls on the array read the contents.
        return self.externs.make(method(fn.__name__), (tensor, *rest), kwargs, ARRAYS, shares=True)

    def _convert_foreign(self, value: Any) -> Any:
        """Return a foreign value that is passed to a framework call beside tensors as a number or tensor."""
        if is_numpy_scalar(value):
            kind = type(value.item())
            if kind in (int, float):  # numpy.bool is a floating-point number to most operators, and no flag to others
                return self.extern(kind, (value,), {})
        elif type(value).__name__ == "ndarray" and self.is_foreign(value):
            return self.extern(torch.tensor, (value,), {})  # a copy: the array may change before the graph runs
        return value

    def _selected(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Return what the host computes from the contents of tensors."""
        return self.extern(fn, args, kwargs, PURE)

    # -- extern calls ---------------------------------------------------------------------------------------------

    def extern(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], effects: Effects | None = None) -> Any:
        """Leave the call to the host."""
        if searches(fn, (*args, *kwargs.values())):
            return self.unknown(fn, args, kwargs)
        self.externs.note_dropped(fn)
        if effects is None:
            owner, name = getattr(fn, "__self__", None), getattr(fn, "__name__", "")
            if owner is None and args and getattr(type(args[0]), name, None) is fn:
                owner = args[0]  # an unbound method
            effects = ARRAYS if only_makes_tensor(fn, args, kwargs) else effects_of(fn, name, owner, kwargs)
        for value in (*args, *kwargs.values()):
            self._claim(value)
        if is_draw(fn) and (shadow := self.shadows.of(_drawn_from(fn, args))) is not None:
            return self._drawn(fn, shadow, args, kwargs, effects)
        fn = with_program_line(self.recording, fn, kwargs)
        if effects is not OUTPUT:
            return self.externs.make(fn, args, kwargs, effects)
        # A call that only shows its arguments is given expressions of their texts, computed when the graph has run.
        shown = tuple(map(self.described, args)), {key: self.described(value) for key, value in kwargs.items()}
        with self.framework.showing((args, kwargs)):
            return self.externs.make(fn, args, kwargs, effects, at_commit=shown)

    def _drawn(
        self, fn: Any, shadow: SequenceShadow, args: tuple[Any, ...], kwargs: dict[str, Any], effects: Effects
    ) -> Any:
        """Draw elements of a container that the step has changed. Native code would see the container before the
        changes, so it draws indices instead."""
        generator, rest = (fn.__self__, args[1:]) if isinstance(fn, types.MethodType) else (args[0], args[2:])
        places = self.extern(draw_places, (generator, fn.__name__, shadow.length(), *rest), kwargs, effects)
        if fn.__name__ == "choice":
            return self.watch.load_item(None, shadow.container, places)
        return [self.watch.load_item(None, shadow.container, place) for place in self.iterable(places)]

    def _claim(self, value: Any) -> None:
        """Make a foreign object without an access path a constant. It is from before the call, or no graph is made: the
        next call makes another one."""
        if self.recording.owner(value) is None and self.is_foreign(value):
            namespace = attributes_of(value)
            for name, part in [*namespace.items()] if type(namespace) is dict else ():
                if isinstance(part, Traced):  # Python code of the library that was entered has made it
                    namespace[name] = plain(part)
            self.recording.claim(value, AccessPath.const(value))

    def foreign_method(self, fn: Any, owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name == "__next__" and not args:
            return self.take_next(owner)
        self.externs.note_dropped(fn)
        self._claim(owner)
        return self.extern(method(name), (owner, *args), kwargs, effects_of(fn, name, owner, kwargs))

    def foreign_attribute(self, obj: Any, name: str) -> Any:
        """Return ``obj.name``. Looking up a method is not an extern call; calling it is."""
        try:
            value = getattr(obj, name)
        except AttributeError:
            self.extern(hasattr, (obj, name), {}, ATTRIBUTES)  # a later call may find it
            raise
        if name in (attributes_of(obj) or ()):  # a later call may not find it
            self.extern(hasattr, (obj, name), {}, ATTRIBUTES)
            return self.extern(getattr, (obj, name), {}, ATTRIBUTES)
        if callable(value) and getattr(value, "__self__", None) is obj:
            self._claim(obj)
            return value
        return self.foreign_operation(getattr, "__getattribute__", (obj, name))

    def foreign_operation(self, fn: Callable[..., Any], name: str, values: tuple[Any, ...]) -> Any:
        """Call an operator or builtin with a foreign operand."""
        if any(isinstance(value, torch.Tensor) for value in values):
            if any(map(_is_array, values[:1])) or any(_is_array(value) and not value.ndim for value in values):
                self.recording.refuse(
                    "array-operator",
                    f"{name} of an array and a tensor is left to NumPy",
                    "what it makes of the tensor is not part of a graph.",
                    "Make a tensor of the array first.",
                )
                return fn(*values)
            values = tuple(self._convert_foreign(value) for value in values)
            if not any(self.is_foreign(value) for value in values):
                return fn(*values)
        owner = next((value for value in values if self.is_foreign(value)), None)
        if any(isinstance(v, Traced) for v in values) and isinstance(values[0], str):
            values = tuple(self.recording.pin(v, "operand") for v in values)
        return self.extern(fn, values, {}, effects_of(fn, name, owner))

    def call_on_foreign(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if fn is next:
            return self.take_next(*args)
        if is_one_of(fn, _USING_UP):
            taken = iterated(fn, len(args))
            given = tuple(
                self.iterable(value) if n in taken and self.is_foreign(value) else value for n, value in enumerate(args)
            )
            return self._consume(fn, given, kwargs)
        return self.foreign_operation(fn, fn.__name__, args) if not kwargs else self.extern(fn, args, kwargs)

    def take_next(self, iterator: Any, *default: Any) -> Any:
        """Return ``next(iterator)``. Raises StopIteration."""
        self._claim(iterator)
        taken = self.extern(take, (iterator,), {}, effects_of(next, "__next__", iterator))
        if not self._holds_one(taken):
            if default:
                return default[0]
            raise StopIteration
        return self.watch.load_item(None, taken, 0)

    def _holds_one(self, taken: tuple[Any, ...]) -> bool:
        length = self._length(taken)
        return bool(self.recording.pin(length, "whether the iterator has ended"))

    def iterable(self, obj: Any) -> Iterable[Any]:
        if not self.is_foreign(obj) and not is_left_to_host(obj, getattr(type(obj), "__iter__", None)):
            return super().iterable(obj)
        if module_of(type(obj)) == "numpy":
            return super().iterable(self.extern(list, (obj,), {}, effects_of(list, "__iter__", obj)))
        return self._items_of(obj)

    def _items_of(self, obj: Any) -> Iterator[Any]:
        itself = hasattr(type(obj), "__next__") and not is_one_of(type(obj), weakref.ProxyTypes)
        iterator = obj if itself else self.foreign_operation(iter, "__iter__", (obj,))
        while True:
            try:
                item = self.take_next(iterator)
            except StopIteration:
                return
            yield item

    def _consume(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if fn is iter and len(args) == 1 and self.is_foreign(args[0]):
            return self.foreign_operation(iter, "__iter__", args)
        taken = iterated(fn, len(args))
        given = tuple(
            self._items_of(a) if n in taken and hasattr(type(a), "__next__") and self.is_foreign(a) else a
            for n, a in enumerate(args)
        )
        return super()._consume(fn, given, kwargs)

    def shows_foreign(self, values: tuple[Any, ...]) -> bool:
        """Whether values are foreign, or lists, tuples or dictionaries that hold foreign ones."""
        pending, seen = [*values], set()
        while pending:
            value = pending.pop()
            if is_one_of(type(value), SHOWN):
                if id(value) not in seen:
                    seen.add(id(value))
                    pending += dict.values(value) if isinstance(value, dict) else value
            elif self.is_foreign(value):
                return True
        return False

    def percent(self, template: str, value: Any) -> Any:
        if self.shows_foreign((value,)):
            return self.extern(operator.mod, (template, value), {}, ARRAYS)
        return super().percent(template, value)

    def _text(self, fn: Any, owner: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.shows_foreign((*args, *kwargs.values())):
            return self.extern(method(name), (owner, *args), kwargs, ARRAYS)
        return super()._text(fn, owner, name, args, kwargs)

    def symbolic(self, value: Any, nested: bool = False) -> Any:
        access_path = self.recording.owner(value)
        if access_path is not None and self.is_foreign(value):
            return Read(access_path)
        return super().symbolic(value, nested)

    def formatted(self, value: Any, spec: str) -> str:
        access_path = self.recording.owner(value)
        if self.is_foreign(value) and access_path is not None:
            spec = self.recording.pin(spec, "format specification")
            if _may_change(value):
                return self.extern(format, (value, spec), {}, ARRAYS)  # type: ignore[no-any-return]
            text: str = trace_value(format(value, spec), Apply(format, (Read(access_path), spec)))
            return text
        if self.shows_foreign((value,)) or (access_path is not None and _text_by_library(value)):
            return self.extern(format, (value, spec), {}, ARRAYS)  # type: ignore[no-any-return]
        return super().formatted(value, spec)

    def as_text(self, value: Any, conversion: str) -> str:
        access_path = self.recording.owner(value)
        if self.is_foreign(value) and access_path is not None:
            convert: Callable[[Any], str] = CONVERSIONS[conversion]
            if _may_change(value):
                return self.extern(convert, (value,), {}, ARRAYS)  # type: ignore[no-any-return]
            text: str = trace_value(convert(value), Apply(convert, (Read(access_path),)))
            return text
        if self.shows_foreign((value,)) or (access_path is not None and _text_by_library(value)):
            return self.extern(CONVERSIONS[conversion], (value,), {}, ARRAYS)  # type: ignore[no-any-return]
        return super().as_text(value, conversion)
