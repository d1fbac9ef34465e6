"""Serialise a prepared graph, with the sizes of its inputs, to be compiled in another process.

Changing sizes are symbols, which have a meaning in one process only. The other process makes them again under the
conditions that hold for them here; conditions that the compiler adds are returned. Knows nothing of processes.
"""

from __future__ import annotations

import contextlib
import math
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode

from torchjanus.core.lazy import deferred
from torchjanus.graph.ir.graph_pickling import graph_bytes
from torchjanus.graph.lowering.for_inductor import Prepared

__all__ = [
    "Condition", "Geometry", "Sizes", "UnpackedExamples", "fitting", "on_device", "pack", "solvable", "text_of",
    "unpack", "without_symbols",
]  # fmt: skip

printers = deferred("torch.utils._sympy.printers")
if TYPE_CHECKING:
    import sympy  # type: ignore[import-untyped]
else:
    sympy = deferred("sympy")

dynamo_sources = deferred("torch._dynamo.source")
symbolic_shapes = deferred("torch.fx.experimental.symbolic_shapes")

pickling = deferred("torch.fx._graph_pickler")

Condition: TypeAlias = Any  # a sympy condition on the sizes of a graph's inputs


@dataclass(frozen=True, slots=True)
class Geometry:
    """The geometry of an example input. A size that changes is an expression in the symbols of a ``Sizes``."""

    size: tuple[int | sympy.Expr, ...]
    stride: tuple[int | sympy.Expr, ...]
    dtype: torch.dtype
    device: str

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Geometry:
        """Return the geometry of a tensor."""
        size, stride = (tuple(map(_plain, numbers)) for numbers in (tensor.size(), tensor.stride()))
        return cls(size, stride, tensor.dtype, str(tensor.device))

    @property
    def bytes(self) -> int:
        """The most memory, in bytes, that such a tensor takes; 0 where a size changes, since no such tensor is made."""
        if not all(isinstance(size, int) for size in self.size):
            return 0
        return math.prod(self.size) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Sizes:
    """The changing sizes: a symbol for each with an example, and the conditions on them."""

    symbols: tuple[tuple[sympy.Symbol, int], ...] = ()
    conditions: tuple[Condition, ...] = ()
    few: tuple[Condition, ...] = ()  # sizes that may be 0 or 1 are not: the artifact is for others

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor], own: Collection[sympy.Symbol] = ()) -> Sizes:
        """Return the sizes of fake tensors, one for each input of a graph. ``own``: symbols of sizes that the graph
        computes, on which it asserts conditions itself. Raises ValueError where another symbol is no input's size."""
        found: dict[sympy.Symbol, int] = {}
        used: set[sympy.Symbol] = set()
        env = None
        for tensor in tensors:
            for size in (*tensor.size(), *tensor.stride()):
                if isinstance(size, torch.SymInt):
                    env = size.node.shape_env
                    used |= size.node.expr.free_symbols
                    if (solved := _solved(size.node.expr)) is not None:
                        found[solved[0]] = int(size.node.hint) // solved[1]
        if env is None:
            return cls()
        asked = (guard.expr for guard in env.guards if guard.expr is not sympy.true)
        conditions = tuple(dict.fromkeys(one for one in asked if one.free_symbols.isdisjoint(own)))
        missing = used.union(*(condition.free_symbols for condition in conditions)) - found.keys()
        if missing:
            raise ValueError(f"no input has the size {', '.join(sorted(map(str, missing)))}")
        symbols = tuple(sorted(found.items(), key=lambda pair: pair[0].name))
        few = tuple(sympy.Ge(symbol, 2) for symbol, _ in symbols if env.var_to_range[symbol].lower < 2)
        return cls(symbols, conditions, few)


def _plain(size: Any) -> int | sympy.Expr:
    return size.node.expr if isinstance(size, torch.SymInt) else int(size)


def _solved(size: sympy.Expr) -> tuple[sympy.Symbol, int] | None:
    """Return the symbol and the factor of a size that is a multiple of a symbol, else None."""
    factor, rest = size.as_coeff_Mul()
    return (rest, int(factor)) if isinstance(rest, sympy.Symbol) and isinstance(factor, sympy.Integer) else None


