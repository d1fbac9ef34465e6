"""Finds the program's own code that native code can reach from its arguments, and what that code may change.

Native code calls back: ``print`` calls an object's text method and a file's ``write``, a logger its handlers and
filters, ``pickle`` an object's state methods, a thread its target. What such a function may change is read from its
code (``code_effects``). In: what native code is given. Out: a ``Reach``. Knows nothing of traces.
"""

from __future__ import annotations

import builtins
import collections
import contextvars
import dis
import functools
import gc
import logging
import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from torchjanus.core.kinds import getattr, hasattr, isinstance, module_of
from torchjanus.semantics.known.code_effects import CHANGING, CodeEffects, code_effects
from torchjanus.semantics.known.foreign import is_foreign_module

__all__ = ["Reach", "does_more_than_read", "is_own", "of_logger", "reach"]

_SEEN = 3000  # the most objects that one search visits, breadth first
_ATOMS = (
    bool, int, float, complex, str, bytes, type(None), types.CodeType, torch.dtype, torch.device, torch.Size, range
)  # fmt: skip
# Native code looks these up by name on any object.
_PROTOCOLS = frozenset(
    """write writelines flush read readline readlines readinto close seek tell isatty fileno truncate emit filter format
    handle default run persistent_id reducer_override extra_repr get_extra_state""".split()
)
# Methods that native code does not call on an object that it shows, stores or calls.
_NOT_CALLED = frozenset(
    """__init__ __new__ __init_subclass__ __class_getitem__ __set_name__ __setattr__ __delattr__ __setitem__ __delitem__
    __set__ __delete__ __setstate__ __del__ __iadd__ __isub__ __imul__ __itruediv__ __ifloordiv__ __imod__ __ipow__
    __iand__ __ior__ __ixor__ __ilshift__ __irshift__ __imatmul__""".split()
)
_CHANGING_TENSORS = frozenset("backward step zero_grad load_state_dict out data grad copyto".split())
_DRAWING = frozenset("random rand randn randint randperm seed manual_seed set_rng_state bernoulli dropout".split())
_MODES = frozenset(
    """set_grad_enabled _set_grad_enabled set_default_dtype set_default_device set_default_tensor_type
    use_deterministic_algorithms set_autocast_enabled set_num_threads""".split()
)
_ANYTHING = frozenset("setattr delattr exec eval vars globals locals __dict__ __setattr__ __delattr__".split())
_LOOKING = frozenset({"vars", "__dict__"})
_HARMLESS_MODULES = frozenset(
    """math logging itertools functools operator collections string textwrap json dataclasses typing enum abc contextlib
    types reprlib pprint builtins""".split()
)
_GIVEN_ONLY = frozenset({"random", "time"})  # modules whose functions look at what they are given only
_HARMLESS = frozenset(
    """abs all any ascii bool bytes callable chr complex dict divmod enumerate filter float format frozenset getattr
    hasattr hash hex id int isinstance issubclass iter len list map max min next object oct ord pow property range repr
    reversed round set slice sorted str sum super tuple type zip staticmethod classmethod print""".split()
)


def is_own(module: Any) -> bool:
    """Whether the module of this name is the program's, or a library's that is entered."""
    if not isinstance(module, str) or is_foreign_module(module):
        return False
    root = module.partition(".")[0]
    return root == "__main__" or (
        root not in sys.stdlib_module_names and root not in ("torch", "torchjanus", "builtins")
    )


@dataclass
class Reach:
    """The program's own code that native code may run, and what that code may change."""

    functions: dict[int, Any] = field(default_factory=dict)
    objects: dict[int, Any] = field(default_factory=dict)  # containers, instances, classes and tensors that it reaches
    names: set[str] = field(default_factory=set)  # that it looks up
    sets: set[str] = field(default_factory=set)  # attributes that it sets
    variables: set[tuple[int, str]] = field(default_factory=set)  # globals that it sets, with the id of their namespace
    cells: set[int] = field(default_factory=set)  # variables of enclosing functions that it sets
    items: bool = False  # whether it may change containers and tensors
    anything: bool = False  # whether it may set any attribute
    world: bool = False  # whether it calls what may do anything
    modes: bool = False  # whether it may set modes of torch
    tensors: bool = False  # whether it calls functions of torch, or of NumPy
    unknown: bool = False  # whether it may look at more than was found

    @property
    def changes(self) -> bool:
        """Whether it may change anything that a program can observe."""
        return bool(self.sets or self.variables or self.cells or self.items or self.anything or self.world)


def reach(values: Iterable[Any]) -> Reach:
    """Return the program's own code that native code can reach from these values, and what it may change."""
    walk = _Walk()
    walk.pending.extend(values)
    walk.run()
    made = walk.reach
    if made.tensors:
        made.items = made.items or bool(made.names & _CHANGING_TENSORS)
        made.world = made.world or bool(made.names & _DRAWING)
        made.modes = bool(made.names & _MODES)
    if "set" in made.names and any(isinstance(value, contextvars.ContextVar) for value in made.objects.values()):
        made.items = True
    return made


