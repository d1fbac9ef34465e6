"""Watching: the program runs for real, on real values, while a Trace is recorded (JANUS 4.1's profiler).

Knows what a Python operation reads and writes; what torch does is recorded by ``framework``, what is known of native
callees is in ``natives``. Nothing here changes what the program computes: an operation that is not understood is
carried out all the same, and the trace says why no graph can be made of it.
"""

from __future__ import annotations

import collections
import functools
import inspect
import operator
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from torchjanus.errors import Place
from torchjanus.graph.program import Modes
from torchjanus.hooks import rewritten, using
from torchjanus.origin import Origin, Step
from torchjanus.rewrite import Site
from torchjanus.semantics.framework import FrameworkRecorder, ambient_modes
from torchjanus.semantics.leaves import native_slot
from torchjanus.semantics.native_calls import NativeCalls
from torchjanus.semantics.protocols import Protocols
from torchjanus.semantics.recording import ABSENT, Recording
from torchjanus.semantics.settling import Settlement
from torchjanus.semantics.trusted import IGNORED, MODULE_CONTAINERS, is_trusted_class, is_trusted_module
from torchjanus.trace.events import Decision, Entered, Left, Same, Trace, Trips
from torchjanus.trace.values import Apply, Traced, TracedFloat, TracedInt, TracedStr, plain, trace_value

__all__ = ["Watch", "watch_call"]

_OPERATORS: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "@": operator.matmul,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_UNARY: dict[str, Callable[..., Any]] = {"-": operator.neg, "+": operator.pos, "~": operator.invert}
_DYNAMO_WRAPPERS = frozenset({"torch._compile", "torch._dynamo.eval_frame", "torch._dynamo.external_utils"})
_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
_SIMPLE = (int, float, complex, str, bytes, bool, type(None))