class UnpackedExamples:
    """Example inputs for a compiler: real tensors with undefined contents, or fake tensors where sizes change, and for
    other devices, whose memory the training needs."""

    def __init__(self, geometries: Sequence[Geometry], sizes: Sizes) -> None:
        self._mode = None
        if not sizes.symbols and not on_device(geometries):
            self.examples: list[Any] = [
                torch.empty_strided(g.size, g.stride, dtype=g.dtype, device=g.device) for g in geometries
            ]
            return
        # duck_shape=False: sizes that are equal in the example may differ later.
        self._env = env = symbolic_shapes.ShapeEnv(duck_shape=False)
        self._mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=env)
        self._here = {}
        self._hints = {}
        for number, (symbol, hint) in enumerate(sizes.symbols):
            source = dynamo_sources.ConstantSource(f"size{number}")
            made = env.create_symbol(hint, source, dynamic_dim=symbolic_shapes.DimDynamic.DYNAMIC, constraint_dim=None)
            self._here[symbol], self._hints[symbol] = made, hint
        for condition in sizes.conditions:
            env.evaluate_expr(condition.xreplace(self._here))
        self._known, self._few = len(env.guards), sizes.few
        with self._mode:
            self.examples = [
                torch.empty_strided(self._made(g.size), self._made(g.stride), dtype=g.dtype, device=g.device)
                for g in geometries
            ]

    def _made(self, numbers: Sequence[int | sympy.Expr]) -> list[Any]:
        return [number if isinstance(number, int) else self._symbolic(number) for number in numbers]

    def _symbolic(self, expr: sympy.Expr) -> Any:
        hint = int(expr.xreplace({symbol: sympy.Integer(size) for symbol, size in self._hints.items()}))
        return self._env.create_symintnode(expr.xreplace(self._here), hint=hint)

    @property
    def shapes(self) -> Any:
        """The ``dynamic_shapes`` argument of standalone_compile."""
        return "from_example_inputs" if self._mode is None else "from_tracing_context"

    def __enter__(self) -> UnpackedExamples:
        self._stack = contextlib.ExitStack()
        if self._mode is not None:
            self._stack.enter_context(tracing(TracingContext(self._mode)))
            # A hit in Inductor's cache would not add the conditions under which the artifact was compiled.
            self._stack.enter_context(torch.compiler.config.patch(cache_key_tag=uuid.uuid4().hex))  # type: ignore[attr-defined]
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def conditions(self) -> tuple[Condition, ...]:
        """Return the conditions that the compiler has added, in the symbols of the ``Sizes``."""
        if self._mode is None:
            return ()
        back = {made: symbol for symbol, made in self._here.items()}
        asked = dict.fromkeys(guard.expr for guard in self._env.guards[self._known :] if guard.expr is not sympy.true)
        return (*self._few, *(condition.xreplace(back) for condition in asked))


def on_device(geometries: Sequence[Geometry]) -> bool:
    """Whether some of the inputs are in the memory of a device."""
    return any(one.device != "cpu" for one in geometries)


def solvable(taken: Sequence[Geometry]) -> frozenset[sympy.Symbol]:
    """Return the symbols whose values follow from the sizes of such inputs."""
    sizes = (size for one in taken for size in one.size if not isinstance(size, int))
    return frozenset(solved[0] for size in sizes if (solved := _solved(size)) is not None)


def fitting(taken: Sequence[Geometry], conditions: Sequence[Condition]) -> Callable[[Any], bool] | None:
    """Return a function that takes a graph's inputs and returns whether the conditions hold; None without conditions.
    ``taken``: the geometries of the inputs, in the symbols of the conditions."""
    if not conditions:
        return None
    places: dict[str, str] = {}
    for index, one in enumerate(taken):
        for dim, size in enumerate(one.size):
            if not isinstance(size, int) and (solved := _solved(size)) is not None:
                places.setdefault(solved[0].name, f"inputs[{index}].size({dim}) // {solved[1]}")
    names = sorted({symbol.name for condition in conditions for symbol in condition.free_symbols})
    printer = printers.PythonPrinter()
    test = " and ".join(f"({printer.doprint(condition)})" for condition in conditions)
    source = f"lambda inputs: (lambda {', '.join(names)}: {test})({', '.join(places[name] for name in names)})"
    made: Callable[[Any], bool] = eval(source, {"math": math, "torch": torch})
    return made


def pack(prepared: Prepared) -> bytes:
    """Return the graph of ``prepared`` as bytes. Drops its metadata, which a compiler derives from example inputs."""
    for node in prepared.graph.graph.nodes:
        node.meta.clear()
    return graph_bytes(prepared.graph)


def text_of(prepared: Prepared) -> str:
    """Return everything that the graph computes as text."""
    modules = ((name, m) for name, m in prepared.graph.named_modules() if isinstance(m, torch.fx.GraphModule))
    return "\n".join(f"{name}: {module.code}" for name, module in modules)


def unpack(packed: bytes) -> torch.fx.GraphModule:
    """Return the graph that was packed."""
    graph = pickling.GraphPickler.loads(packed, FakeTensorMode())
    assert isinstance(graph, torch.fx.GraphModule)
    graph.recompile()
    return graph


def without_symbols() -> FakeTensorMode:
    """Return a fake mode under which an artifact may be loaded; its caller checks the sizes."""
    return FakeTensorMode(shape_env=symbolic_shapes.ShapeEnv())
