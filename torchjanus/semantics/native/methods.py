"""Methods of native objects: their receivers, and their effects on objects made in the call and on context
variables."""

from __future__ import annotations

import collections
import contextvars
import enum
import types
from collections.abc import Callable
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.kinds import getattr, hasattr, isinstance, module_of
from torchjanus.rewrite.hooks.lookup import attributes_of
from torchjanus.semantics.known.framework_calls import METADATA, REFUSED
from torchjanus.semantics.known.live_views import shows_other_class
from torchjanus.semantics.native.class_namespaces import refuse_view
from torchjanus.semantics.native.container_methods import KEYED, SEARCHING, ContainerMethods
from torchjanus.semantics.native.containers import CONTAINERS
from torchjanus.trace.values import Traced, plain

__all__ = ["NativeMethods"]


_TAKES_ANY = frozenset({"format", "format_map", "join", "__mod__", "__eq__", "__ne__", "__contains__"})
# Special methods of bytes that ask for an index; others leave it to the other operand.
_ASKING = frozenset({"__mul__", "__rmul__", "__getitem__", "__contains__"})
# Methods of lists and deques that ask for an index, and which of their arguments are such.
_POSITIONS = {"insert": slice(0, 1), "pop": slice(0, 1), "rotate": slice(0, 1), "index": slice(1, 3)}
_SHOWING = frozenset({"values", "items", "copy"})


def _may_change(value: Any) -> bool:
    """Whether code that is given the object can change it."""
    lasting = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, enum.Enum)
    held = isinstance(value, CONTAINERS) and not isinstance(value, tuple | frozenset)
    return held or (attributes_of(value) is not None and not isinstance(value, lasting))


