"""Dynamic sizes of an iteration's tensors, as symbols that belong to the iteration.

An iteration is traced once for all sizes, wherever it occurs in a graph. There it receives the values of its symbols,
and the conditions recorded by tracing are checked for these values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from torchjanus.core.errors import InternalFault
from torchjanus.core.lazy import deferred
from torchjanus.graph.aten.symbolic_sizes import Symbolic, hint
from torchjanus.graph.ir.program import Dimension
from torchjanus.graph.operators.loop_op import Size, TensorSignature
from torchjanus.trace.values import Placeholder

__all__ = ["OwnSizes", "SymbolicInputs", "at", "named", "plain", "sizes_for"]

interpreting = deferred("torch.utils._sympy.interp")
reference = deferred("torch.utils._sympy.reference")
if TYPE_CHECKING:
    import sympy  # type: ignore[import-untyped]
else:
    sympy = deferred("sympy")


@dataclass(frozen=True, slots=True)
class SymbolicInputs:
    """The inputs of an iteration in its own symbols: kinds of tensors, and sizes that it computes with.

    ``values``: the value of each symbol where the iteration occurs."""

    kinds: tuple[Any, ...]
    others: tuple[Any, ...]
    values: tuple[Any, ...]

    @property
    def hints(self) -> tuple[int, ...]:
        """Example values of the symbols, used while tracing."""
        return tuple(map(hint, self.values))


def named(kinds: Sequence[tuple[Any, ...]], others: Sequence[Any] = ()) -> SymbolicInputs:
    """Return kinds and sizes in symbols of the iteration, for any surrounding graph. Raises InternalFault."""
    known: dict[sympy.Symbol, sympy.Symbol] = {}
    values: list[Any] = []

    def own(size: Any) -> Any:
        if not isinstance(size, torch.SymInt):
            return int(size)
        expr, env = size.node.expr, size.node.shape_env
        for symbol in sorted(expr.free_symbols - known.keys(), key=str):
            known[symbol] = _symbol(len(known))
            is_it = symbol == expr
            values.append(size if is_it else env.create_symintnode(symbol, hint=int(env.size_hint(symbol))))
            if values[-1] < 2:  # adds a guard where it is not known: tracing assumes 2 or more
                raise InternalFault("an iteration is given a size that is 0 or 1")
        return plain(expr.xreplace(known))

    found = tuple((tuple(map(own, kind[0])), tuple(map(own, kind[1])), *kind[2:]) for kind in kinds)
    return SymbolicInputs(found, tuple(map(own, others)), tuple(values))


def at(exprs: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Return the values of expressions in the iteration's symbols."""
    env = {_symbol(number): value for number, value in enumerate(values)}
    return [_value(expr, env) for expr in exprs]


def sizes_for(sizes: Sequence[Any], conditions: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Return the values of ``sizes``. Raises InternalFault if a condition does not hold."""
    for condition in at(conditions, values):
        if not condition:  # adds a guard to the surrounding graph
            raise InternalFault("an iteration was traced for other sizes")
    return at(sizes, values)


def _value(expr: Any, env: dict[Any, Any]) -> Any:
    return (
        interpreting.sympy_interp(reference.PythonReferenceAnalysis, env, expr)
        if isinstance(expr, sympy.Basic)
        else expr
    )


def plain(expr: Any) -> Any:
    """Return an expression, as an int where it is constant."""
    return int(expr) if isinstance(expr, sympy.Integer) else expr


def _symbol(number: int) -> sympy.Symbol:
    return sympy.Symbol(f"d{number}", positive=True, integer=True)


class OwnSizes:
    """The symbols of an iteration while it is traced."""

    def __init__(self, hints: Sequence[int], others: Sequence[Any] = ()) -> None:
        self.symbolic = Symbolic(tuple(Dimension(Placeholder(n, f"size {n}"), hint) for n, hint in enumerate(hints)))
        self.sizes = list(self.symbolic.sizes)
        self.others = at(others, self.sizes)
        self._names = {size.node.expr: _symbol(number) for number, size in enumerate(self.sizes)}
        self._wanted: dict[Any, Size] = {symbol: Size(n) for n, symbol in enumerate(self._names.values())}

    def blank(self, kind: tuple[Any, ...]) -> torch.Tensor:
        """Return a tensor of this kind without data."""
        size, stride, dtype, device, requires_grad = kind
        with self.symbolic.mode:
            made = torch.empty_strided(at(size, self.sizes), at(stride, self.sizes), dtype=dtype, device=device)
        return made.requires_grad_(requires_grad)

    def kind_of(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        """Return size, stride, dtype, device and gradient requirement of a tensor, in own symbols."""
        size, stride = (tuple(map(self.own, part)) for part in (tensor.size(), tensor.stride()))
        return (size, stride, tensor.dtype, tensor.device, tensor.requires_grad)

    def own(self, size: Any) -> Any:
        """Return a size in the iteration's symbols. Raises KeyError where it contains other symbols."""
        if not isinstance(size, torch.SymInt):
            return int(size)
        return self._own(size.node.expr)

    def _own(self, expr: Any) -> Any:
        return plain(expr.xreplace({symbol: self._names[symbol] for symbol in expr.free_symbols}))

    def given(self, value: torch.Tensor, stacked: bool) -> TensorSignature:
        """Return the description of a result, with its sizes as indices into ``wanted``."""
        found = [self.own(one) for one in value.size()]
        size = tuple(one if isinstance(one, int) else self._number(one) for one in found)
        return TensorSignature(value.dtype, size, stacked, value.device)

    def _number(self, expr: Any) -> Size:
        return self._wanted.setdefault(expr, Size(len(self._wanted)))

    @property
    def wanted(self) -> tuple[Any, ...]:
        """The sizes that the runner of the iterations passes in: the symbols, and derived sizes of results."""
        return tuple(self._wanted)

    def conditions(self) -> tuple[Any, ...]:
        """Return the guards on the symbols that tracing recorded."""
        guards = () if self.symbolic.env is None else self.symbolic.env.guards
        return tuple(dict.fromkeys(self._own(guard.expr) for guard in guards if guard.expr is not sympy.true))

    def computed(self, graph: torch.fx.GraphModule) -> None:
        """Rewrite the graph so that it computes sizes from its size arguments (the first ones), not from tensors."""
        if not self.sizes:
            return
        nodes = list(graph.graph.nodes)
        places = dict(zip(self._names, nodes, strict=False))
        first = next(node for node in nodes if node.op != "placeholder")
        made: dict[Any, Any] = {}
        for node in nodes:
            if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.SymInt):
                continue
            expr = node.meta["val"].node.expr
            if expr not in made:
                made[expr] = self._written(graph, first, expr, places)
            node.replace_all_uses_with(made[expr])
        graph.graph.eliminate_dead_code(is_impure_node=lambda node: not isinstance(node.meta.get("val"), torch.SymInt))

    @staticmethod
    def _written(graph: torch.fx.GraphModule, before: torch.fx.Node, expr: Any, places: dict[Any, Any]) -> Any:
        last = before.prev
        with graph.graph.inserting_before(before):
            made = interpreting.sympy_interp(
                reference.PythonReferenceAnalysis, {s: torch.fx.Proxy(places[s]) for s in expr.free_symbols}, expr
            )
        node = last.next
        while node is not before:
            given = torch.fx.node.map_arg((node.args, node.kwargs), lambda part: part.meta["val"])
            node.meta["val"] = node.target(*given[0], **given[1])  # type: ignore[operator]
            node = node.next
        return made.node if isinstance(made, torch.fx.Proxy) else int(made)
