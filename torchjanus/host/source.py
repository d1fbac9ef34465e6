"""Builds straight-line Python that reads the heap and computes host values. It knows neither graphs nor executors.

One Source makes the body of one function of ``args`` and ``kwargs``. An access path is read at most once; once an
object is known to be that of the watched runs, what it contains is read from that object directly.
"""

from __future__ import annotations

import math
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, Step, native_class, numbers_of
from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.rewrite.hooks.lookup import MISSING, asks_for_attributes, namespace_of, on_type, own_dict
from torchjanus.trace.values import INFIX, Apply, Fetch, InductionVariable, Read, Size

__all__ = ["ITERATION", "Source", "answers"]

ITERATION = "iteration"  # the index of a loop's iteration, in generated code

_EXACT = (dict, list, tuple)  # subscripting one of these runs no code of the program


class Source:
    """Lines of a function, its constants, and the name that holds each access path's value."""

    def __init__(self, indent: str = "    ") -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}
        self.indent = indent
        self._constants: dict[Any, str] = {}
        self._values: dict[AccessPath, str] = {}
        self._fetches: dict[Any, str] = {}
        self._expressions: dict[Any, str] = {}
        self.sizes: dict[Any, Any] = {}  # of values of the program: numbers, or expressions of inputs' sizes
        self._failing: list[str] = []
        self._types: dict[AccessPath, type] = {}  # classes that have been checked
        self._count = 0

    # -- text -----------------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """Add a statement, after a check of the conditions collected so far."""
        self.flush()
        self.lines.append(self.indent + text)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Add the statements of an inner block. What they compute is not known after it."""
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
        """Return a name (or a literal) for this object."""
        if is_one_of(type(value), (bool, type(None), int, str)) or (type(value) is float and math.isfinite(value)):
            return repr(value)
        key = ("id", id(value))
        name = self._constants.get(key)
        if name is None:
            name = self._constants[key] = f"{prefix}{len(self._constants)}"
            self.names[name] = value
        return name

    def object(self, value: Any) -> str:
        """Return a name for this object, literal or not."""
        name = self._constants.get(("object", id(value)))
        if name is None:
            name = self._constants[("object", id(value))] = f"K{len(self._constants)}"
            self.names[name] = value
        return name

    def fail_if(self, condition: str) -> None:
        """Return MISS from the function where ``condition`` is true."""
        self._failing.append(condition)

    def flush(self) -> None:
        # Chunks keep each statement's jump targets short.
        for start in range(0, len(self._failing), 64):
            chunk = self._failing[start : start + 64]
            self.lines.append(f"{self.indent}if {' or '.join(chunk)}: return MISS")
        self._failing.clear()

    # -- paths ----------------------------------------------------------------------------------------------------

    def access(self, access_path: AccessPath) -> str:
        """Return an expression that reads the access path's last step."""
        known = self._values.get(access_path)
        if known is not None:
            return known
        match access_path.step:
            case Step.ARG:
                return f"args[{access_path.key}]"
            case Step.KWARG:
                return f"kwargs[{access_path.key!r}]"
            case Step.CONST:
                return self.constant(access_path.key)
            case Step.CELL:
                return f"{self.constant(access_path.key)}.cell_contents"
            case Step.EXTERN | Step.PARAMETER:
                raise AssertionError(f"{access_path} is not known yet")
        base = access_path.base
        assert base is not None
        pinned = self.pinned(base)
        if access_path.step is Step.ITEM and (found := self.class_attribute(base, access_path.key)) is not None:
            return found
        below = self.value(base)
        match access_path.step:
            case Step.DICT:
                if pinned is not None and _has_own_dict(pinned[0]):
                    held = self.constant(own_dict(pinned[0]), "D")
                    if not isinstance(pinned[0], _KEEPING):
                        self.fail_if(f"{self._own_dict(below, pinned)} is not {held}")
                    return held
                return self._own_dict(below, pinned)
            case Step.ITEM:
                key = self.constant(access_path.key)
                if pinned is not None and answers(type(pinned[0]), "__getitem__", "get"):
                    return f"item({below}, {key})"
                if pinned is None or hasattr(type(pinned[0]), "__missing__"):
                    # A read must not make a default: only exact dictionaries and sequences are subscripted.
                    if pinned is not None:
                        return f"{below}.get({key}, MISS)"
                    return f"{below}[{key}]" if self._types.get(base) in _EXACT else f"item({below}, {key})"
                return f"{below}[{key}]"
            case Step.AT:
                return f"item({below}, {self.number(access_path.key)})"
            case Step.FIELD:
                return f"{below}.{access_path.key}"
            case Step.LEN:
                return self.length(base)
            case Step.NUMBERS:
                return f"{self.constant(numbers_of)}({below})"
            case Step.SIZE:
                return f"{below}.size({access_path.key})"
            case Step.OF if access_path.key is id and pinned is not None:
                return repr(id(pinned[0]))
            case Step.OF:
                return f"{self.constant(access_path.key)}({below})"
            case Step.CONTEXT:
                return f"{below}.get(None)"
        raise AssertionError(access_path.step)

    def class_attribute(self, base: AccessPath, key: Any) -> str | None:
        """Return an expression that reads a class's attribute, where ``base`` is the class's namespace; None if that
        might not return the item of the namespace."""
        cls = _class_of(base)
        return f"{self.constant(cls)}.{key}" if cls is not None and _found_as_it_is(cls, key) else None

    def class_at(self, access_path: AccessPath) -> type | None:
        """Return the class of the access path's value, where it is known."""
        held = self.pinned(access_path)
        return type(held[0]) if held is not None else self._types.get(access_path)

    def length(self, access_path: AccessPath) -> str:
        """Return an expression for the number of elements."""
        cls = self.class_at(access_path)
        if cls is not None and answers(cls, "__len__", "__bool__"):
            return f"{self.constant(native_class(cls).__len__)}({self.value(access_path)})"
        return f"len({self.value(access_path)})"

    def value(self, access_path: AccessPath) -> str:
        """Return a name that holds the access path's value, which is read at most once."""
        known = self._values.get(access_path)
        if known is None:
            text = self.access(access_path)
            if text.isidentifier() or text.isdecimal():
                known = text
            else:
                known = self.fresh()
                self.line(f"{known} = {text}")
            self._values[access_path] = known
        return known

    def _own_dict(self, text: str, pinned: tuple[Any] | None) -> str:
        """Return the text of an object's namespace, read without a ``__getattribute__`` of the program."""
        if pinned is not None and asks_for_attributes(type(pinned[0])):
            return f"{self.constant(own_dict, 'F')}({text})"
        return f"{text}.__dict__"

    def pinned(self, access_path: AccessPath) -> tuple[Any] | None:
        """Return the object that is known to be there, in a tuple, or None."""
        if access_path.step is Step.CONST:
            return (access_path.key,)
        if access_path.step is Step.DICT and access_path.base is not None:
            below = self.pinned(access_path.base)
            if below is not None and _has_own_dict(below[0]):
                return (own_dict(below[0]),)
        name = self._values.get(access_path)
        return (self.names[name],) if name in self.names else None

    def give(self, access_path: AccessPath, name: str) -> None:
        """Use ``name`` for the value at ``access_path`` from here on."""
        self._values[access_path] = name

    def give_class(self, access_path: AccessPath, cls: type) -> None:
        """Take the class of the value at ``access_path`` as known from here on."""
        self._types[access_path] = cls

    def has(self, access_path: AccessPath) -> bool:
        """Whether the access path has been read."""
        return access_path in self._values

    # -- numbers --------------------------------------------------------------------------------------------------

    def give_fetch(self, fetch: Fetch, text: str) -> None:
        """Use the value of ``text`` for this fetch from here on."""
        self._fetches[fetch.token] = text

    def knows(self, fetch: Fetch) -> bool:
        return fetch.token in self._fetches

    def give_number(self, access_path: AccessPath, value: Any) -> None:
        """Use this constant for the number at ``access_path`` from here on."""
        self._expressions[Read(access_path).token] = self.constant(value)

    def give_expression(self, expr: Apply, text: str) -> None:
        """Use the value of ``text`` for this expression from here on."""
        self._expressions[expr.token] = text

    def number(self, expr: Any) -> str:
        """Return the text of an expression; each application is computed once."""
        if isinstance(expr, Read):
            known = self._expressions.get(expr.token)
            return known if known is not None else self.value(expr.access_path)
        if isinstance(expr, Fetch):
            return self._fetches[expr.token]
        if isinstance(expr, Size):
            return self.number(self.sizes[expr.token])
        if isinstance(expr, InductionVariable):
            if not expr.step:
                return repr(expr.first)
            return ITERATION if (expr.first, expr.step) == (0, 1) else f"({expr.first} + {expr.step} * {ITERATION})"
        if not isinstance(expr, Apply):
            return self.constant(expr)
        known = self._expressions.get(expr.token)
        if known is None:
            parts = [self.number(a) for a in expr.args]
            if all(map(str.isdecimal, parts)):  # identities of known objects
                known = self._expressions[expr.token] = self.constant(expr.func(*map(int, parts)))
                return known
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


