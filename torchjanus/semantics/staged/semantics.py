"""The ``Staged`` semantics: what is known runs now; what is not becomes a graph (Snek, section 5: staging by type, when
the program runs)."""

from __future__ import annotations

import builtins
import functools
import inspect
import operator
import types
from collections.abc import Callable, Iterable
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch.overrides import resolve_name
from torch.utils import _pytree as pytree

from torchjanus.core.errors import SourceUnavailable, refused
from torchjanus.core.kinds import isinstance, on_type
from torchjanus.rewrite import Site
from torchjanus.rewrite.hooks import BINARY, COMPARE, INPLACE, UNARY, hide_frames
from torchjanus.rewrite.hooks.lifted import BREAK, RETURN, Exit, LiftedSemantics, lifted_form
from torchjanus.semantics.known.not_entered import NATIVE_MODULES, module_reason
from torchjanus.semantics.staged.journal import MUTATORS, reachable, snapshot
from torchjanus.semantics.staged.loops import Loops
from torchjanus.semantics.staged.merging import is_plain
from torchjanus.semantics.staged.natives import NATIVES, Zipped, is_impure
from torchjanus.semantics.staged.staging import EFFECTS, is_staged
from torchjanus.semantics.staged.values import (
    ObjectType,
    Poison,
    StagedList,
    StagedNumber,
    StagedObject,
    StagedRange,
    StagedValue,
)

__all__ = ["Staged"]

_MOST_ITERATIONS = 10_000  # iterations of one loop that are run while staging
_ENTERED_OF_TORCH = "torch.nn.modules"