class NativeMethods(ContainerMethods):
    """Native methods. The object that a method belongs to decides what the call reads and writes."""

    # -- methods of native objects --------------------------------------------------------------------------------

    def _unbound(self, fn: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        owner, rest = args[0], args[1:]
        if name in ("__setattr__", "__delattr__", "__getattribute__") and not isinstance(owner, type):
            if isinstance(owner, torch.Tensor):
                return self.out(fn, *args, **kwargs)
            if name == "__setattr__":
                return self.watch.store_attr(None, owner, rest[0], rest[1])
            if name == "__delattr__":
                return self.watch.drop_attr(None, owner, rest[0])
            return self.watch.load_attr(None, owner, rest[0])
        if fn in (object.__setattr__, object.__delattr__) and isinstance(owner, type):
            return self.out(fn, *args, **kwargs)  # TypeError: type has its own slots
        if name in ("__new__", "__init_subclass__") and self.recording.owner(owner) is None:
            return fn(owner, *(self._taken("update", rest) if isinstance(owner, CONTAINERS) else rest), **kwargs)
        # The class may have another method under this name, so ``fn`` itself is bound.
        return self._method(fn.__get__(owner), owner, name, rest, kwargs)

    def _method(
        self, fn: Callable[..., Any], owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if name in ("__setattr__", "__delattr__", "__getattribute__") and not isinstance(owner, torch.Tensor):
            access = {"__setattr__": "store_attr", "__delattr__": "drop_attr", "__getattribute__": "load_attr"}[name]
            return getattr(self.watch, access)(None, owner, *args)
        if (live := self.live(owner)) is not owner:
            return self._method(getattr(live, name), live, name, args, kwargs)
        if isinstance(owner, torch.Tensor):
            return self._tensor_method(fn, name, args, kwargs)
        if type(owner) is torch.Size and name == "numel":
            return self.framework.sizes.product(owner)
        if isinstance(owner, str):
            if name not in _TAKES_ANY:
                self.refuse_python_methods(fn, *args, *kwargs.values())
            return self._text(fn, owner, name, args, kwargs)
        if name in _POSITIONS and isinstance(owner, list | collections.deque):
            self.refuse_python_methods(fn, *args[_POSITIONS[name]])
        if isinstance(owner, int | float | bytes | range | complex | types.FunctionType | types.MappingProxyType):
            if isinstance(owner, Traced):
                self.recording.pin(owner, f"calls its method {name}")
            asks = name in _ASKING if isinstance(owner, bytes) else name == "__round__"
            if isinstance(owner, int | float | bytes) and (asks or not name.startswith("__")):
                self.refuse_python_methods(fn, *args, *kwargs.values())
            self._pin_all(args, kwargs)
            if self.classes.is_shown(owner) and not kwargs:
                return self.classes.call(owner, name, tuple(map(plain, args)))
            result = self.out(fn, *map(plain, args), **kwargs)
            return self.seen_by_view(owner, name, result) if isinstance(owner, types.MappingProxyType) else result
        if isinstance(owner, types.BuiltinMethodType | types.MethodType | types.GetSetDescriptorType | property):
            return self.out(fn, *args, **kwargs)
        if isinstance(owner, contextvars.ContextVar):
            return self._context_variable(fn, owner, name, args)
        access_path = self.recording.owner(owner)
        if access_path is None:
            return self._private_method(fn, owner, name, args, kwargs)
        if isinstance(owner, CONTAINERS):
            known, result = self.out(self.container_method, owner, access_path, name, args, kwargs)
            if known:
                self.out.made = result
                return result
        return self.unknown(fn, args, kwargs)

    def seen_by_view(self, proxy: types.MappingProxyType[Any, Any], name: str, result: Any) -> Any:
        """Return what a dictionary's view returned. Refuse the trace if that may change: it is not watched."""
        shown = [result] if name in ("get", "__getitem__") else list(proxy.values()) if name in _SHOWING else []
        if shows_other_class(proxy) or any(map(_may_change, shown)):
            refuse_view(self.recording)
        return result

    def _tensor_method(self, fn: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = self.opened(args, kwargs)
        seen = self.framework.seen
        result = self.out(self.framework.unparsed(fn, args, kwargs), *args, **kwargs)
        if result is NotImplemented:  # Python tries the other operand
            return result
        if self.framework.seen == seen and name not in METADATA:
            why, remedy = REFUSED.get(name, ("torch does not show it to those who record its calls.", ""))
            self.recording.refuse("tensor-internals", f"Tensor.{name} inside the step", why, remedy)
        return result

    def _taken(self, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(self.consumed(a) for a in args) if name in _TAKING else args

    def _context_variable(
        self, fn: Callable[..., Any], variable: contextvars.ContextVar[Any], name: str, args: tuple[Any, ...]
    ) -> Any:
        """Call a method of a context variable. Writes to it are undone before the call ends."""
        if name == "set":
            token = self.out(fn, *(bare := tuple(map(plain, args))))
            self.recording.context_set(variable, token, *bare, *args)
            return token
        if name == "reset":
            self.out(fn, *args)
            return self.recording.context_reset(variable, args[0])
        if self.recording.context_is_set(variable):
            found = self.out(fn, *args)
            bare, given = self.recording.context_value(variable)
            return given if bare is found else found
        value = self.out(fn, *args)  # LookupError if there is neither a value nor a default
        if variable.get(None) is not value:
            self.recording.claim_unless_plain(value, AccessPath.const(value))  # the default, which never changes
        access_path = AccessPath.const(variable, variable.name).then(Step.CONTEXT)
        known = self.recording.found(access_path, variable.get(None))
        return known if plain(known) is value or plain(known) == value else value

    def _private_method(
        self, fn: Callable[..., Any], owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a method of an object made in this call. Its effects stay private; its arguments are read."""
        if self.recording.lost:  # it may be from before the call without a known access path
            args = tuple(map(self.recording.bare, args))
        if name == "__init__" and _only_fills(fn):
            return self.out(fn, *(self._taken("update", args) if isinstance(owner, CONTAINERS) else args), **kwargs)
        module = module_of(type(owner))
        if isinstance(owner, type | types.ModuleType | types.SimpleNamespace | BaseException) or module in (
            "builtins",
            "collections",
            "itertools",
            "_collections",
            "functools",
            "types",
            "_functools",
            "contextlib",
        ):
            if isinstance(owner, list) and name == "sort":
                return self.sort_private(owner, **kwargs)
            if isinstance(owner, list | tuple | collections.deque) and name in SEARCHING and args:
                return getattr(self, SEARCHING[name])(owner, args[0], *args[1:])
            if isinstance(owner, collections.deque | list) and name == "remove":
                del owner[self.index(owner, args[0], removing=True)]
                return None
            if isinstance(owner, collections.deque | list | tuple) and (places := _PLACES.get(name)):
                args = (*(self._where(a, f"given to {name}()") for a in args[:places]), *args[places:])
            if isinstance(owner, dict) and name in KEYED:
                args = (self.key(args[0]), *args[1:])
                self.watch_lookup(owner, args[0])
                if name == "__getitem__":
                    return self.watch.load_item(None, owner, args[0])
            elif isinstance(owner, set | frozenset) and name in ("add", "discard", "remove", "__contains__"):
                sought = args[0] if name == "add" else self.sought(args[0])
                self.watch_lookup(owner, key := self.key(sought))
                try:
                    return self.out(fn, key, *args[1:], **kwargs)
                except KeyError as error:
                    error.args = error.args if sought is args[0] else args  # it shows the set itself
                    raise
            elif isinstance(owner, set | frozenset):
                args = tuple(self._elements_of(a) if _is_iterable(a) else a for a in args)
                if args:
                    self.runs_unwatched_methods(owner, *args)
            elif name == "__eq__":
                self.expose(owner, pin=True)
                args = tuple(self._pinned(a, f"read by {name}()") for a in args)
            result = self.out(fn, *self._taken(name, args), **kwargs)
            if name in _TAKING:
                self.hold_keys(result if isinstance(owner, type) else owner)
            return result
        if isinstance(owner, CONTAINERS):  # a user's or a library's subclass of a container
            return self.out(fn, *self._taken(name, args), **kwargs)
        if module.startswith("torch") and not isinstance(owner, torch.Generator):
            args, kwargs = self.opened(args, kwargs)
            return self.out(fn, *args, **kwargs)
        return self.unknown(fn, args, kwargs)

    def _where(self, place: Any, why: str) -> Any:
        if isinstance(place, slice):
            return slice(*(self.recording.pin(part, why) for part in (place.start, place.stop, place.step)))
        return self.recording.pin(place, why)


# Methods of sequences whose first argument is an index or a count.
_PLACES = dict.fromkeys("pop insert rotate __getitem__ __setitem__ __delitem__ __mul__ __rmul__ __imul__".split(), 1)
# Methods that read the elements of their arguments. All others take the arguments as they are.
_TAKING = frozenset(
    """extend extendleft update join union intersection difference symmetric_difference __iadd__ __ior__ __add__ __or__
    __and__ __sub__ __xor__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ from_iterable fromkeys""".split()
)


def _only_fills(start: Any) -> bool:
    """Whether a native ``__init__`` only fills the object that it is given."""
    made_by = getattr(start, "__objclass__", None) or type(getattr(start, "__self__", None))
    return made_by.__module__ in ("builtins", "collections", "types")


def _is_iterable(value: Any) -> bool:
    return hasattr(type(value), "__iter__")
