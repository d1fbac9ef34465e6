"""A staging: the run of a function on values that are not known, and the graph that it makes.

Here is what operators, calls of torch, and numbers become. ``regions`` has control flow, ``semantics`` the hooks.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils import _pytree as pytree

from torchjanus.core.errors import NOWHERE, Place, refused
from torchjanus.core.kinds import isinstance
from torchjanus.rewrite import Site
from torchjanus.semantics.staged.builder import Builder
from torchjanus.semantics.staged.torch_calls import modes_looked_at, refuse_effects, refuse_unrecorded
from torchjanus.semantics.staged.unknown.tensors import SYMBOLS, Fakes, at_any, fits, is_fake, quiet
from torchjanus.semantics.staged.unknown.values import (
    ListType,
    NumberType,
    ObjectType,
    Poison,
    StagedList,
    StagedNumber,
    StagedObject,
    StagedRange,
    StagedValue,
    TensorSpec,
    kind_of_number,
)
from torchjanus.tracegraph.graph import Const, Operand, Ref, Sequence

__all__ = ["Recording", "Staging"]

_RAISING = {operator.truediv, operator.floordiv, operator.mod, operator.pow, operator.getitem}  # for some numbers
_FETCHING = frozenset({"item", "__bool__", "__int__", "__float__", "__index__", "__len__", "__contains__"})
_READING = frozenset({"dtype", "device", "layout", "requires_grad", "ndim", "is_leaf", "is_cuda", "is_sparse", "names",
                      "itemsize", "is_quantized", "is_mps", "is_xpu", "is_meta", "name", "grad_fn", "output_nr",
                      "is_nested", "is_cpu", "is_mkldnn"})  # fmt: skip


class Staging:
    """The graphs in the making, the innermost last, and where in the program the run is."""

    def __init__(self, name: str) -> None:
        self.fakes = Fakes()
        self.builders = [Builder(name, self.fakes, lambda: self.place)]
        self.site: Site | None = None
        self.grad, self.modes = torch.is_grad_enabled(), modes_looked_at()
        self.asked_grad = False  # whether the program has looked at whether tensors require gradients
        self.trying = 0  # how many ``try`` blocks of the program are around what runs

    @property
    def builder(self) -> Builder:
        return self.builders[-1]

    @property
    def place(self) -> Place:
        at = self.site
        return NOWHERE if at is None else Place(at.file, at.line, at.column, at.function)

    # ---- new values ----

    @quiet
    def fresh(self, type_: Any) -> Any:
        """Return a new value of a type. The caller has to bind it: see ``ref_of``."""
        if isinstance(type_, TensorSpec):
            fake = self.fakes.like(type_)
            self.builder.tensor(fake)
            return fake
        return self.made(type_)

    def made(self, type_: Any) -> Any:
        """Return a new value that is no tensor."""
        builder = self.builder
        match type_:
            case NumberType(kind):
                return StagedNumber(self, Ref(builder.value(kind)), type_, self.fakes.number(kind))
            case ListType():
                return StagedList(self, Ref(builder.value("list")), type_)
            case ObjectType():
                known = getattr(type_, "known", None)
                if isinstance(known, TensorSpec | NumberType | ListType):
                    raise refused(
                        "staged-value", "a field that may be None",
                        "It holds a number, list or tensor in some objects, and None in others.",
                        "Use a field of its own to tell which objects have it.", self.place,
                    )  # fmt: skip
                return StagedObject(self, Ref(builder.value("object")), type_)
        raise AssertionError(type_)

    def ref_of(self, value: Any, *, checked: bool = True) -> Ref:
        found = self.builder.operand(value, checked=checked)
        assert isinstance(found, Ref)
        return found

    def type_of(self, value: Any) -> Any:
        """Return the type of a staged value, or of a number."""
        if isinstance(value, StagedValue):
            return value.type
        return NumberType(type(value).__name__)

    def operand(self, value: Any) -> Operand:
        return self.builder.operand(value)

    # ---- numbers ----

    def symbols(self, value: Any) -> Any:
        """Return the value as torch's fakes take it."""
        if isinstance(value, StagedNumber):
            return value.symbol
        if isinstance(value, torch.Tensor):
            return value if is_fake(value) else self.fakes.of(value)
        cls = type(value)
        if isinstance(value, StagedValue):
            raise refused(
                "staged-value", f"a {cls.__name__.removeprefix('Staged').lower()} given to torch",
                "Only tensors and numbers of unknown value can be given to torch.", "", self.place,
            )  # fmt: skip
        if cls in (tuple, list):
            return cls(map(self.symbols, value))
        if issubclass(cls, tuple) and hasattr(cls, "_fields"):
            return cls(*map(self.symbols, value))
        if cls is torch.Size:
            return value
        if cls is dict:
            return {key: self.symbols(one) for key, one in value.items()}
        if cls is slice:
            return slice(*map(self.symbols, (value.start, value.stop, value.step)))
        return value

    @quiet
    def compute(self, function: Any, args: tuple[Any, ...], kind: str | None = None) -> Any:
        """Return a number that the graph computes of others."""
        if self.trying and function in _RAISING:
            raise refused(
                "staged-try", "a computation within try that may raise",
                "Whether it raises is known only when the graph runs, and handlers run when the function is staged.",
                "Test for it instead.", self.place,
            )  # fmt: skip
        type_ = NumberType(kind or kind_of_number(function, args))
        symbol = None
        if type_.kind != "number":
            try:
                symbol = function(*map(self.symbols, args))
            except Exception:  # torch's symbols do not have every function: nothing is known then
                symbol = None
        made = StagedNumber(self, Ref(self.builder.value(type_.kind)), type_, None)
        made.symbol = symbol if fits(symbol, type_.kind) else self.fakes.number(type_.kind)
        operands = tuple(map(self.operand, args))
        self.builder.emit("compute", (("func", Const(function)), ("args", _items(operands))), (made.ref,), self.place)
        return made

    def number_operator(self, function: Any, one: Any, other: Any) -> Any:
        """``one OP other`` where one of them is a staged number."""
        for value in (one, other):
            if isinstance(value, torch.Tensor):
                return self.operation(function, (one, other), {})
            if not isinstance(value, StagedNumber | int | float):
                if function in (operator.eq, operator.ne):
                    return function is operator.ne
                return NotImplemented
        return self.compute(function, (one, other))

    def truth(self, value: Any) -> Any:
        """Return the truth of a staged value, as a staged bool."""
        if isinstance(value, torch.Tensor):
            return self.fetch(value, bool)
        if isinstance(value, StagedNumber) and value.type.kind == "bool":
            return value
        if isinstance(value, StagedNumber | StagedObject | StagedList):
            return self.compute(bool, (value,))
        return bool(value)

    @quiet
    def fetch(self, tensor: torch.Tensor, how: type) -> Any:
        """Return the number in a tensor of one element."""
        fake = self.symbols(tensor)
        size = math.prod(fake.shape)
        if isinstance(size, int) and size != 1:
            raise RuntimeError(
                f"Boolean value of Tensor with {'no' if not size else 'more than one'} value"
                f"{'' if not size else 's'} is ambiguous" if how is bool
                else f"a Tensor with {size} elements cannot be converted to Scalar"
            )  # fmt: skip
        kind = how.__name__
        if how is object:  # item()
            kind = "bool" if fake.dtype is torch.bool else "float" if fake.is_floating_point() else "int"
            if fake.is_complex():
                raise refused(
                    "staged-value", "a complex number of a tensor", "Staged numbers are real.", "", self.place
                )
        made = self.made(NumberType(kind))
        fields = (("ref", self.operand(tensor)), ("type", Const("item" if how is object else kind)))
        self.builder.emit("fetch", fields, (made.ref,), self.place)
        return made

    # ---- tensors ----

    @quiet
    def operation(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call torch: an operation of the graph, or what is known without running it."""
        name = getattr(function, "__name__", "")
        owner = getattr(function, "__self__", None)
        if name == "__get__" and args:
            return self._attribute(function, owner.__name__, args[0])  # type: ignore[union-attr]
        refuse_effects(function, name, self.place)
        fetched = self._fetched(name, args, kwargs)
        if fetched is not None:
            return fetched[0]
        refuse_unrecorded(function, name, self.modes, trying=bool(self.trying), place=self.place)
        given, named = self.symbols(args), self.symbols(kwargs)
        if name in ("__getitem__", "__setitem__"):
            given = given[0], at_any(given[1]), *given[2:]
        out, written = self.fakes.call(function, given, named, f"{name or function}()", self.place)
        return self._note(function, args, kwargs, out, written)

    def _note(self, function: Any, args: Any, kwargs: Any, out: Any, written: list[torch.Tensor]) -> Any:
        """Add a node for a call of torch, and return its result ``out``. ``written``: the tensors whose memory it
        changes. Raises Refused for a result that is in memory of now."""
        leaves = pytree.tree_leaves(out)
        if not written and not any(isinstance(one, torch.Tensor) for one in leaves):
            return self._numbers(function, args, kwargs, out)
        if any(isinstance(one, torch.Tensor) and not is_fake(one) for one in leaves):
            raise refused(
                "staged-effect", f"{getattr(function, '__name__', function)}()", "It makes a tensor of memory that is "
                "there now.", "Make the tensor outside of the staged function.", self.place,
            )  # fmt: skip
        builder = self.builder
        operands = [("args", builder.operand(args))]
        if kwargs:
            operands.append(("kwargs", builder.operand(kwargs)))
        if torch.is_grad_enabled() is not self.grad:
            operands.append(("grad", Const(torch.is_grad_enabled())))
        aliases = sorted({alias for one in written if (alias := builder.ref(one).value.alias) is not None})
        builder.writes.update(Counter(aliases))
        outs = tuple(
            builder.ref(one) if builder.knows(one) else builder.tensor(one)
            for one in leaves if isinstance(one, torch.Tensor)
        )  # fmt: skip
        name = resolve_name(function) or getattr(function, "__name__", str(function))
        fields = (("name", Const(name.removeprefix("torch."))), ("func", Const(function)), *operands)
        writes = tuple((alias, builder.writes[alias]) for alias in aliases)
        builder.emit("op", fields, outs, self.place, writes=writes)
        return out

    def _numbers(self, function: Any, args: Any, kwargs: Any, out: Any) -> Any:
        """Return the result of a call that makes no tensor: sizes that are symbols are numbers of the graph."""
        if isinstance(out, SYMBOLS):
            kind = "int" if isinstance(out, torch.SymInt) else "bool" if isinstance(out, torch.SymBool) else "float"
            made = StagedNumber(self, Ref(self.builder.value(kind)), NumberType(kind), out)
            operands: list[tuple[str, Operand]] = [("args", self.builder.operand(args))]
            if kwargs:
                operands.append(("kwargs", self.builder.operand(kwargs)))
            self.builder.emit("compute", (("func", Const(function)), *operands), (made.ref,), self.place)
            return made
        if isinstance(out, torch.Size | tuple) and any(isinstance(one, SYMBOLS) for one in out):
            if not isinstance(args[0], torch.Tensor) or not isinstance(out, torch.Size):
                raise refused("staged-value", "sizes or strides that are not known", "", "Use .shape.", self.place)
            return self.shape(args[0])
        return out

    @quiet
    def shape(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        """Return the sizes of a tensor: numbers, staged where they are not known."""
        fake = self.symbols(tensor)
        if all(isinstance(size, int) for size in fake.shape):
            return fake.shape  # type: ignore[no-any-return]
        found: list[Any] = []
        for dim, size in enumerate(fake.shape):
            if not isinstance(size, int):
                made = StagedNumber(self, Ref(self.builder.value("int")), NumberType("int"), size)
                self.builder.emit("size", (("ref", self.operand(tensor)), ("dim", Const(dim))), (made.ref,), self.place)
                size = made
            found.append(size)
        sizes = tuple(found)
        self.builder.sizes[id(sizes)] = sizes
        return sizes

    def _attribute(self, function: Any, name: str, tensor: torch.Tensor) -> Any:
        """Return an attribute of a tensor: what the fake tells, or a node where it is another tensor."""
        if name == "shape":
            return self.shape(tensor)
        if name in _READING:
            if name in ("requires_grad", "is_leaf", "grad_fn"):
                self.asked_grad = True
            found = getattr(self.symbols(tensor), name)
            if name == "grad_fn" and found is not None:
                raise refused("staged-value", ".grad_fn of a staged tensor", "", "", self.place)
            return found
        if name in ("grad", "_grad"):
            raise refused("staged-effect", ".grad", "Gradients are there when the graph has run.", "", self.place)
        if name not in ("T", "mT", "H", "mH", "data", "real", "imag"):
            if is_fake(tensor):
                raise refused("staged-value", f".{name} of a staged tensor", "", "", self.place)
            return function(tensor)
        with self.fakes.mode:
            out = getattr(self.symbols(tensor), name)
        return self._note(getattr, (tensor, name), {}, out, [])

    def _fetched(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any] | None:
        """Return the answer to a question that gives a number, in a tuple; None for other calls."""
        if name in ("equal", "allclose", "is_nonzero") and isinstance(args[0], torch.Tensor):
            function = torch.is_nonzero if name == "is_nonzero" else getattr(torch, name)
            fields: list[tuple[str, Operand]] = [("func", Const(function)), ("args", self.operand(args))]
            if kwargs:
                fields.append(("kwargs", self.operand(kwargs)))
            made = self.made(NumberType("bool"))
            self.builder.emit("compute", fields, (made.ref,), self.place)
            return (made,)
        if name not in _FETCHING or not args or not isinstance(args[0], torch.Tensor):
            return None
        if name == "item":
            return (self.fetch(args[0], object),)
        if name == "__len__":
            return (self.shape(args[0])[0],)
        raise refused(
            "staged-value", f"the {'truth' if name == '__bool__' else 'number'} of a staged tensor",
            "It is known only when the graph runs, and code that is not staged needs it now: native code, a property, "
            "an operator of a class, a generator.", "Decide in a function of your own, by if or while.", self.place,
        )  # fmt: skip

    @quiet
    def custom(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a ``torch.autograd.Function``: one operation, whose backward is its own."""
        with self.fakes.asked(f"{function.__self__.__name__}.apply()", self.place), self.fakes.mode:
            out = function(*self.symbols(args), **self.symbols(kwargs))
        return self._note(applied, (function.__self__, *args), kwargs, out, [])

    def check(self, truth: Any, kind: type[BaseException], args: tuple[Any, ...]) -> None:
        """The graph raises if this does not hold."""
        if self.trying:
            raise refused("staged-try", "an assertion within try", "", "Test for it instead.", self.place)
        operands = (self.operand(truth), Const(kind), self.operand(args))
        fields = (("name", Const("assert")), ("func", Const(asserted)), ("args", _items(operands)))
        self.builder.emit("op", fields, (), self.place)

    # ---- objects ----

    def part(self, function: Any, owner: StagedValue, key: Any, type_: Any) -> Any:
        """Return an attribute or an element of a staged object."""
        if self.trying:
            raise refused("staged-try", "a staged object within try", "", "Test for it instead.", self.place)
        fields = (("func", Const(function)), ("args", _items((self.operand(owner), self.operand(key)))))
        made = self.fresh(type_)
        self.builder.emit("compute", fields, (self.ref_of(made),), self.place)
        return made

    def range(self, *bounds: Any) -> StagedRange:
        """``range`` of staged numbers."""
        start, stop, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
        if not isinstance(step, int) or step == 0:
            raise refused(
                "staged-value", "a range whose step is not known", "", "Give the step as a number.", self.place
            )
        if type(start) is int and start == 0 and step == 1:
            return StagedRange(stop, lambda index: index)
        return StagedRange(self.compute(_count, (start, stop, step), "int"), lambda index: start + index * step)


def applied(cls: Any, *args: Any) -> Any:
    """``cls.apply(*args)``. Graphs call it."""
    return cls.apply(*args)


def asserted(truth: bool, kind: type[BaseException], args: tuple[Any, ...]) -> None:
    """Raise an error unless something holds. Graphs call it."""
    if not truth:
        raise kind(*args)


def _count(start: int, stop: int, step: int) -> int:
    """Return how many elements a range has. Graphs call it."""
    return len(range(start, stop, step))


def _items(operands: tuple[Operand, ...]) -> Sequence:
    return Sequence(tuple, operands)


class Recording(TorchFunctionMode):
    """Makes calls of torch operations of the graph."""

    def __init__(self, staging: Staging) -> None:
        super().__init__()
        self.staging = staging

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for one in pytree.tree_leaves((args, kwargs)):
            if type(one) is Poison:
                one._raise()
        return self.staging.operation(func, tuple(args), kwargs or {})