class Staged(LiftedSemantics):
    """A semantics under which a program makes the graph of a ``Loops``. One for each staging."""

    def __init__(self, staging: Loops, roots: Iterable[Any], applied: Callable[..., Any] | None = None) -> None:
        self.staging = staging
        self.roots = list(roots)  # what was there before: it may not be changed
        self._before: set[int] | None = None
        self.met: dict[int, tuple[Any, ...]] = {}  # what objects of global variables held when they were first read
        self.applied = applied  # asked first with each callee: what makes graph functions of staged ones

    def at(self, site: Site) -> Loops:
        """The program is at this site."""
        self.staging.site = site
        return self.staging

    # ---- what changes ----

    def changes(self, at: Site, obj: Any) -> None:
        staging = self.at(at)
        if self._before is None:
            self._before = reachable(self.roots)
        if id(obj) in self._before or isinstance(obj, type | types.ModuleType):
            raise refused(
                "staged-mutation", f"a {type(obj).__name__} from before the call is changed",
                "A staged function is run once, its graph many times: the change would be made once.",
                "Return what changes.", staging.place,
            )  # fmt: skip
        staging.changes(obj)

    def set_attr(self, at: Site, obj: Any, name: str, value: Any) -> None:
        if isinstance(obj, torch.Tensor | StagedValue):
            raise refused("staged-effect", f"the attribute {name} of a staged value is set", "", "", self.at(at).place)
        self.changes(at, obj)
        setattr(obj, name, value)

    def del_attr(self, at: Site, obj: Any, name: str) -> None:
        self.changes(at, obj)
        delattr(obj, name)

    def set_item(self, at: Site, obj: Any, key: Any, value: Any) -> None:
        staging = self.at(at)
        if isinstance(obj, torch.Tensor):
            staging.operation(torch.Tensor.__setitem__, (obj, key, value), {})
            return
        if any(isinstance(one, StagedValue) for one in (obj, key)):
            raise refused("staged-mutation", "an element of a staged object, or at a staged index, is set", "", "",
                          staging.place)  # fmt: skip
        self.changes(at, obj)
        obj[key] = value

    def del_item(self, at: Site, obj: Any, key: Any) -> None:
        self.changes(at, obj)
        del obj[key]

    def set_global(self, at: Site, owner: dict[str, Any], name: str, value: Any) -> Any:
        raise refused("staged-mutation", f"the global variable {name} is set", "The graph does not set it.",
                      "Return the value.", self.at(at).place)  # fmt: skip

    def del_global(self, at: Site, owner: dict[str, Any], name: str) -> None:
        self.set_global(at, owner, name, None)

    def set_cell(self, at: Site, cell: CellType, name: str, value: Any) -> Any:
        self.changes(at, cell)
        return value

    def get_global(self, at: Site, owner: dict[str, Any], name: str, value: Any) -> Any:
        if isinstance(value, list | dict | set) or hasattr(value, "__dict__") or hasattr(type(value), "__next__"):
            if not isinstance(value, type | types.ModuleType | FunctionType):
                self.roots.append(value)
                self._before = None
                if id(value) not in self.met:
                    self.met |= {n: one for n, one in snapshot([value]).items() if n not in self.met}
        return value

    # ---- reads ----

    def attr(self, at: Site, obj: Any, name: str) -> Any:
        if isinstance(obj, StagedValue | Poison):
            return self._attribute(at, obj, name)
        staging = self.at(at)
        if isinstance(obj, torch.Tensor):
            return getattr(obj, name)
        found = inspect.getattr_static(type(obj), name, None) if not isinstance(obj, type) else None
        if type(found) is property and type(found.fget) is FunctionType and self.enters(found.fget):
            return self.call(at, found.fget, (obj,), {})
        self.staging = staging
        return getattr(obj, name)

    def _attribute(self, at: Site, obj: Any, name: str) -> Any:
        staging = self.at(at)
        if isinstance(obj, Poison):
            obj._raise()
        if isinstance(obj, StagedObject):
            type_: ObjectType = obj.type
            if name in type_.fields:
                return staging.part(getattr, obj, name, type_.fields[name])
            found = inspect.getattr_static(type_.cls, name, None) if type_.cls is not None else None
            if type(found) is property and found.fget is not None:
                return self.call(at, found.fget, (obj,), {})
            if isinstance(found, FunctionType):
                return MethodType(found, obj)
            raise AttributeError(f"'{getattr(type_.cls, '__name__', None)}' object has no attribute '{name}'")
        if isinstance(obj, StagedNumber) and name == "bit_length":
            return functools.partial(staging.compute, int.bit_length, (obj,), "int")
        raise refused("staged-value", f".{name} of a staged {obj.type}", "", "", staging.place)

    def item(self, at: Site, obj: Any, key: Any) -> Any:
        staging = self.at(at)
        if isinstance(obj, StagedList):
            return staging.part(operator.getitem, obj, key, obj.type.element)
        if isinstance(obj, StagedValue):
            raise refused("staged-value", "an element of a staged value", "", "", staging.place)
        if isinstance(key, StagedNumber) and not isinstance(obj, torch.Tensor):
            raise refused(
                "staged-value", f"an element of a {type(obj).__name__} at a staged index", "Which element it is is "
                "known only when the graph runs.", "Stack what it holds into a tensor, or stage the list (Rep).",
                staging.place,
            )  # fmt: skip
        return obj[key]

    # ---- operators ----

    def binary(self, at: Site, op: str, a: Any, b: Any) -> Any:
        return self._operator(at, BINARY[op], a, b)

    def inplace(self, at: Site, op: str, a: Any, b: Any) -> Any:
        if isinstance(a, list | dict | set):
            self.changes(at, a)
            return INPLACE[op](a, b)
        return self._operator(at, INPLACE[op] if isinstance(a, torch.Tensor) else BINARY[op], a, b)

    def _operator(self, at: Site, function: Any, a: Any, b: Any) -> Any:
        staging = self.at(at)
        if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
            if isinstance(a, torch.Tensor | StagedNumber | int | float | complex) and isinstance(
                b, torch.Tensor | StagedNumber | int | float | complex
            ):
                return staging.operation(function, (a, b), {})
        return function(a, b)

    def unary(self, at: Site, op: str, a: Any) -> Any:
        staging = self.at(at)
        return staging.operation(UNARY[op], (a,), {}) if isinstance(a, torch.Tensor) else UNARY[op](a)

    def compare(self, at: Site, op: str, a: Any, b: Any) -> Any:
        staging = self.at(at)
        for one in (a, b):
            if isinstance(one, Poison):
                one._raise()
        if op in ("is", "is not"):
            if any(isinstance(one, StagedObject) for one in (a, b)):
                return staging.compute(COMPARE[op], (a, b))
            return COMPARE[op](a, b)
        if op in ("in", "not in"):
            if is_staged(a) or isinstance(b, torch.Tensor | StagedValue):
                return self._contained(at, op, a, b)
            return COMPARE[op](a, b)
        if any(isinstance(one, StagedObject) for one in (a, b)):
            raise refused("staged-value", "a staged object is compared", "", "Compare by `is`.", staging.place)
        return self._operator(at, COMPARE[op], a, b)

    def _contained(self, at: Site, op: str, a: Any, b: Any) -> Any:
        staging = self.at(at)
        if isinstance(a, StagedNumber) and isinstance(b, tuple | list | range | set | frozenset | dict):
            known = tuple(b)
            if all(isinstance(one, int | float) for one in known):
                return staging.compute(operator.contains if op == "in" else _lacks, (known, a), "bool")
        raise refused("staged-value", f"{op} with a staged value", "", "", staging.place)

    def not_(self, at: Site, value: Any) -> Any:
        staging = self.at(at)
        return staging.compute(operator.not_, (staging.truth(value),)) if is_staged(value) else not value

    def branch(self, at: Site, value: Any) -> bool:
        if is_staged(value):
            raise refused(
                "staged-decision", f"a staged value decides ({at.kind})",
                "Here control flow is native: in generators, coroutines, class bodies, comprehensions of several "
                "loops, and where an assignment expression is within and/or.", "Write it as a statement of a function.",
                self.at(at).place,
            )  # fmt: skip
        self.at(at)
        return bool(value)

    # ---- control flow ----

    def switch(self, at: Site, value: Any, then: Any, orelse: Any, rest: Any) -> Any:
        staging = self.at(at)
        if not is_staged(value):
            return staging.after(then() if value else orelse(), rest)
        return staging.fork(staging.truth(value), then, orelse, rest, "if")

    def after(self, at: Site, left: Any, rest: Any) -> Any:
        return self.at(at).after(left, rest)

    def result(self, left: Any) -> Any:
        if left is None or left.kinds == {0}:
            return None
        if left.kinds == {RETURN}:
            return left.value
        returns = self.staging.compute(operator.ne, (left.flag, 0))
        found = self.staging.choose(returns, lambda: left.value, lambda: None, "return")
        if isinstance(found, Poison):
            found._raise()
        return found

    def choose(self, at: Site, value: Any, then: Any, orelse: Any) -> Any:
        staging = self.at(at)
        if not is_staged(value):
            return then() if value else orelse()
        return staging.choose(staging.truth(value), then, orelse, "conditional")

    def logical(self, at: Site, first: Any, others: tuple[Any, ...]) -> Any:
        if not others:
            return first
        if not is_staged(first):
            return first if bool(first) is (at.kind == "or") else self.logical(at, others[0](), others[1:])
        return self._either(at, first, first, lambda: self.logical(at, others[0](), others[1:]))

    def decided(self, at: Site, first: Any, others: tuple[Any, ...]) -> Any:
        if not others:
            return self.at(at).truth(first) if is_staged(first) else bool(first)
        if not is_staged(first):
            is_or = at.kind == "or"
            return is_or if bool(first) is is_or else self.decided(at, others[0](), others[1:])
        return self._either(at, first, at.kind == "or", lambda: self.decided(at, others[0](), others[1:]))

    def _either(self, at: Site, first: Any, ends: Any, goes_on: Any) -> Any:
        staging = self.at(at)
        predicate = staging.truth(first)
        if at.kind == "or":
            return staging.choose(predicate, lambda: ends, goes_on, at.kind)
        return staging.choose(predicate, goes_on, lambda: ends, at.kind)

    def attempt(self) -> Any:
        return self.staging.attempt()

    def asserts(self, at: Site, value: Any, message: Any) -> None:
        staging = self.at(at)
        if not is_staged(value):
            if not value:
                error = AssertionError(*([] if message is None else [message()]))
                staging.thrown[id(error)] = error
                raise error
            return
        text = () if message is None else (message(),)
        staging.check(staging.truth(value), AssertionError, text)

    def loop(self, at: Site, names: tuple[str, ...], test: Any, body: Any, orelse: Any, rest: Any) -> Any:
        staging = self.at(at)
        for _ in range(_MOST_ITERATIONS):
            decided, left = staging.iteration(test, body)
            if decided is None:
                self.at(at)
                left = staging.repeat(names, test, body, None)
                return self._ended(at, left, orelse, rest)
            if not decided:
                return self._ended(at, None, orelse, rest)
            if left is not None and left.only == BREAK:
                return staging.after(None, rest)
            if left is not None and left.only == RETURN:
                return left
        raise self._too_long(at)

    def _ended(self, at: Site, left: Exit | None, orelse: Any, rest: Any) -> Any:
        staging = self.at(at)
        left = staging.after(left, orelse)
        return staging.after(staging.without_break(left), rest)

    def _too_long(self, at: Site) -> Exception:
        return refused(
            "staged-long", f"a loop of more than {_MOST_ITERATIONS} iterations", "Nothing that is not known ends it: "
            "each iteration is a part of the graph.", "Give its length as a staged number (Rep(int)).",
            self.at(at).place,
        )  # fmt: skip

    def each(self, at: Site, names: tuple[str, ...], iterable: Any, body: Any, orelse: Any, rest: Any) -> Any:
        staging = self.at(at)
        over = self.elements(at, iterable)
        if isinstance(over, StagedRange):
            left = staging.repeat(names, lambda: True, body, over)
            return self._ended(at, left, orelse, rest)
        return staging.after(staging.iterations(iter(over), body, orelse), rest)

    def elements(self, at: Site, iterable: Any) -> Any:
        """What a loop goes over: a StagedRange, or something with known elements."""
        staging = self.at(at)
        if isinstance(iterable, StagedRange):
            return iterable
        if isinstance(iterable, Zipped):
            return iterable.staged(lambda one: self.elements(at, one), staging)
        if isinstance(iterable, torch.Tensor):
            count = staging.shape(iterable)[0]
            if isinstance(count, StagedNumber):
                return StagedRange(count, lambda index: staging.operation(torch.select, (iterable, 0, index), {}))
            return staging.operation(torch.unbind, (iterable,), {})
        if isinstance(iterable, StagedList):
            count = staging.compute(len, (iterable,))
            return StagedRange(
                count, lambda index: staging.part(operator.getitem, iterable, index, iterable.type.element)
            )
        if isinstance(iterable, StagedValue):
            raise refused("staged-value", "a loop over a staged object", "", "", staging.place)
        return iterable

    def iterate(self, at: Site, iterable: Any) -> Any:
        found = self.elements(at, iterable)
        if isinstance(found, StagedRange):
            raise refused(
                "staged-decision", "a loop over something of unknown length",
                "Here loops are native: in generators, and in comprehensions other than lists of one loop.",
                "Write it as a for statement.", self.at(at).place,
            )  # fmt: skip
        return found

    def unpack(self, at: Site, value: Any, before: int, star: bool, after: int) -> tuple[Any, ...]:
        return super().unpack(at, tuple(self.iterate(at, value)) if is_staged(value) else value, before, star, after)

    def star(self, at: Site, iterable: Any) -> Any:
        return self.iterate(at, iterable)

    def collect(self, at: Site, iterable: Any, many: bool, element: Any, filters: tuple[Any, ...]) -> Any:
        made: list[Any] = []
        for item in self.iterate(at, iterable):
            given = tuple(self.iterate(at, item)) if many else (item,)
            for test in filters:
                decided = test(*given)
                if is_staged(decided):
                    raise refused(
                        "staged-length", "a filter that a staged value decides", "How long the list is is known only "
                        "when the graph runs.", "Use a mask: torch.where, or a sum of products.", self.at(at).place,
                    )  # fmt: skip
                if not decided:
                    break
            else:
                made.append(element(*given))
        return made

    # ---- calls ----

    def enters(self, fn: FunctionType) -> bool:
        """Whether a function is run lifted."""
        module = fn.__globals__.get("__name__") or ""
        if module.startswith("torch.") or module == "torch":
            return module.startswith(_ENTERED_OF_TORCH)
        if module.startswith("torchjanus.") or module_reason(module, NATIVE_MODULES) is not None:
            return False
        try:
            lifted_form(fn)
        except SourceUnavailable:
            return False
        return True

    def call(self, at: Site, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        staging = self.at(at)
        if isinstance(fn, Poison):
            fn._raise()
        if self.applied is not None:
            found = self.applied(fn, args, kwargs)
            if found is not NotImplemented:
                self.at(at)
                return found
        native = NATIVES.get(fn) if _hashable(fn) else None
        if native is not None:
            found = native(self, at, *args, **kwargs)
            if found is not NotImplemented:
                return found
        if type(fn) is MethodType:
            return self.call(at, fn.__func__, (fn.__self__, *args), kwargs)
        if type(fn) is functools.partial:
            return self.call(at, fn.func, (*fn.args, *args), {**fn.keywords, **kwargs})
        if type(fn) is FunctionType and self.enters(fn):
            return self._enter(at, fn, args, kwargs)
        if isinstance(fn, nn.Module) and type(fn).__call__ is nn.Module.__call__:
            return self._module(at, fn, args, kwargs)
        if isinstance(fn, type):
            return self._make(at, fn, args, kwargs)
        method = inspect.getattr_static(type(fn), "__call__", None)
        if type(method) is FunctionType and self.enters(method):
            return self._enter(at, method, (fn, *args), kwargs)
        return self._native(at, fn, args, kwargs, staging)

    def _enter(self, at: Site, fn: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return lifted_form(fn)(*args, **kwargs)
        finally:
            self.at(at)

    def _module(self, at: Site, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        if any(getattr(module, name) for name in hooks):
            raise refused("staged-effect", f"a {type(module).__name__} with hooks", "Hooks of modules are not staged.",
                          "Remove them, or call what they do.", self.at(at).place)  # fmt: skip
        return self.call(at, module.forward, args, kwargs)

    def _make(self, at: Site, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        starter = on_type(cls, "__init__")
        plain = type(cls) is type and is_plain(cls)
        if plain and type(starter) is FunctionType and self.enters(starter):
            made: Any = object.__new__(cls)
            self._enter(at, starter, (made, *args), kwargs)
            return made
        return self._native(at, cls, args, kwargs, self.staging)

    def _native(self, at: Site, fn: Any, args: Any, kwargs: Any, staging: Loops) -> Any:
        owner = getattr(fn, "__self__", None)
        name = getattr(fn, "__name__", "")
        if owner is not None and name in MUTATORS and isinstance(owner, list | dict | set):
            self.changes(at, owner)
            return fn(*args, **kwargs)
        of_torch = (getattr(fn, "__module__", None) or "").partition(".")[0] == "torch"
        if is_impure(fn) or (of_torch and name in EFFECTS):
            raise refused("staged-effect", f"{name}()", "A staged function is run once, its graph many times.",
                          "Do it outside of the staged function.", staging.place)  # fmt: skip
        if name == "apply" and isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
            return staging.custom(fn, args, kwargs)
        if isinstance(fn, type) and issubclass(fn, torch.Tensor) and fn is not nn.Parameter:
            raise refused("staged-effect", f"{fn.__name__}()", "The constructor hands out memory that is not set.",
                          "Use torch.tensor or torch.zeros.", staging.place)  # fmt: skip
        if any(isinstance(one, StagedNumber) for one in pytree.tree_leaves((args, kwargs))):
            if isinstance(owner, torch.Tensor):  # torch does not take such numbers before it asks whose call it is
                return staging.operation(getattr(torch.Tensor, name), (owner, *args), kwargs)
            if of_torch or resolve_name(fn) is not None:
                return staging.operation(fn, args, kwargs)
        return fn(*args, **kwargs)

    def raised(self, at: Site, exception: Any) -> Any:
        if isinstance(exception, type) and issubclass(exception, BaseException):
            exception = exception()
        self.at(at).thrown[id(exception)] = exception
        return exception

    def caught(self, at: Site, exception: BaseException) -> None:
        hide_frames(exception)
        self.at(at)

    def format(self, at: Site, value: Any, conversion: str, spec: str) -> str:
        if is_staged(value):
            raise refused("staged-effect", "the text of a staged value", "", "", self.at(at).place)
        return super().format(at, value, conversion, spec)

    def frame_reader(self, at: Site, owner: dict[str, Any], fn: Any) -> Any:
        if fn in (builtins.super, builtins.dir, builtins.vars):
            return fn
        raise refused("staged-effect", f"{getattr(fn, '__name__', fn)}()", "It looks at frames, and lifted code has "
                      "others.", "Do without it.", self.at(at).place)  # fmt: skip


def _lacks(container: Any, item: Any) -> bool:
    """``item not in container``. Graphs call it."""
    return item not in container


def _hashable(fn: Any) -> bool:
    return (
        type(fn) in (types.BuiltinFunctionType, type, FunctionType, types.BuiltinMethodType)
        and type(fn).__hash__ is not None
    )