class Watch(Protocols):
    """The watching semantics of one call."""

    def __init__(self) -> None:
        super().__init__()
        self.recording = Recording()
        self.framework = FrameworkRecorder(self.recording)
        self.natives = NativeCalls(self.recording, self.framework, self)

    def at(self, site: Site | None) -> None:
        if site is None:  # a native call's own doing: the place is that of the call
            return
        self.recording.place = Place(site.file, site.line, site.column, site.function)

    # -- what is entered ------------------------------------------------------------------------------------------

    def leave_native(self, fn: Any) -> str | None:
        """Why a Python function is not looked into, or None."""
        module = fn.__globals__.get("__name__")
        if module in _DYNAMO_WRAPPERS:
            return "a wrapper of torch.compile's: what it wraps is called"
        if isinstance(module, str):
            for name in IGNORED:
                if module == name or module.startswith(name + "."):
                    return f"{name} is left out of graphs"
        if self.natives.is_framework(fn):
            return "recorded as one framework call"
        if self.natives.is_deferred(fn):
            return "called at commit"
        return super().leave_native(fn)

    def enter(self, at: Site, fn: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        recording = self.recording
        self.at(at)
        self._claim_defaults(fn)
        code = fn.__code__
        name = fn.__qualname__
        recording.note(Entered(name, recording.place))
        try:
            return super().enter(at, fn, args, kwargs)
        finally:
            recording.note(Left(name, Place(code.co_filename, code.co_firstlineno)))
            self.at(at)

    def enter_first(self, fn: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Enter the speculated function itself."""
        code = fn.__code__
        self.recording.place = Place(code.co_filename, code.co_firstlineno, 0, fn.__qualname__)
        self._claim_defaults(fn, first=True)
        return rewritten(fn)(*args, **kwargs)

    def _claim_defaults(self, fn: types.FunctionType, first: bool = False) -> None:
        root = Origin.const(fn)
        if (first or self.recording.was_there(fn)) and not is_trusted_module(fn.__module__):
            # Whoever reloads a module while it is in use (IPython does) puts new code into the old functions.
            self.recording.held(root.then(Step.FIELD, "__code__"), fn.__code__)
            self.recording.held(root.then(Step.FIELD, "__defaults__"), fn.__defaults__)
            if fn.__kwdefaults__ is not None:
                defaults = root.then(Step.FIELD, "__kwdefaults__")
                self.recording.held(defaults, fn.__kwdefaults__)
                for name, value in fn.__kwdefaults__.items():
                    self.recording.pin(self.recording.found(defaults.item(name), value), "a default")
        for index, value in enumerate(fn.__defaults__ or ()):
            if not isinstance(value, _SIMPLE) and self.recording.owner(value) is None:
                self.recording.found(root.then(Step.FIELD, "__defaults__").item(index), value, trusted=True)
        for name, value in (fn.__kwdefaults__ or {}).items():
            if not isinstance(value, _SIMPLE) and self.recording.owner(value) is None:
                self.recording.found(root.then(Step.FIELD, "__kwdefaults__").item(name), value, trusted=True)

    # -- attributes -----------------------------------------------------------------------------------------------

    def origin_of(self, obj: Any) -> Origin | None:
        """Where an object was found. Functions, classes and modules stand for themselves."""
        if isinstance(obj, type | types.FunctionType | types.ModuleType | types.BuiltinFunctionType):
            return Origin.const(obj)
        return self.recording.owner(obj)

    def load_attr(self, at: Site, obj: Any, name: str) -> Any:
        self.at(at)
        if isinstance(obj, torch.Tensor):
            if name == "__dict__" or name in vars(obj):
                self.recording.refuse(f"reads the Python attribute '{name}' of a tensor", "it is not watched.", "")
            return getattr(obj, name)
        if isinstance(obj, Traced | types.CodeType):
            return getattr(plain(obj), name)
        origin = self.origin_of(obj)
        if origin is None:
            return super().load_attr(at, obj, name)
        if isinstance(obj, types.ModuleType):
            return self._load_module_attr(origin, obj, name)
        if isinstance(obj, type):
            return self._load_class_attr(obj, name)
        return self._load_instance_attr(origin, obj, name)

    def _load_module_attr(self, origin: Origin, module: types.ModuleType, name: str) -> Any:
        namespace = module.__dict__
        if name not in namespace:
            return getattr(module, name)  # a module's __getattr__, or AttributeError
        base = self._dict_of(origin, namespace)
        return self.recording.read_key(base, namespace, name, trusted=is_trusted_module(module.__name__))

    def _load_class_attr(self, cls: type, name: str) -> Any:
        value = getattr(cls, name)
        for owner in cls.__mro__:
            if name in vars(owner):
                raw = vars(owner)[name]
                if raw is value and not isinstance(value, types.FunctionType):
                    return self._class_value(owner, name, raw)
                self._class_value(owner, name, raw)
                break
        return value

    def _class_value(self, owner: type, name: str, raw: Any) -> Any:
        if self.recording.has_written(owner, name):
            return self.recording.written(owner, name)
        base = Origin.const(owner).then(Step.DICT)
        return self.recording.found(base.item(name), raw, trusted=is_trusted_class(owner))

    def _dict_of(self, origin: Origin, namespace: dict[str, Any]) -> Origin:
        base = origin.then(Step.DICT)
        self.recording.claim(namespace, base)
        return base

    def _load_instance_attr(self, origin: Origin, obj: Any, name: str) -> Any:
        recording = self.recording
        try:
            namespace = object.__getattribute__(obj, "__dict__")
        except AttributeError:
            namespace = None
        if name == "__dict__" and namespace is not None:
            self._dict_of(origin, namespace)
            return namespace
        if name == "__class__":
            return getattr(obj, name)
        raw, owner = _class_lookup(type(obj), name)
        if owner is not None and hasattr(type(raw), "__set__"):
            return self._load_field(origin, obj, name)
        if namespace is not None:
            base = self._dict_of(origin, namespace)
            if recording.has_written(namespace, name):
                value = recording.written(namespace, name)
                if value is not ABSENT:
                    return value
            elif name in namespace:
                kept = name in MODULE_CONTAINERS and isinstance(obj, torch.nn.Module)
                return recording.read_key(base, namespace, name, kept=kept)
            elif owner is None and isinstance(obj, torch.nn.Module) and _registered(obj, namespace, name) is not None:
                return self._load_registered(base, obj, namespace, name)
            elif owner is None or not _never_shadowed(owner, name):
                recording.absent(base, name)
        if owner is None:
            return _native_getattr(obj, name)  # raises AttributeError
        value = _native_getattr(obj, name)
        if value is raw and not isinstance(raw, types.FunctionType):
            return self._class_value(owner, name, raw)
        self._class_value(owner, name, raw)
        return value

    def _load_registered(self, base: Origin, module: torch.nn.Module, namespace: dict[str, Any], name: str) -> Any:
        """A parameter, buffer or submodule: what nn.Module.__getattr__ finds, without its detours. A name is in one of
        the three registries only, as register_parameter() and its like see to."""
        registry = _registered(module, namespace, name)
        assert registry is not None
        entries = namespace[registry]
        self.recording.read_key(base, namespace, registry, kept=True)
        return self.recording.read_key(base.item(registry), entries, name)

    def _load_field(self, origin: Origin, obj: Any, name: str) -> Any:
        if self.recording.has_written(obj, name):
            value = self.recording.written(obj, name)
            if value is ABSENT:
                raise AttributeError(name)
            return value
        return self.recording.found(origin.then(Step.FIELD, name), _native_getattr(obj, name))

    def store_attr(self, at: Site, obj: Any, name: str, value: Any) -> None:
        self.at(at)
        if isinstance(obj, torch.Tensor):
            descriptor, owner = _class_lookup(type(obj), name)
            if owner is None or not hasattr(type(descriptor), "__set__"):
                self.recording.refuse(f"sets the Python attribute '{name}' of a tensor", "it is not watched.", "")
            setattr(obj, name, plain(value))
            return
        origin = self.origin_of(obj)
        if origin is None:
            # An object made in this call: private until it escapes, so it may hold traced numbers.
            super().store_attr(at, obj, name, value)
            return
        descriptor, owner = _class_lookup(type(obj), name)
        super().store_attr(at, obj, name, self.recording.bare(value))
        if isinstance(obj, type) or (owner is not None and hasattr(type(descriptor), "__set__")):
            self.recording.store("field", obj, name, value, origin)
        else:
            namespace = obj.__dict__
            self.recording.store("item", namespace, name, value, self._dict_of(origin, namespace))

    def drop_attr(self, at: Site, obj: Any, name: str) -> None:
        self.at(at)
        origin = self.origin_of(obj)
        super().drop_attr(at, obj, name)
        if isinstance(obj, torch.Tensor):
            if name != "grad":
                self.recording.refuse(f"deletes the attribute '{name}' of a tensor", "it is not watched.", "")
            return
        if origin is None:
            return
        descriptor, owner = _class_lookup(type(obj), name)
        if isinstance(obj, type) or (owner is not None and hasattr(type(descriptor), "__set__")):
            self.recording.store("delete-field", obj, name, ABSENT, origin)
        else:
            namespace = obj.__dict__
            self.recording.store("delete-item", namespace, name, ABSENT, self._dict_of(origin, namespace))

    # -- subscripts -----------------------------------------------------------------------------------------------

    def load_item(self, at: Site, obj: Any, key: Any) -> Any:
        self.at(at)
        recording = self.recording
        if isinstance(obj, torch.Tensor):
            return obj[key]
        origin = recording.owner(obj)
        key = recording.pin(key, "used as an index")
        if isinstance(key, slice):
            key = slice(*(recording.pin(p, "used as an index") for p in (key.start, key.stop, key.step)))
        if origin is None or isinstance(obj, type):
            return obj[key]
        if isinstance(obj, dict):
            if recording.has_written(obj, key):
                value = recording.written(obj, key)
                if value is ABSENT:
                    raise KeyError(key)
                return value
            if key in obj:
                return recording.read_key(origin, obj, key)
            recording.absent(origin, key)
            value = obj[key]  # KeyError, or a default factory that stores what it makes
            recording.store("item", obj, key, value, origin)
            return value
        if isinstance(obj, list | tuple | collections.deque):
            shadow = self.natives.shadows.of(obj)
            if shadow is not None and not isinstance(key, slice):
                return shadow.read(operator.index(key))
            if isinstance(key, slice):
                return self._slice(obj, key)
            index = operator.index(key)
            if index < 0 and not -len(obj) <= index:
                return obj[key]
            if index >= len(obj):
                self.natives.whole_length(obj)
                return obj[key]
            if index < 0 and recording.has_written(obj, index + len(obj)):
                index += len(obj)
            return recording.read_key(origin, obj, index)
        return self._unknown_container(obj, "subscript", lambda: obj[key])

    def _slice(self, obj: list[Any] | tuple[Any, ...] | collections.deque[Any], key: slice) -> Any:
        parts = self.elements(obj)[key]
        if type(obj) is list:
            return parts
        return tuple(parts) if type(obj) is tuple else obj[key]  # type: ignore[index]  # a deque raises

    def _unknown_container(self, obj: Any, what: str, act: Callable[[], Any]) -> Any:
        if not isinstance(obj, str | bytes | range | torch.Size):
            self.recording.refuse(
                f"{what} of a {type(obj).__name__} that was there before the call",
                "what it holds is not watched.",
                "Read it into a tensor, list or dict before the step.",
            )
        return act()

    def _changed(self, obj: Any, act: Callable[[], Any]) -> Any:
        self.recording.refuse(
            f"reads a {type(obj).__name__} after changing its length in the same call",
            "held-back changes are not visible to it yet.",
            "Read it before changing it, or in the next call.",
        )
        return act()

    def store_item(self, at: Site, obj: Any, key: Any, value: Any) -> None:
        self.at(at)
        recording = self.recording
        if isinstance(obj, torch.Tensor):
            obj[key] = value
            return
        key = recording.pin(key, "used as an index")
        origin = recording.owner(obj)
        if origin is None:
            obj[key] = value
            return
        if isinstance(obj, dict):
            if key not in obj:
                recording.absent(origin, key)
                recording.restructured.add(id(obj))
            elif not recording.has_written(obj, key):
                recording.absent(origin, key, True)
            obj[key] = recording.bare(value)
            recording.store("item", obj, key, value, origin)
            return
        if isinstance(obj, list) and isinstance(key, int):
            obj[key] = recording.bare(value)
            shadow = self.natives.shadows.of(obj)
            if shadow is not None:
                shadow.store(key, value)
            self.natives.whole_length(obj)
            recording.store("item", obj, key % len(obj), value, origin)
            return
        recording.refuse(
            f"assigns to an item of a {type(obj).__name__}", "this container's writes cannot be held back.", ""
        )
        obj[key] = recording.bare(value)

    def drop_item(self, at: Site, obj: Any, key: Any) -> None:
        self.at(at)
        recording = self.recording
        key = recording.pin(key, "used as an index")
        origin = recording.owner(obj)
        if origin is not None and isinstance(obj, dict):
            if not recording.has_written(obj, key):
                recording.absent(origin, key, key in obj)
            del obj[key]
            recording.restructured.add(id(obj))
            recording.store("delete-item", obj, key, ABSENT, origin)
            return
        if origin is not None:
            recording.refuse(
                f"deletes an item of a {type(obj).__name__}", "this container's writes cannot be held back.", ""
            )
        del obj[key]

    # -- names ----------------------------------------------------------------------------------------------------

    def load_global(self, at: Site, owner: dict[str, Any], name: str, value: Any) -> Any:
        self.at(at)
        recording = self.recording
        if recording.has_written(owner, name):
            return recording.written(owner, name)
        if name not in owner:
            return value  # a builtin
        trusted = is_trusted_module(owner.get("__name__"))
        return recording.found(Origin.const(owner, "globals").item(name), value, trusted=trusted)

    def store_global(self, at: Site, owner: dict[str, Any], name: str, value: Any) -> Any:
        self.at(at)
        self.recording.store("item", owner, name, value, Origin.const(owner, "globals"))
        return self.recording.bare(value)

    def load_cell(self, at: Site, cell: types.CellType, name: str, value: Any) -> Any:
        self.at(at)
        if self.recording.has_written(cell, name):
            return self.recording.written(cell, name)
        return self.recording.found(Origin.cell(cell, name), value)

    def store_cell(self, at: Site, cell: types.CellType, name: str, value: Any) -> Any:
        self.at(at)
        self.recording.store("cell", cell, name, value, Origin.cell(cell, name))
        return self.recording.bare(value)

    # -- decisions ------------------------------------------------------------------------------------------------

    def truth(self, at: Site, value: Any) -> bool:
        self.at(at)
        recording = self.recording
        if isinstance(value, TracedInt | TracedFloat):
            outcome = recording.hold(Apply(bool, (value.expr,)), bool(plain(value)))
        elif isinstance(value, TracedStr):
            outcome = bool(recording.pin(value, "decides a branch"))
        elif (shadow := self.natives.shadows.of(value)) is not None:
            outcome = shadow.filled()
        elif isinstance(value, _CONTAINERS) and (origin := recording.owner(value)) is not None:
            outcome = bool(value)
            if id(value) not in recording.restructured:
                recording.filled(origin, outcome)
            else:
                self._changed(value, lambda: None)
        else:
            if recording.owner(value) is not None and not isinstance(value, torch.Tensor) and _native_length(value):
                self._unknown_container(value, "truth value", lambda: None)
            outcome = bool(value)
        recording.note(Decision(outcome, recording.place))
        return outcome

    def native_compare(self, at: Site, op: str, a: Any, b: Any) -> Any:
        self.at(at)
        recording = self.recording
        if op in ("is", "is not"):
            same = plain(a) is plain(b)
            first, second = recording.owner(a), recording.owner(b)
            if first is not None and second is not None and first != second:
                recording.note_once(Same(first, second, same, recording.place))
            return same if op == "is" else not same
        if op in ("in", "not in"):
            found = self._contains(a, b)
            return found if op == "in" else not found
        function = _OPERATORS[op]
        if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
            return function(a, b)
        if isinstance(a, Traced) or isinstance(b, Traced):
            return recording.hold(Apply(function, (_symbol(a), _symbol(b))), function(plain(a), plain(b)))
        self.natives.expose(a, pin=True)
        self.natives.expose(b, pin=True)
        return function(a, b)

    def _contains(self, key: Any, container: Any) -> bool:
        recording = self.recording
        key = recording.pin(key, "looked up in a container")
        origin = recording.owner(container)
        if origin is not None and isinstance(container, dict):
            if recording.has_written(container, key):
                return recording.written(container, key) is not ABSENT
            present = key in container
            recording.absent(origin, key, present)
            return present
        self.natives.expose(container, pin=True)
        return operator.contains(container, key)

    # -- arithmetic -----------------------------------------------------------------------------------------------

    def native_binary(self, at: Site, op: str, a: Any, b: Any) -> Any:
        self.at(at)
        return self._apply(_OPERATORS[op], a, b)

    def _apply(self, function: Callable[..., Any], a: Any, b: Any) -> Any:
        if not (isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor)):
            if function is operator.mod and isinstance(a, str) and not isinstance(a, Traced):
                return self.natives.percent(a, b)
            if isinstance(a, Traced) or isinstance(b, Traced):
                if isinstance(a, _CONTAINERS) or isinstance(b, _CONTAINERS):
                    return function(self.recording.pin(a, "repeats a list"), self.recording.pin(b, "repeats a list"))
                if _arithmetic(a) and _arithmetic(b):
                    return trace_value(function(plain(a), plain(b)), Apply(function, (_symbol(a), _symbol(b))))
                return function(self.recording.pin(a, "operand"), self.recording.pin(b, "operand"))
            a, b = self.natives.consumed(a), self.natives.consumed(b)
        return function(a, b)

    def native_inplace(self, at: Site, op: str, a: Any, b: Any) -> Any:
        self.at(at)
        if isinstance(a, list) and op == "+" and self.recording.owner(a) is not None:
            self.natives.call(a.extend, (b,), {})
            return a
        if isinstance(a, torch.Tensor) or (self.recording.owner(a) is None and not isinstance(a, Traced)):
            if isinstance(a, torch.Tensor) or not isinstance(b, Traced):
                function = getattr(operator, _INPLACE[op])
                return function(a, b if isinstance(a, torch.Tensor) else self.natives.consumed(b))
        if self.recording.owner(a) is not None and isinstance(a, dict | set):
            self.recording.refuse(f"'{op}=' on a {type(a).__name__}", "its writes cannot be held back.", "")
            return getattr(operator, _INPLACE[op])(a, b)
        return self._apply(_OPERATORS[op], a, b)

    def native_unary(self, at: Site, op: str, a: Any) -> Any:
        self.at(at)
        function = _UNARY[op]
        if isinstance(a, TracedInt | TracedFloat):
            return trace_value(function(plain(a)), Apply(function, (a.expr,)))
        return function(a)

    # -- text -----------------------------------------------------------------------------------------------------

    def native_format(self, at: Site, value: Any, spec: str) -> str:
        self.at(at)
        return self.natives.formatted(value, spec)

    def native_text(self, at: Site, value: Any, conversion: str) -> str:
        self.at(at)
        return self.natives.as_text(value, conversion)

    def join(self, at: Site, pieces: tuple[str, ...]) -> str:
        self.at(at)
        text = "".join(plain(p) for p in pieces)
        if any(isinstance(p, TracedStr) for p in pieces):
            result: str = trace_value(text, Apply(join_parts, tuple(_symbol(p) for p in pieces)))
            return result
        return text

    # -- loops ----------------------------------------------------------------------------------------------------

    def native_iter(self, at: Site, obj: Any) -> Any:
        self.at(at)
        return self._rounds(self.recording.place, iter(self.natives.iterable(obj)))

    def _rounds(self, place: Place, iterator: Iterator[Any]) -> Iterator[Any]:
        count = 0
        for item in iterator:
            count += 1
            yield item
        self.recording.note(Trips(count, place))

    def elements(self, obj: Any) -> list[Any]:
        """A container's elements, each read and traced."""
        return list(self.natives.iterable(obj))

    def star(self, at: Site, iterable: Any) -> Any:
        self.at(at)
        if self.recording.owner(iterable) is not None and isinstance(iterable, _CONTAINERS):
            return tuple(self.natives.iterable(iterable))
        return super().star(at, iterable)

    def double_star(self, at: Site, mapping: Any) -> Any:
        self.at(at)
        if self.recording.owner(mapping) is not None and isinstance(mapping, dict):
            return self.natives.consumed(mapping)
        return super().double_star(at, mapping)

    def unpack(self, at: Site, value: Any, before: int, star: bool, after: int) -> Any:
        self.at(at)
        if self.recording.owner(value) is not None and isinstance(value, _CONTAINERS):
            value = tuple(self.natives.iterable(value))
        return super().unpack(at, value, before, star, after)

    # -- calls ----------------------------------------------------------------------------------------------------

    def call(self, at: Site, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # A speculated function called by another is part of the other's trace.
        if isinstance(fn, types.MethodType) and hasattr(type(fn.__func__), "__janus_target__"):
            fn, args = fn.__func__, (fn.__self__, *args)
        if hasattr(type(fn), "__janus_target__"):
            fn = fn.__janus_target__
        return super().call(at, fn, args, kwargs)

    def frame_reader(self, at: Site, owner: dict[str, Any], fn: Any) -> Any:
        self.at(at)
        if fn is warnings.warn:
            return functools.partial(self._warn, at, owner)
        if fn is not inspect.currentframe:
            self.recording.refuse(
                f"calls {getattr(fn, '__name__', fn)}()",
                "it looks at variables behind the back of the watch.",
                "Name the variables instead.",
            )
        return fn

    def _warn(
        self,
        at: Site,
        owner: dict[str, Any],
        message: Warning | str,
        category: type[Warning] | None = None,
        stacklevel: int = 1,
        source: Any = None,
        **options: Any,
    ) -> None:
        """``warnings.warn`` as it would be called from the user's line: at commit there is no such frame."""
        if stacklevel != 1 or options:
            self.recording.refuse("warns in its caller's name", "the caller is not there at commit.", "")
            warnings.warn(message, category, stacklevel + 1, source, **options)
            return
        kind = type(message) if isinstance(message, Warning) else category or UserWarning
        registry = owner.setdefault("__warningregistry__", {})
        self.recording.claim(registry, Origin.const(registry))
        module = owner.get("__name__") or "<unknown>"
        self.natives.defer(warnings.warn_explicit, (message, kind, at.file, at.line, module, registry), {})

    def call_native(self, at: Site, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self.at(at)
        if isinstance(fn, types.FunctionType) and (inner := _without_dynamo(fn)) is not fn:
            return self.call(at, inner, args, dict(kwargs))
        return self.natives.call(fn, args, dict(kwargs))


def join_parts(*parts: str) -> str:
    """What an f-string does with its formatted pieces."""
    return "".join(parts)


_INPLACE = {
    "+": "iadd", "-": "isub", "*": "imul", "/": "itruediv", "//": "ifloordiv", "%": "imod", "**": "ipow",
    "@": "imatmul", "&": "iand", "|": "ior", "^": "ixor", "<<": "ilshift", ">>": "irshift",
}  # fmt: skip


def _symbol(value: Any) -> Any:
    return value.expr if isinstance(value, Traced) else value


def _arithmetic(value: Any) -> bool:
    return isinstance(value, int | float | str)


def _without_dynamo(fn: types.FunctionType) -> types.FunctionType:
    """The function under torch's "do not compile this" wrappers, which do nothing else."""
    while fn.__globals__.get("__name__") in _DYNAMO_WRAPPERS:
        inner = fn.__dict__.get("_torchdynamo_orig_callable") or fn.__dict__.get("__wrapped__")
        if not isinstance(inner, types.FunctionType):
            return fn
        fn = inner
    return fn


def _native_getattr(obj: Any, name: str) -> Any:
    """``obj.name`` without a ``__getattr__`` written in Python: that one is entered rewritten."""
    return native_slot(type(obj), "__getattribute__")(obj, name)


def _native_length(value: Any) -> bool:
    return hasattr(type(value), "__len__") or hasattr(type(value), "__bool__")


def _class_lookup(cls: type, name: str) -> tuple[Any, type | None]:
    """The raw class attribute and the class that holds it."""
    for owner in cls.__mro__:
        if name in vars(owner):
            return vars(owner)[name], owner
    return None, None


def _never_shadowed(owner: type, name: str) -> bool:
    """Names that no instance attribute is trusted to hide: those of classes written in C and of nn.Module itself, and
    the private ones of library classes."""
    if not owner.__flags__ & (1 << 9) or (owner is torch.nn.Module and name != "forward"):
        return True
    return name.startswith("_") and is_trusted_class(owner)


def _registered(module: torch.nn.Module, namespace: dict[str, Any], name: str) -> str | None:
    """The registry of the module that holds the name, where the module looks names up in nn.Module's own way."""
    if _class_lookup(type(module), "__getattr__")[1] is torch.nn.Module:
        for registry in ("_parameters", "_buffers", "_modules"):
            if name in namespace.get(registry, ()):
                return registry
    return None


def ambient_state() -> tuple[Modes, bool]:
    """Torch's modes now, and whether deterministic algorithms are asked for."""
    return ambient_modes(), torch.are_deterministic_algorithms_enabled()


def watch_call(
    fn: types.FunctionType, leading: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Trace]:
    """Run one call under watch. Returns the real result and the trace; the program's exceptions come through.

    ``leading`` are arguments bound beforehand (a method's self): they are the same at every call.
    """
    watch = Watch()
    recording = watch.recording
    before = ambient_modes()
    for value in leading:
        recording.claim(value, Origin.const(value, "self"))
    code = fn.__code__
    names = (*code.co_varnames[len(leading) : code.co_argcount], *(f"args[{i}]" for i in range(len(args))))
    given = tuple(recording.found(Origin.arg(i, names[i]), value) for i, value in enumerate(args))
    named = {name: recording.found(Origin.kwarg(name), value) for name, value in kwargs.items()}
    with using(watch), watch.framework:
        result = watch.enter_first(fn, (*leading, *given), named)
    if ambient_modes() != before:
        recording.refuse("the call leaves a torch mode changed", "a graph restores the modes it found.", "")
    result = Settlement(recording).settle(result)
    recording.finish()
    return result, recording.trace
