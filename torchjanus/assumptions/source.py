"""Builds the straight-line Python that checks assumptions and computes host values. Knows no graph and no executor.

One Source makes the body of one function over ``args`` and ``kwargs``. A path is read at most once; once an object is
known to be the very object of the watched runs, what lies behind it is read from that object directly.
"""

from __future__ import annotations

import collections
import math
import operator
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from torchjanus.assumptions.assumption import (
    AmbientState,
    Arguments,
    Assumption,
    Condition,
    ContainerKeys,
    Emptiness,
    Identity,
    InstanceOf,
    Kept,
    KeyPresence,
    SameObject,
    TensorKind,
    TypeOf,
    ValueOf,
)
from torchjanus.assumptions.checks import Hooks
from torchjanus.origin import Origin, Step, native_class, numbers_of
from torchjanus.trace.values import INFIX, Apply, Fetch, Read, Size, Turn

__all__ = ["TURN", "Source"]

TURN = "turn"  # which round of a loop is made, in generated code

_MANY = 8
_EXACT = (dict, list, tuple)  # subscripting one of these calls no code of anyone's
_SINGLETONS = (bool, type(None), type(Ellipsis), torch.dtype, torch.layout, torch.memory_format)


class Source:
    """Lines of a function, the constants they name, and where each path's value is kept."""

    def __init__(self, indent: str = "    ") -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}
        self.indent = indent
        self._constants: dict[Any, str] = {}
        self._values: dict[Origin, str] = {}
        self._fetches: dict[Any, str] = {}
        self._expressions: dict[Any, str] = {}
        self.sizes: dict[Any, Any] = {}  # of what the program makes: numbers, or expressions of those of inputs
        self._failing: list[str] = []
        self._types: dict[Origin, type] = {}  # classes that have been checked
        self._count = 0
        self.empty: list[Any] = []  # containers that must be empty: asked all at once
        self._filled: list[Any] = []  # and such as must not be
        self.hooks: list[Any] = []  # of these, modules' and optimizers' hooks
        # Checks of one kind with one key, on many objects: a loop is less code to fetch than as many comparisons.
        self._alike: dict[tuple[str, str], list[tuple[Any, Any]]] = {}
        self.hookless: list[torch.Tensor] = []  # leaves whose gradients no hook may see
        self._same_items: dict[str, tuple[Any, list[Any], list[Any]]] = {}

    # -- text -----------------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """Add a statement; the conditions collected so far are checked before it."""
        self.flush()
        self.lines.append(self.indent + text)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Statements of an inner block. What they compute is not known after it."""
        self.line(header)
        known = dict(self._expressions), dict(self._fetches), dict(self._values)
        outer, self.indent = self.indent, f"{self.indent}    "
        yield
        self.flush()
        self.indent = outer
        self._expressions, self._fetches, self._values = known

    def fresh(self, prefix: str = "v") -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def constant(self, value: Any, prefix: str = "C") -> str:
        """A name (or a literal) for this very object."""
        if type(value) in (bool, type(None), int, str) or (type(value) is float and math.isfinite(value)):
            return repr(value)
        key = ("id", id(value))
        name = self._constants.get(key)
        if name is None:
            name = self._constants[key] = f"{prefix}{len(self._constants)}"
            self.names[name] = value
        return name

    def object(self, value: Any) -> str:
        """A name for this very object, literal or not."""
        name = self._constants.get(("object", id(value)))
        if name is None:
            name = self._constants[("object", id(value))] = f"K{len(self._constants)}"
            self.names[name] = value
        return name

    def fail_if(self, condition: str) -> None:
        """The function gives up where ``condition`` is true."""
        self._failing.append(condition)

    def flush(self) -> None:
        # Chunks keep each statement's jump targets short.
        for start in range(0, len(self._failing), 64):
            chunk = self._failing[start : start + 64]
            self.lines.append(f"{self.indent}if {' or '.join(chunk)}: return MISS")
        self._failing.clear()

    def require_collected(self) -> None:
        """Check what has been put off to be asked together with its like."""
        self._require_alike()
        self._require_empty()
        self._require_same_items()

    def _require_empty(self) -> None:
        """Check the containers that have to be empty, and those that must not be."""
        if self._filled:
            self.fail_if(f"not all({self.constant(tuple(self._filled))})")
        if self.empty:
            self.fail_if(f"any({self.constant(tuple(self.empty))})")
        if self.hooks or self.hookless:
            watched = Hooks(tuple(self.hooks), tuple(self.hookless))
            name = self.constant(watched)
            self.fail_if(f"{name}.handle.next_id != {name}.seen and {name}.registered()")
        self.empty, self._filled, self.hooks, self.hookless = [], [], [], []

    def _plainly_held(self, origin: Origin) -> bool:
        """Whether a known object is there whose length and membership no Python code answers."""
        held = self.pinned(origin)
        return held is not None and not _answers(type(held[0]), "__contains__", "__len__", "__bool__")

    def _collect(self, kind: str, key: str, base: Origin, value: Any) -> None:
        self.value(base)  # its own path is read and checked before
        self._alike.setdefault((kind, key), []).append((base, value))

    def _require_alike(self) -> None:
        """Check what was collected: in loops where there is much of a kind."""
        for (kind, key), members in self._alike.items():
            if len(members) < _MANY:
                for base, value in members:
                    if kind == "absence":
                        self.fail_if(f"{key!r} in {self.value(base)}")
                    else:
                        missing = hasattr(type(self._known(base)), "__missing__")
                        read = f"{self.value(base)}.get({key!r}, MISS)" if missing else self._subscript(base, key)
                        self.fail_if(f"{read} is not {self.constant(value)}")
                continue
            objects = tuple(self._known(base) for base, _ in members)
            values = tuple(value for _, value in members)
            self.flush()
            if kind == "absence":
                test, over = f"{key!r} in d", f"d in {self.constant(objects)}"
            elif len({id(value) for value in values}) == 1:
                test, over = f"d[{key!r}] is not {self.constant(values[0])}", f"d in {self.constant(objects)}"
            else:
                pairs = tuple(zip(objects, values, strict=True))
                test, over = f"d[{key!r}] is not o", f"d, o in {self.constant(pairs)}"
            self.lines += [f"{self.indent}for {over}:", f"{self.indent}    if {test}: return MISS"]
        self._alike.clear()

    def _known(self, base: Origin) -> Any:
        held = self.pinned(base)
        assert held is not None
        return held[0]

    def _subscript(self, base: Origin, key: str) -> str:
        cls = _class_of(base)
        if cls is not None and _found_as_it_is(cls, key):
            return f"{self.constant(cls)}.{key}"
        return f"{self.value(base)}[{key!r}]"

    def _among_its_like(self, origin: Origin) -> bool:
        """Whether this is an item of a known sequence, or of a known dictionary whose key has a ``__hash__`` written in
        Python (a tensor)."""
        if origin.step is not Step.ITEM or origin.base is None or origin in self._values:
            return False
        below = self.pinned(origin.base)
        if below is None:
            return False
        if isinstance(origin.key, torch.Tensor):
            return isinstance(below[0], dict)
        return type(origin.key) is int and origin.key >= 0 and type(below[0]) in (list, tuple)

    def _require_same_items(self) -> None:
        """Check sequences, and dictionaries keyed by tensors (an optimizer's state) without hashing the keys."""
        for name, (below, keys, values) in self._same_items.items():
            assert below is not None
            if type(below[0]) in (list, tuple):
                if keys == list(range(len(keys))):  # more may stand behind them
                    first = self.constant(tuple(values))
                    self.fail_if(f"len({name}) < {len(keys)} or not all(map(same, {name}, {first}))")
                else:
                    for key, value in zip(keys, values, strict=True):
                        self.fail_if(f"{name}[{key}] is not {self.constant(value)}")
                continue
            found = list(below[0].items())
            if len(found) == len(keys) and all(k is key for (k, _), key in zip(found, keys, strict=True)):
                kept, expected = self.constant(tuple(keys)), self.constant(tuple(values))
                self.fail_if(f"len({name}) != {len(keys)} or not all(map(same, {name}, {kept}))")
                self.fail_if(f"not all(map(same, {name}.values(), {expected}))")
            else:
                for key, value in zip(keys, values, strict=True):
                    self.fail_if(f"{name}.get({self.constant(key)}, MISS) is not {self.constant(value)}")
        self._same_items.clear()

    # -- paths ----------------------------------------------------------------------------------------------------

    def access(self, origin: Origin) -> str:
        """An expression that reads the path's last step."""
        known = self._values.get(origin)
        if known is not None:
            return known
        match origin.step:
            case Step.ARG:
                return f"args[{origin.key}]"
            case Step.KWARG:
                return f"kwargs[{origin.key!r}]"
            case Step.CONST:
                return self.constant(origin.key)
            case Step.CELL:
                return f"{self.constant(origin.key)}.cell_contents"
            case Step.EXTERN | Step.PARAMETER:
                raise AssertionError(f"{origin} is not known yet")
        base = origin.base
        assert base is not None
        pinned = self.pinned(base)
        below = "" if _class_of(base) is not None and origin.step is Step.ITEM else self.value(base)
        match origin.step:
            case Step.DICT:
                if pinned is not None and _has_own_dict(pinned[0]):
                    return self.constant(pinned[0].__dict__, "D")
                return f"{below}.__dict__"
            case Step.ITEM:
                key = self.constant(origin.key)
                if (cls := _class_of(base)) is not None and _found_as_it_is(cls, origin.key):
                    return f"{self.constant(cls)}.{origin.key}"
                if _class_of(base) is not None:
                    below = self.value(base)
                if pinned is not None and _answers(type(pinned[0]), "__getitem__", "get"):
                    return f"item({below}, {key})"
                if pinned is None or hasattr(type(pinned[0]), "__missing__"):
                    # A read must not make a default: only exact dictionaries and sequences are subscripted.
                    if pinned is not None:
                        return f"{below}.get({key}, MISS)"
                    return f"{below}[{key}]" if self._types.get(base) in _EXACT else f"item({below}, {key})"
                return f"{below}[{key}]"
            case Step.AT:
                return f"item({below}, {self.number(origin.key)})"
            case Step.FIELD:
                return f"{below}.{origin.key}"
            case Step.LEN:
                return self._length(base)
            case Step.NUMBERS:
                return f"{self.constant(numbers_of)}({below})"
            case Step.SIZE:
                return f"{below}.size({origin.key})"
            case Step.OF:
                return f"{self.constant(origin.key)}({below})"
            case Step.CONTEXT:
                return f"{below}.get(None)"
        raise AssertionError(origin.step)

    def _class(self, origin: Origin) -> type | None:
        """The class of what is found there, where it is known."""
        held = self.pinned(origin)
        return type(held[0]) if held is not None else self._types.get(origin)

    def _length(self, origin: Origin) -> str:
        cls = self._class(origin)
        if cls is not None and _answers(cls, "__len__", "__bool__"):
            return f"{self.constant(native_class(cls).__len__)}({self.value(origin)})"
        return f"len({self.value(origin)})"

    def value(self, origin: Origin) -> str:
        """A name that holds the path's value, read at most once."""
        known = self._values.get(origin)
        if known is None:
            text = self.access(origin)
            if text.isidentifier():
                known = text
            else:
                known = self.fresh()
                self.line(f"{known} = {text}")
            self._values[origin] = known
        return known

    def pinned(self, origin: Origin) -> tuple[Any] | None:
        """The object that is known to be there, in a tuple, or None."""
        if origin.step is Step.CONST:
            return (origin.key,)
        if origin.step is Step.DICT and origin.base is not None:
            below = self.pinned(origin.base)
            if below is not None and _has_own_dict(below[0]):
                return (below[0].__dict__,)
        name = self._values.get(origin)
        return (self.names[name],) if name in self.names else None

    # -- numbers --------------------------------------------------------------------------------------------------

    def give(self, origin: Origin, name: str) -> None:
        """From here on, the value at ``origin`` has this name."""
        self._values[origin] = name

    def give_fetch(self, fetch: Fetch, text: str) -> None:
        """From here on, this fetch is the value of ``text``."""
        self._fetches[fetch.token] = text

    def knows(self, fetch: Fetch) -> bool:
        return fetch.token in self._fetches

    def give_number(self, origin: Origin, value: Any) -> None:
        """From here on, the number at ``origin`` is known to be this constant."""
        self._expressions[Read(origin).token] = self.constant(value)

    def number(self, expr: Any) -> str:
        """The text of an expression; each application is computed once."""
        if isinstance(expr, Read):
            known = self._expressions.get(expr.token)
            return known if known is not None else self.value(expr.origin)
        if isinstance(expr, Fetch):
            return self._fetches[expr.token]
        if isinstance(expr, Size):
            return self.number(self.sizes[expr.token])
        if isinstance(expr, Turn):
            if not expr.step:
                return repr(expr.first)
            return TURN if (expr.first, expr.step) == (0, 1) else f"({expr.first} + {expr.step} * {TURN})"
        if not isinstance(expr, Apply):
            return self.constant(expr)
        known = self._expressions.get(expr.token)
        if known is None:
            parts = [self.number(a) for a in expr.args]
            sign = INFIX.get(expr.func)
            text = (
                f"{parts[0]} {sign} {parts[1]}"
                if sign and len(parts) == 2
                else (f"{self.constant(expr.func, 'F')}({', '.join(parts)})")
            )
            known = self.fresh("n")
            self.line(f"{known} = {text}")
            self._expressions[expr.token] = known
        return known

    # -- assumptions ----------------------------------------------------------------------------------------------

    def require(self, assumption: Assumption) -> None:
        """Give up unless the assumption holds."""
        match assumption:
            case Arguments(count=count, names=names):
                self.fail_if(f"len(args) != {count}")
                if names:
                    self.fail_if(f"kwargs.keys() != {self.constant(frozenset(names))}")
                else:
                    self.fail_if("kwargs")
            case Kept(origin=origin, value=value):
                self._values[origin] = self.constant(value)
            case Identity(origin=origin, value=value) if self._among_its_like(origin):
                base = origin.base
                assert base is not None
                _, keys, values = self._same_items.setdefault(self.value(base), (self.pinned(base), [], []))
                keys.append(origin.key)
                values.append(value)
                self._values[origin] = self.constant(value)
            case Identity(origin=origin, value=value) if self.reading_is_cheap(origin) and type(origin.key) is str:
                assert origin.base is not None
                self._collect("identity", origin.key, origin.base, value)
                self._values[origin] = self.constant(value)
            case Identity(origin=origin, value=value):
                name = self.constant(value)
                if origin.step is not Step.CONST:
                    self.fail_if(f"{self.access(origin)} is not {name}")
                self._values[origin] = name
            case ValueOf(origin=origin, value=value):
                self._require_value(origin, value)
            case TypeOf(origin=Origin(step=Step.FIELD, key="grad") as origin):
                self.fail_if(f"{self.access(origin)} is None")  # a gradient is a tensor or None
            case TypeOf(origin=origin, cls=cls):
                self.fail_if(f"type({self.value(origin)}) is not {self.constant(cls)}")
                self._types[origin] = cls
            case InstanceOf(origin=origin, classes=classes, outcome=outcome):
                test = f"{self.constant(isinstance)}({self.value(origin)}, {self.constant(classes)})"
                self.fail_if(f"not {test}" if outcome else test)
            case KeyPresence(origin=origin, key=str() as key, present=False) if self._plainly_held(origin):
                self._collect("absence", key, origin, None)
            case KeyPresence(origin=origin, key=key, present=present):
                self._require_key(origin, key, present)
            case Emptiness(origin=origin, filled=False) if self._plainly_held(origin):
                self.access(origin)
                (self.hooks if _is_hooks(origin) else self.empty).append(self._known(origin))
            case Emptiness(origin=origin, filled=True) if self._plainly_held(origin):
                self._filled.append(self._known(origin))
            case Emptiness(origin=origin, filled=filled):
                self.fail_if(f"{'not ' if filled else ''}{self._length(origin)}")
            case ContainerKeys(origin=origin, keys=keys):
                if keys:
                    self.fail_if(f"not same_keys({self.value(origin)}, {self.constant(keys)})")
                else:
                    self.fail_if(self._length(origin))
            case SameObject(first=first, second=second, same=same):
                self.fail_if(f"{self.value(first)} is {'not ' if same else ''}{self.value(second)}")
            case Condition(expr=expr, outcome=outcome):
                self._require_condition(expr, outcome)
            case TensorKind() | AmbientState():
                raise AssertionError(f"{type(assumption).__name__} is checked by the runtime's own code")
            case _:
                raise AssertionError(f"no code for {type(assumption).__name__}")

    def _require_key(self, origin: Origin, key: Any, present: bool) -> None:
        container, found = self._class(origin), self.number(key)
        if container is not None and _answers(container, "__contains__"):
            test = f"{self.constant(native_class(container).__contains__)}({self.value(origin)}, {found})"
            self.fail_if(f"not {test}" if present else test)
        else:
            self.fail_if(f"{found} {'not in' if present else 'in'} {self.value(origin)}")

    def _require_value(self, origin: Origin, value: Any) -> None:
        if type(value) in _SINGLETONS and self.reading_is_cheap(origin) and type(origin.key) is str:
            assert origin.base is not None
            self._collect("identity", origin.key, origin.base, value)
        elif type(value) in _SINGLETONS:
            self.fail_if(f"{self.access(origin)} is not {self.constant(value)}")
        elif origin.step is Step.LEN:
            self.fail_if(f"{self.access(origin)} != {value}")
        elif self.reading_is_cheap(origin):
            # Nearly always the same object is still there; only another one is looked at.
            held = self.object(value)
            access = self.access(origin)
            self.fail_if(f"{access} is not {held} and not same_value({access}, {held})")
        else:
            name, held = self.value(origin), self.object(value)
            self.fail_if(f"{name} is not {held} and not same_value({name}, {held})")

    def reading_is_cheap(self, origin: Origin) -> bool:
        """Whether the path's last step may as well be read twice: one subscript of an object that is known."""
        return (
            origin not in self._values
            and origin.step is Step.ITEM
            and origin.base is not None
            and (held := self.pinned(origin.base)) is not None
            and type(held[0]) in (dict, list, tuple, collections.OrderedDict)
        )

    def _require_condition(self, expr: Any, outcome: Any) -> None:
        if (filled := self._asked_to_be_filled(expr, outcome)) is not None:
            self._filled.append(filled)
        elif isinstance(outcome, bool):
            text = self.number(expr.args[0]) if isinstance(expr, Apply) and expr.func is bool else self.number(expr)
            self.fail_if(f"{'not ' if outcome else ''}{text}")
        else:
            text = self.number(expr)
            self.fail_if(f"not ({text} == {self.constant(outcome)})")

    def _asked_to_be_filled(self, expr: Any, outcome: Any) -> Any:
        """The known container of which ``len(container) == 0`` has to be false (an optimizer's state), or None."""
        match expr:
            case Apply(func=operator.eq, args=[Read(origin=Origin(step=Step.LEN, base=Origin() as held)), 0]):
                if outcome is False and self._plainly_held(held):
                    return self._known(held)
        return None


def _has_own_dict(value: Any) -> bool:
    """Whether the object's ``__dict__`` is one and the same at each call, from whichever thread."""
    return type(value.__dict__) is dict and not isinstance(value, threading.local)


def _answers(cls: type, *names: str) -> bool:
    """Whether one of these methods of a container class is written in Python: a guard goes below it."""
    return cls not in _EXACT and any(isinstance(getattr(cls, name, None), types.FunctionType) for name in names)


def _is_hooks(origin: Origin) -> bool:
    return origin.step is Step.ITEM and isinstance(origin.key, str) and origin.key.endswith("_hooks")


def _class_of(origin: Origin) -> type | None:
    """The class whose namespace the path is, or None."""
    if origin.step is Step.DICT and origin.base is not None and origin.base.step is Step.CONST:
        key = origin.base.key
        return key if isinstance(key, type) else None
    return None


def _found_as_it_is(cls: type, name: Any) -> bool:
    """Whether ``cls.name`` gives the very object in the class's namespace."""
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("__"):
        return False
    raw = vars(cls).get(name)
    return raw is not None and getattr(cls, name, None) is raw and not hasattr(type(cls), name)
