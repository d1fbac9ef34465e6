"""Symbolic sizes: fake tensors with them, the conditions that tracing assumed, and how the host computes them.

Tracing asks torch's ShapeEnv where a decision depends on a size; the answers are conditions that must hold at each
call. Knows nothing of programs' nodes.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import operator
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch.fx.experimental import _config

from torchjanus.core.errors import JanusError
from torchjanus.core.lazy import deferred
from torchjanus.graph.aten.strides import MeasuredStrides
from torchjanus.graph.ir.program import Dimension, Formula, Input, Measured, Symbol
from torchjanus.trace.values import Apply, Expr

__all__ = ["Fixed", "Symbolic", "are_alike", "geometry", "hint", "key", "quiet", "value_of_formula"]

functions = deferred("torch.utils._sympy.functions")
if TYPE_CHECKING:
    import sympy  # type: ignore[import-untyped]
else:
    sympy = deferred("sympy")

dynamo_sources = deferred("torch._dynamo.source")
symbolic_shapes = deferred("torch.fx.experimental.symbolic_shapes")


class Fixed(JanusError):
    """Tracing has specialised on the sizes of these dimensions (by number): they cannot change in one graph."""

    def __init__(self, dimensions: Mapping[int, str]) -> None:
        super().__init__("; ".join(dimensions.values()))
        self.dimensions = dict(dimensions)


def key(size: Any) -> Hashable:
    """Return a key that identifies a size without a guard on it: the number, or its expression as text."""
    return str(size.node.expr) if isinstance(size, torch.SymInt) else int(size)


def hint(size: Any) -> int:
    """Return the example value of a size."""
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)


def geometry(tensor: torch.Tensor) -> tuple[Hashable, ...]:
    """Return sizes and strides in a form that can be compared without guards."""
    return (tuple(map(key, tensor.size())), tuple(map(key, tensor.stride())))


def are_alike(one: Any, other: Any) -> bool:
    """Whether the values of two nodes, or two values, are tensors of equal sizes, strides, dtype and device."""
    first, second = (part.meta.get("val") if isinstance(part, torch.fx.Node) else part for part in (one, other))
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return False
    return (first.dtype, first.device, geometry(first)) == (second.dtype, second.device, geometry(second))


def value_of_formula(value: Any, sizes: list[Any], measured: Mapping[int, Any]) -> Any:
    """Return a Symbol, Measured or Formula in terms of torch's symbolic integers."""
    if isinstance(value, Symbol):
        return sizes[value.index]
    if isinstance(value, Measured):
        return measured[value.index]
    if isinstance(value, Formula):
        args = (value_of_formula(arg, sizes, measured) for arg in value.args)
        return _TRACEABLE.get(value.func, value.func)(*args)
    return value


_COMPLAINING = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")

_TRACEABLE: dict[Callable[..., Any], Callable[..., Any]] = {
    min: torch.sym_min,
    max: torch.sym_max,
    int: torch.sym_int,
}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence torch's loggers while tracing, which may fail; the failure is handled."""
    loggers = [logging.getLogger(name) for name in _COMPLAINING]
    before = [logger.disabled for logger in loggers]
    try:
        for logger in loggers:
            logger.disabled = True
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