# Beside changes of objects: advancing iterators, printing, logging.
_DOING = frozenset(
    """next __next__ send throw print write writelines debug info warning warn error exception critical log""".split()
)


def does_more_than_read(functions: Iterable[Any], subject: Any) -> bool:
    """Whether the number of calls of these functions, methods of ``subject``, may make a difference."""
    walk = _Walk()
    walk.pending.extend(functions)
    walk.look_up_on(subject)
    walk.run()
    made = walk.reach
    made.anything = bool(made.names & (_ANYTHING - _LOOKING))  # stores into a namespace count as items
    changing = made.tensors and bool(made.names & (_CHANGING_TENSORS | _DRAWING | _MODES))
    return made.changes or changing or bool(made.names & _DOING)


class _Walk:
    def __init__(self) -> None:
        self.reach = Reach()
        self.pending: collections.deque[Any] = collections.deque()
        self._seen: dict[int, Any] = {}
        self._own: list[Any] = []  # objects, classes and modules that are searched only by name
        self._asked: list[set[str]] = []

    def run(self) -> None:
        names = -1
        while self.pending or names != len(self.reach.names):
            names = len(self.reach.names)
            while self.pending and len(self._seen) < _SEEN:
                self._visit(self.pending.popleft())
            if len(self._seen) >= _SEEN:
                self.reach.unknown = True
                return
            for owner, asked in zip(self._own, self._asked, strict=True):
                for name in self.reach.names - asked:
                    self.pending.extend(_under(owner, name))
                asked |= self.reach.names

    def _visit(self, value: Any) -> None:
        kind = type(value)  # isinstance() may call a method of the program for __class__
        if issubclass(kind, _ATOMS) or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if issubclass(kind, torch.Tensor):
            self.reach.objects[id(value)] = value
        elif issubclass(kind, types.FunctionType):
            self._function(value)
        elif issubclass(kind, types.ModuleType):
            if is_own(value.__name__):
                self._by_name(value)
        elif issubclass(kind, type):
            if is_own(value.__module__):
                self._class(value)
        elif issubclass(kind, logging.Logger):
            self.pending.extend(of_logger(value))
            if is_own(module_of(kind)):
                self.reach.objects[id(value)] = value
                self._by_name(value)
        elif issubclass(kind, types.GeneratorType | types.CoroutineType):
            self._generator(value)
        elif issubclass(kind, functools._lru_cache_wrapper):
            self.pending.append(value.__wrapped__)  # cached results are not searched
        elif issubclass(kind, types.BuiltinFunctionType) and issubclass(type(value.__self__), types.ModuleType):
            return
        elif issubclass(kind, types.BuiltinFunctionType | types.MethodWrapperType):
            if value.__name__ in CHANGING or value.__name__ in _NOT_CALLED:
                self.reach.functions[id(value)] = value  # a call changes its receiver
                self.reach.items = True
            self.pending.append(value.__self__)
        else:
            if not issubclass(kind, tuple | frozenset):
                self.reach.objects[id(value)] = value
            own = [cls for cls in kind.__mro__ if is_own(module_of(cls))]
            self.pending.extend(own)
            if own:
                self._by_name(value)
                self.pending.extend(_native_parts(value))
            else:
                self.pending.extend(_referents(value))

    def look_up_on(self, owner: Any) -> None:
        """Search this object only for the names that the code looks up."""
        self._seen[id(owner)] = owner
        self._by_name(owner)

    def _by_name(self, owner: Any) -> None:
        self._own.append(owner)
        self._asked.append(set())

    def _class(self, cls: type) -> None:
        self.reach.objects[id(cls)] = cls
        self._by_name(cls)
        inherited = {name for base in cls.__mro__ if not is_own(base.__module__) for name in vars(base)}
        if issubclass(cls, torch.nn.Module):
            inherited = set()  # forward() counts only if the code looks it up
        for name, raw in list(vars(cls).items()):
            special = name.startswith("__") and name.endswith("__")
            if name not in _NOT_CALLED and (special or name in inherited or name in _PROTOCOLS):
                self.pending.extend(_unwrapped(raw))

    def _generator(self, value: Any) -> None:
        frame = value.gi_frame if isinstance(value, types.GeneratorType) else value.cr_frame
        if frame is None:
            return
        if is_own(frame.f_globals.get("__name__")):
            self.reach.functions[id(value)] = value
            self._code(frame.f_code, frame.f_globals)
        self.pending.extend(gc.get_referents(value))  # its variables; f_locals would change their order

    def _function(self, fn: types.FunctionType) -> None:
        cells = fn.__closure__ or ()
        self.pending.extend(_content(cell) for cell in cells)
        if not is_own(fn.__globals__.get("__name__")):  # a library's wrapper may have the module name of what it wraps
            return
        reach = self.reach
        reach.functions[id(fn)] = fn
        does = self._code(fn.__code__, fn.__globals__)
        named = dict(zip(fn.__code__.co_freevars, cells, strict=True))
        reach.cells.update(id(named[name]) for name in does.shared if name in named)
        for cell in cells:
            self._global(_content(cell))
        self.pending.extend(fn.__defaults__ or ())
        self.pending.extend((fn.__kwdefaults__ or {}).values())

    def _code(self, code: types.CodeType, namespace: dict[str, Any]) -> CodeEffects:
        reach, does = self.reach, code_effects(code)
        reach.names |= does.names
        reach.sets |= does.sets
        reach.items = reach.items or does.items
        reach.variables.update((id(namespace), name) for name in does.variables)
        reach.anything = reach.anything or bool(does.names & _ANYTHING)
        reach.unknown = reach.unknown or bool(does.imports or does.names & _ANYTHING)
        for name in does.imports:
            self._global(sys.modules.get(name, dis))  # importing a new module may do anything
        for name in does.names:
            if name in namespace:
                value = namespace[name]
                self._global(value)
                self.pending.append(value)
            elif hasattr(builtins, name) and name not in _HARMLESS and not isinstance(getattr(builtins, name), type):
                reach.world = reach.world or name in ("open", "input", "__import__", "exec", "eval", "compile")
                reach.unknown = reach.unknown or name not in ("open", "input")
        return does

    def _global(self, value: Any) -> None:
        """A library's function or module is looked up by name. It may do anything, except for known ones."""
        if is_own(module_of(type(value))) or not (callable(value) or type(value) is types.ModuleType):
            return
        name = value.__name__ if type(value) is types.ModuleType else getattr(value, "__module__", None)
        if not isinstance(name, str) or is_own(name):
            return
        root = name.partition(".")[0]
        if root in ("torch", "numpy"):
            self.reach.tensors = True
        elif root not in _HARMLESS_MODULES:
            self.reach.world = self.reach.items = True
            self.reach.unknown = self.reach.unknown or root not in _GIVEN_ONLY


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _unwrapped(raw: Any) -> Iterator[Any]:
    """Yield a class attribute, or the functions that it wraps."""
    if isinstance(raw, property):
        yield from (part for part in (raw.fget, raw.fset, raw.fdel) if part is not None)
    elif isinstance(raw, staticmethod | classmethod):
        yield raw.__func__
    else:
        yield raw