# Objects whose ``__dict__`` cannot be replaced, or never is: most objects that a step reads.
_KEEPING = (torch.nn.Module, torch.optim.Optimizer, types.ModuleType, types.FunctionType, type)


def _has_own_dict(value: Any) -> bool:
    """Whether the object has the same ``__dict__`` at each call, from any thread."""
    return type(own_dict(value)) is dict and not isinstance(value, threading.local)


def answers(cls: type, *names: str) -> bool:
    """Whether one of these methods of a container class is written in Python, so that a guard has to go below it."""
    return not is_one_of(cls, _EXACT) and any(not _is_native(on_type(cls, name), name) for name in names)


def _is_native(found: Any, name: str) -> bool:
    """Whether what a class has under the name is a container's own method of that name, or nothing."""
    if found is MISSING or found is None:
        return True
    return isinstance(found, types.WrapperDescriptorType | types.MethodDescriptorType) and found.__name__ == name


def _class_of(access_path: AccessPath) -> type | None:
    """Return the class whose namespace the access path is, or None."""
    if access_path.step is Step.DICT and access_path.base is not None and access_path.base.step is Step.CONST:
        key = access_path.base.key
        return key if isinstance(key, type) else None
    return None


def _found_as_it_is(cls: type, name: Any) -> bool:
    """Whether ``cls.name`` returns the object in the class's namespace."""
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("__"):
        return False
    raw, meta = namespace_of(cls).get(name), type(cls)
    bind = on_type(type(raw), "__get__")
    if raw is None or not (bind is MISSING or isinstance(bind, types.WrapperDescriptorType)):
        return False  # reading it may run code of the program
    if on_type(meta, "__getattribute__") is not type.__getattribute__ or on_type(meta, name) is not MISSING:
        return False
    return getattr(cls, name) is raw
