"""The object through which the rewritten code of one function calls the hooks of the current semantics.

``rewrite`` puts a ``Bound`` into the code of each twin and numbers the sites. Each method here looks up the current
semantics and passes it the site. Where no semantics is current, it does what Python does. These methods run for every
construct of a watched program.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import sys
import warnings
from builtins import iter  # a program may rebind builtins.iter
from collections.abc import Iterable
from contextlib import AbstractContextManager
from types import CellType, FunctionType, MethodType
from typing import Any

from torchjanus.rewrite import Anchor, Site, twin
from torchjanus.rewrite.hooks.frames import hide_frames
from torchjanus.rewrite.hooks.lookup import MISSING, imported_names
from torchjanus.rewrite.hooks.patterns import Compared, opened, viewed
from torchjanus.rewrite.hooks.semantics import (
    BINARY,
    COMPARE,
    CURRENT,
    INPLACE,
    NOTHING,
    UNARY,
    Semantics,
    invoked,
    native_unpack,
)
from torchjanus.rewrite.hooks.slots import (
    AttributeSlot,
    CellSlot,
    Entered,
    GlobalSlot,
    ItemSlot,
    Link,
    Operand,
    PatternValue,
    Unpacked,
    holds,
)

__all__ = ["Bound", "class_keyword", "made_class", "rewritten"]

NATIVE = Semantics()

# Callables that look at the frame of their caller. They are called natively, from the user's frame.
FRAME_READERS: tuple[Any, ...] = (
    builtins.breakpoint,
    builtins.eval,
    builtins.exec,
    builtins.globals,
    builtins.locals,
    inspect.currentframe,
    inspect.stack,
    sys._getframe,
    warnings.warn,
    *filter(None, (getattr(sys, "_getframemodulename", None),)),  # since Python 3.12
)
BARE_FRAME_READERS: tuple[Any, ...] = (
    builtins.dir,
    builtins.vars,
    builtins.super,
)  # only when called without arguments
_frame_readers = frozenset(map(id, FRAME_READERS))
_bare_frame_readers = frozenset(map(id, (*FRAME_READERS, *BARE_FRAME_READERS)))


def made_class(made: Any) -> Any:
    """Return a class that a class statement has made. A semantics may record it where it is asked to call this."""
    return made


def class_keyword(value: Any) -> Any:
    """Return ``value``, which a class statement passes to native code. A semantics may pass something else."""
    return value


class Bound(Anchor):
    """The hook object in the code of one function and of the functions that are defined inside it.

    A method's ``n`` is the index of the asking site in ``sites``.
    """

    __slots__ = ("cells", "function", "globals", "sites")

    def __init__(self, function: FunctionType, sites: tuple[Site, ...]) -> None:
        self.function = function  # the user's own, not its twin
        self.globals: dict[str, Any] = function.__globals__
        self.cells: dict[str, CellType] = dict(
            zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        )
        self.sites = sites

    # ---- attributes and items ----

    def attr(self, n: int, obj: Any, name: str) -> Any:
        semantics = CURRENT.get()
        return getattr(obj, name) if semantics is None else semantics.attr(self.sites[n], obj, name)

    def attr_target(self, n: int, obj: Any, name: str) -> AttributeSlot:
        return AttributeSlot(CURRENT.get() or NATIVE, self.sites[n], obj, name)

    def attr_update(self, n: int, obj: Any, name: str, op: str) -> AttributeSlot:
        return AttributeSlot(CURRENT.get() or NATIVE, self.sites[n], obj, name, op)

    def item(self, n: int, obj: Any, key: Any) -> Any:
        semantics = CURRENT.get()
        return obj[key] if semantics is None else semantics.item(self.sites[n], obj, key)

    def item_target(self, n: int, obj: Any, key: Any) -> ItemSlot:
        return ItemSlot(CURRENT.get() or NATIVE, self.sites[n], obj, key)

    def item_update(self, n: int, obj: Any, key: Any, op: str) -> ItemSlot:
        return ItemSlot(CURRENT.get() or NATIVE, self.sites[n], obj, key, op)

    slice = slice

    # ---- variables ----

    def get_global(self, n: int, name: str, value: Any) -> Any:
        semantics = CURRENT.get()
        return value if semantics is None else semantics.get_global(self.sites[n], self.globals, name, value)

    def set_global(self, n: int, name: str, value: Any) -> Any:
        semantics = CURRENT.get()
        return value if semantics is None else semantics.set_global(self.sites[n], self.globals, name, value)

    def del_global(self, n: int, name: str) -> None:
        semantics = CURRENT.get()
        if semantics is not None:
            semantics.del_global(self.sites[n], self.globals, name)

    def global_target(self, n: int, name: str) -> GlobalSlot:
        return GlobalSlot(CURRENT.get() or NATIVE, self.sites[n], self.globals, name)

    def imported(self, n: int, module: str, level: int, name: str, value: Any) -> Any:
        """Record that ``from module import name`` read a variable of the module, and return its value."""
        semantics = CURRENT.get()
        if semantics is None:
            return value
        names = imported_names(module, level, self.globals)
        if names.get(name, MISSING) is not value:
            return value  # the module's __getattr__ returned it
        return semantics.get_global(self.sites[n], names, name, value)

    def get_cell(self, n: int, name: str, value: Any) -> Any:
        semantics = CURRENT.get()
        return value if semantics is None else semantics.get_cell(self.sites[n], self.cells[name], name, value)

    def set_cell(self, n: int, name: str, value: Any) -> Any:
        semantics = CURRENT.get()
        return value if semantics is None else semantics.set_cell(self.sites[n], self.cells[name], name, value)

    def del_cell(self, n: int, name: str) -> None:
        semantics = CURRENT.get()
        if semantics is not None:
            semantics.del_cell(self.sites[n], self.cells[name], name)

    def cell_target(self, n: int, name: str) -> CellSlot:
        return CellSlot(CURRENT.get() or NATIVE, self.sites[n], self.cells[name], name)

    # ---- calls ----

    def callee(self, n: int, fn: Any) -> Any:
        semantics = CURRENT.get()
        if semantics is None:
            return fn
        if id(fn) in _frame_readers:
            return semantics.frame_reader(self.sites[n], self.globals, fn)
        return semantics.callee(self.sites[n], fn)

    def bare_callee(self, n: int, fn: Any) -> Any:
        """Return what a call without arguments calls in place of ``fn``."""
        semantics = CURRENT.get()
        if semantics is None or fn is super:
            return fn
        if id(fn) in _bare_frame_readers:
            return semantics.frame_reader(self.sites[n], self.globals, fn)
        return semantics.callee(self.sites[n], fn)

    def starred_callee(self, n: int, fn: Any) -> Any:
        """Return what a call with starred arguments calls in place of ``fn``."""
        return invoked(self.callee(n, fn))

    def star(self, n: int, iterable: Any) -> Any:
        semantics = CURRENT.get()
        return iterable if semantics is None else semantics.star(self.sites[n], iterable)

    def double_star(self, n: int, mapping: Any) -> Any:
        semantics = CURRENT.get()
        return mapping if semantics is None else semantics.double_star(self.sites[n], mapping)

    def returned(self, n: int, value: Any) -> Any:
        semantics = CURRENT.get()
        return value if semantics is None else semantics.returned(self.sites[n], value)

    # ---- truth and operators ----

    def branch(self, n: int, value: Any) -> bool:
        semantics = CURRENT.get()
        return bool(value) if semantics is None else semantics.branch(self.sites[n], value)

    def operand(self, n: int, value: Any) -> Operand:
        return Operand(CURRENT.get() or NATIVE, self.sites[n], value)

    def value(self, outcome: Any) -> Any:
        """Return the result of ``and`` or ``or``: the operand that decided it, or the value of the last operand."""
        return outcome.value if type(outcome) is Operand else outcome

    def not_(self, n: int, value: Any) -> bool:
        semantics = CURRENT.get()
        return not value if semantics is None else semantics.not_(self.sites[n], value)

    def compare(self, n: int, op: str, a: Any, b: Any) -> Any:
        semantics = CURRENT.get()
        return COMPARE[op](a, b) if semantics is None else semantics.compare(self.sites[n], op, a, b)

    def chain(self, n: int, op: str, a: Any, b: Any) -> Link:
        return Link(CURRENT.get() or NATIVE, self.sites, n, op, a, b, 1)

    def holds(self) -> bool:
        return holds(2)

    def binary(self, n: int, op: str, a: Any, b: Any) -> Any:
        semantics = CURRENT.get()
        return BINARY[op](a, b) if semantics is None else semantics.binary(self.sites[n], op, a, b)

    def inplace(self, n: int, op: str, a: Any, b: Any) -> Any:
        semantics = CURRENT.get()
        return INPLACE[op](a, b) if semantics is None else semantics.inplace(self.sites[n], op, a, b)

    def unary(self, n: int, op: str, a: Any) -> Any:
        semantics = CURRENT.get()
        return UNARY[op](a) if semantics is None else semantics.unary(self.sites[n], op, a)

    # ---- iteration ----

    def iterate(self, n: int, iterable: Any) -> Any:
        semantics = CURRENT.get()
        return iterable if semantics is None else semantics.iterate(self.sites[n], iterable)

    def delegate(self, n: int, iterable: Any) -> Any:
        semantics = CURRENT.get()
        return iterable if semantics is None else semantics.delegate(self.sites[n], iterable)

    def descend(self, n: int, value: Any, op: str, bound: int) -> Any:
        semantics = CURRENT.get()
        return value if semantics is None else semantics.descend(self.sites[n], value, op, bound)

    def hashed(self, n: int, value: Any) -> Any:
        semantics = CURRENT.get()
        return value if semantics is None else semantics.hashed(self.sites[n], value)

    def making(self, n: int) -> int:
        semantics = CURRENT.get()
        return -1 if semantics is None else semantics.making(self.sites[n])

    def gathered(self, n: int, value: Any) -> Any:
        semantics = CURRENT.get()
        return value if semantics is None else semantics.gathered(self.sites[n], value)

    def made(self, n: int, level: int, container: Any) -> Any:
        semantics = CURRENT.get()
        return container if semantics is None else semantics.made(self.sites[n], level, container)

    def iterate_unpacked(self, n: int, described: tuple[Any, ...], iterable: Any) -> Iterable[Any]:
        semantics = CURRENT.get()
        if semantics is None:
            semantics, elements = NATIVE, iter(iterable)
        else:
            elements = iter(semantics.iterate(self.sites[n], iterable))
        return map(functools.partial(Unpacked, semantics, self.sites, described), elements)

    def unpack(self, described: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
        semantics = CURRENT.get()
        _, before, star, after, nested = described
        if semantics is None and nested is None:
            return native_unpack(value, before, star, after)
        return Unpacked(semantics or NATIVE, self.sites, described, value).take()

    def fan(self, described: tuple[tuple[Any, ...] | None, ...], value: Any) -> tuple[Any, ...]:
        """Return one value for each of the targets of ``a = (b, c) = value``."""
        semantics = CURRENT.get() or NATIVE
        return tuple(value if each is None else Unpacked(semantics, self.sites, each, value) for each in described)

    # ---- blocks and the rest ----

    def context(self, n: int, described: tuple[Any, ...] | None, manager: Any) -> AbstractContextManager[Any, Any]:
        semantics = CURRENT.get() or NATIVE
        entered: Any = semantics.context(self.sites[n], manager)
        made = Entered(semantics, self.sites, described, entered)
        return made if made.complete else entered  # Python raises its own error for what is no context manager

    def region(self, n: int) -> AbstractContextManager[Any, Any]:
        semantics = CURRENT.get()
        return NOTHING if semantics is None else semantics.region(self.sites[n])

    def made_class(self) -> Any:
        """Return the function that rewritten code calls with each new class before the class decorators."""
        return made_class

    def class_keyword(self, n: int, value: Any) -> Any:
        """Return what a class statement passes to the native code that makes the class."""
        semantics = CURRENT.get()
        return value if semantics is None else semantics.call(self.sites[n], class_keyword, (value,), {})

    def metaclass(self, n: int, value: Any) -> Any:
        """Return the metaclass that a class statement names. A function in its place is called as any other callee."""
        semantics = CURRENT.get()
        if semantics is None or type(value) not in (FunctionType, MethodType):
            return value
        return value if hasattr(value, "__prepare__") else semantics.callee(self.sites[n], value)

    def raised(self, n: int, exception: Any) -> Any:
        semantics = CURRENT.get()
        return exception if semantics is None else semantics.raised(self.sites[n], exception)

    def matched(self, n: int, subject: Any) -> Any:
        semantics = CURRENT.get()
        return subject if semantics is None else viewed(semantics, self.sites[n], subject)

    def compared(self, n: int, value: Any) -> PatternValue:
        semantics = CURRENT.get()
        return PatternValue(value if semantics is None else Compared(semantics, self.sites[n], value))

    def key(self, value: Any) -> PatternValue:
        return PatternValue(value)

    def opened(self, value: Any) -> Any:
        return value if CURRENT.get() is None else opened(value)

    def bound(self, *values: Any) -> bool:
        return True

    def caught(self, n: int) -> None:
        exception = sys.exception()
        if exception is not None:
            hide_frames(exception)
            semantics = CURRENT.get()
            if semantics is not None:
                semantics.caught(self.sites[n], exception)

    def join(self, n: int, *pieces: str) -> str:
        return (CURRENT.get() or NATIVE).join(self.sites[n], pieces)

    def format(self, n: int, value: Any, conversion: str, spec: str) -> str:
        return (CURRENT.get() or NATIVE).format(self.sites[n], value, conversion, spec)


def rewritten(fn: FunctionType) -> FunctionType:
    """Return the twin of ``fn`` whose hooks ask the current semantics. Raises SourceUnavailable."""
    return twin(fn, Bound)