def _under(owner: Any, name: str) -> Iterator[Any]:
    """Yield an attribute of an object of the program, its own or its class's, without asking its class."""
    try:
        space = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        space = {}
    if name in space:
        yield from _unwrapped(space[name])
    for cls in () if issubclass(type(owner), type | types.ModuleType) else type(owner).__mro__:
        raw = vars(cls).get(name)
        if is_own(module_of(cls)) and raw is not None:
            if isinstance(raw, types.MemberDescriptorType):
                try:
                    yield raw.__get__(owner)
                except AttributeError:
                    continue
            else:
                yield from _unwrapped(raw)


def _native_parts(value: Any) -> Iterator[Any]:
    """Yield what an object of the program holds beside its attributes: elements, parts of library bases."""
    if issubclass(type(value), torch.nn.Module):
        yield from object.__getattribute__(value, "__dict__").get("_modules", {}).values()
    elif issubclass(type(value), dict):
        yield from dict.keys(value)
        yield from dict.values(value)
    elif issubclass(type(value), list | tuple | set | frozenset | collections.deque):
        yield from gc.get_referents(value)
    elif any(cls is not object and not is_own(module_of(cls)) for cls in type(value).__mro__):
        yield from _referents(value)


def _referents(value: Any) -> Iterator[Any]:
    """Yield what an object of a library's class holds: all that Python's collector finds."""
    if issubclass(type(value), torch.nn.Module):
        yield from object.__getattribute__(value, "__dict__").get("_modules", {}).values()
        return
    if type(value) is logging.LogRecord:
        yield from _logged(value)
        return
    if type(value) is types.FrameType:
        yield from _variables(value)
        return
    for part in gc.get_referents(value):
        if part is not type(value):
            yield part


def _variables(frame: types.FrameType) -> Iterator[Any]:
    """Yield what a frame holds, which a traceback might show. Functions are left out, since nothing calls them."""
    if str(frame.f_globals.get("__name__")).partition(".")[0] == "torchjanus":
        return
    for part in gc.get_referents(frame):
        one = _content(part) if type(part) is types.CellType else part
        if type(one) is not types.FunctionType:
            yield one


def _logged(record: logging.LogRecord) -> Iterator[Any]:
    """Yield the values in a log record, which a handler may keep. Tensors are left out: their text is torch's."""
    for part in vars(record).values():
        for one in part if type(part) is tuple else (part,):
            if not issubclass(type(one), torch.Tensor):
                yield one


def of_logger(logger: logging.Logger) -> Iterator[Any]:
    """Yield what a logger calls for a record: the record factory, filters, and the handlers up to the root."""
    yield logging.getLogRecordFactory()
    yield logging.lastResort
    yield from logger.filters
    one: logging.Logger | None = logger
    while one is not None:
        if is_own(module_of(type(one))):
            yield type(one)
        yield from one.handlers
        one = one.parent if one.propagate else None