class _ByDecomposition(MeasuredStrides):
    """Infers sizes by torch's decompositions in Python where C++ would specialise on their values. The recording of the
    program is a layer above this, and is not affected."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with enable_python_dispatcher():
            return super().__torch_dispatch__(func, types, args, kwargs)


class Symbolic:
    """The symbolic sizes of one trace; or the numbers ``settled`` in their place."""

    def __init__(self, dimensions: tuple[Dimension, ...], settled: Sequence[int] | None = None) -> None:
        self._dimensions = dimensions
        self.few = tuple(k for k, dimension in enumerate(dimensions) if dimension.few and settled is None)
        # duck_shape=False: sizes that are equal in the example may differ; which are equal is already decided.
        self.env = symbolic_shapes.ShapeEnv(duck_shape=False) if dimensions and settled is None else None
        mode = MeasuredStrides if self.env is None else _ByDecomposition
        self.mode = mode(allow_non_fake_inputs=True, shape_env=self.env)
        self.sizes: list[Any] = [*(settled or ())]
        self._symbols: dict[sympy.Symbol, int] = {}
        for number, dimension in enumerate(dimensions if settled is None else ()):
            assert self.env is not None
            source = dynamo_sources.ConstantSource(f"size{number}")
            size = dimension.hint
            symbol = self.env.create_symbol(
                size,
                source,
                dynamic_dim=symbolic_shapes.DimDynamic.DYNAMIC,
                constraint_dim=None,
                positive=None if dimension.few else True,
                do_not_specialize_zero_one=dimension.few,
            )
            if dimension.few:
                self.env.constrain_symbol_range(symbol, compiler_min=0, compiler_max=sys.maxsize)
            self._symbols[symbol] = number
            self.sizes.append(self.env.create_symintnode(symbol, hint=size, source=source))

    def fake(self, entry: Input) -> torch.Tensor:
        """Return a fake tensor for an input."""
        example = entry.example
        sizes: list[Any] = list(example.size())
        strides: list[Any] = list(example.stride())
        if entry.symbols:
            for dim, symbol in enumerate(entry.symbols):
                if symbol is not None:
                    sizes[dim] = self.sizes[symbol]
            strides = [s if isinstance(s, int) else math.prod(sizes[dim] for dim in s) for s in entry.strides]
        with self.mode:
            return torch.empty_strided(sizes, strides, dtype=example.dtype, device=example.device)

    def dispatcher(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which single ATen operations accept symbolic sizes."""
        return contextlib.nullcontext() if self.env is None else enable_python_dispatcher()

    def sparing(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which torch does not ask whether a size is 0 or 1 where it need not. Its answers may be
        wrong for those sizes: see ``few``."""
        if not self.few:
            return contextlib.nullcontext()
        spared: contextlib.AbstractContextManager[Any] = _config.patch(backed_size_oblivious=True)  # type: ignore[attr-defined]
        return spared

    def at(self, number: Any, settled: Sequence[int]) -> sympy.Expr:
        """Return the value of a number where the changing sizes are ``settled``."""
        if not isinstance(number, torch.SymInt | torch.SymFloat):
            return sympy.sympify(number)
        values = {symbol: sympy.Integer(settled[k]) for symbol, k in self._symbols.items()}
        return number.node.expr.xreplace(values)

    def check(self, who: str = "the step") -> None:
        """Raise Fixed where tracing has specialised on a dimension. ``who``: what was traced, for the message."""
        if self.env is None:
            return
        held = [n for s, n in self._symbols.items() if isinstance(self.env.replacements.get(s), sympy.Integer)]
        if held:
            raise Fixed({n: f"{self._dimensions[n].expr} cannot change: {who} needs its value" for n in held})

    def unsuited(self, why: str) -> Fixed:
        """Return the exception to raise where no size may change."""
        names = ", ".join(str(dimension.expr) for dimension in self._dimensions)
        return Fixed(dict.fromkeys(range(len(self._dimensions)), f"{names} cannot change: {why}"))

    def conditions(self) -> Iterator[Expr]:
        """Yield the conditions on sizes under which the graph is valid. Raises Fixed."""
        self.check()
        if self.env is None:
            return
        met: set[Any] = set()
        for guard in self.env.guards:
            if guard.expr not in met and guard.expr is not sympy.true:
                met.add(guard.expr)
                yield self._expression(guard.expr)

    def expression(self, size: Any) -> Any:
        """Return a size as the host computes it from sizes of inputs; an int where constant. Raises Fixed."""
        if not isinstance(size, torch.SymInt):
            return int(size)
        return self._expression(size.node.expr)

    def _expression(self, expr: sympy.Basic) -> Any:
        """Convert a sympy expression of sizes to one that the host computes. Raises Fixed."""
        if isinstance(expr, sympy.Integer):
            return int(expr)
        if isinstance(expr, sympy.Float):
            return float(expr)
        if isinstance(expr, sympy.Symbol) and expr in self._symbols:
            return self._dimensions[self._symbols[expr]].expr
        if isinstance(expr, sympy.Add | sympy.Mul):
            fold = operator.add if isinstance(expr, sympy.Add) else operator.mul
            total, *others = map(self._expression, expr.args)
            for other in others:
                total = Apply(fold, (total, other))
            return total
        if isinstance(expr, sympy.Pow) and isinstance(expr.args[1], sympy.Integer) and int(expr.args[1]) > 0:
            return Apply(operator.pow, (self._expression(expr.args[0]), int(expr.args[1])))
        func = next((made for kind, made in _host() if isinstance(expr, kind)), None)
        if func is None:
            raise self.unsuited(f"the host cannot compute {expr}")
        return Apply(func, tuple(map(self._expression, expr.args)))


def all_of(*parts: Any) -> bool:
    """``and``."""
    return all(parts)


def any_of(*parts: Any) -> bool:
    """``or``."""
    return any(parts)


@functools.cache
def _host() -> tuple[tuple[Any, Callable[..., Any]], ...]:
    """Return how the host computes the functions of sympy and torch."""
    return (
        (sympy.Eq, operator.eq), (sympy.Ne, operator.ne), (sympy.Le, operator.le), (sympy.Lt, operator.lt), (sympy.Ge,
        operator.ge), (sympy.Gt, operator.gt), (sympy.And, all_of), (sympy.Or, any_of), (sympy.Not, operator.not_),
        (functions.IntTrueDiv, operator.truediv), (functions.FloatTrueDiv, operator.truediv), (functions.ToFloat,
        float), (functions.TruncToInt, int), (functions.CeilToInt, math.ceil), (functions.FloorToInt, math.floor),
        (functions.CleanDiv, operator.floordiv), (functions.FloorDiv, operator.floordiv), (functions.Mod, operator.mod),
        (functions.PythonMod, operator.mod), (functions.Max, max), (functions.Min, min), (sympy.Max, max), (sympy.Min,
        min)
    )  # fmt: skip
