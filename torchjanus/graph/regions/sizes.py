"""The sizes of an iteration's tensors that change from call to call, as symbols of the iteration's own.

An iteration is traced once for all sizes, in whatever graph it stands: there it is handed what its symbols are, and
what tracing it has asked of them is asked of those sizes. Knows nothing of iterations, nor of programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from torchjanus.core.errors import InternalFault
from torchjanus.graph.aten.symbolic_sizes import Symbolic, hint
from torchjanus.graph.ir.program import Dimension
from torchjanus.graph.operators.loop_op import Given, Size
from torchjanus.trace.values import Stand

__all__ = ["Named", "OwnSizes", "at", "named", "plain", "sizes_for"]


@dataclass(frozen=True, slots=True)
class Named:
    """What an iteration is given, in symbols of its own: the kinds of its tensors, and sizes that it computes with.
    ``values``: what each symbol is where the iteration stands."""

    kinds: tuple[Any, ...]
    others: tuple[Any, ...]
    values: tuple[Any, ...]

    @property
    def hints(self) -> tuple[int, ...]:
        """The numbers that stand for the symbols while tracing."""
        return tuple(map(hint, self.values))


def named(kinds: Sequence[tuple[Any, ...]], others: Sequence[Any] = ()) -> Named:
    """The same kinds and sizes, for wherever the iteration may stand."""
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
            if values[-1] < 2:  # asks, where that is not known: an iteration is traced for two or more
                raise InternalFault("an iteration is given a size that is 0 or 1")
        return plain(expr.xreplace(known))

    found = tuple((tuple(map(own, kind[0])), tuple(map(own, kind[1])), *kind[2:]) for kind in kinds)
    return Named(found, tuple(map(own, others)), tuple(values))


def at(exprs: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """These expressions in an iteration's own symbols, for these values of the symbols."""
    env = {_symbol(number): value for number, value in enumerate(values)}
    return [_value(expr, env) for expr in exprs]


def sizes_for(sizes: Sequence[Any], conditions: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """What these are where the symbols have these values, of which the conditions must hold."""
    for condition in at(conditions, values):
        if not condition:  # asks whoever the sizes belong to
            raise InternalFault("an iteration was traced for other sizes")
    return at(sizes, values)


def _value(expr: Any, env: dict[Any, Any]) -> Any:
    return sympy_interp(PythonReferenceAnalysis, env, expr) if isinstance(expr, sympy.Basic) else expr


def plain(expr: Any) -> Any:
    """An expression, or the number that it is."""
    return int(expr) if isinstance(expr, sympy.Integer) else expr


def _symbol(number: int) -> sympy.Symbol:
    return sympy.Symbol(f"d{number}", positive=True, integer=True)


class OwnSizes:
    """The symbols of an iteration while it is traced."""

    def __init__(self, hints: Sequence[int], others: Sequence[Any] = ()) -> None:
        self.symbolic = Symbolic(tuple(Dimension(Stand(n, f"size {n}"), hint) for n, hint in enumerate(hints)))
        self.sizes = list(self.symbolic.sizes)
        self.others = at(others, self.sizes)
        self._names = {size.node.expr: _symbol(number) for number, size in enumerate(self.sizes)}
        self._wanted: dict[Any, Size] = {symbol: Size(n) for n, symbol in enumerate(self._names.values())}

    def blank(self, kind: tuple[Any, ...]) -> torch.Tensor:
        """A tensor without data of this kind."""
        size, stride, dtype, device, requires_grad = kind
        with self.symbolic.mode:
            made = torch.empty_strided(at(size, self.sizes), at(stride, self.sizes), dtype=dtype, device=device)
        return made.requires_grad_(requires_grad)

    def kind_of(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        """What an iteration must know of a tensor that it is given."""
        size, stride = (tuple(map(self.own, part)) for part in (tensor.size(), tensor.stride()))
        return (size, stride, tensor.dtype, tensor.device, tensor.requires_grad)

    def own(self, size: Any) -> Any:
        """A size in the iteration's own symbols. Raises KeyError where it is none of these."""
        if not isinstance(size, torch.SymInt):
            return int(size)
        return self._own(size.node.expr)

    def _own(self, expr: Any) -> Any:
        return plain(expr.xreplace({symbol: self._names[symbol] for symbol in expr.free_symbols}))

    def given(self, value: torch.Tensor, stacked: bool) -> Given:
        """What one tensor that an iteration gives is like, for whoever is handed ``wanted`` sizes."""
        found = [self.own(one) for one in value.size()]
        size = tuple(one if isinstance(one, int) else self._number(one) for one in found)
        return Given(value.dtype, size, stacked, value.device)

    def _number(self, expr: Any) -> Size:
        return self._wanted.setdefault(expr, Size(len(self._wanted)))

    @property
    def wanted(self) -> tuple[Any, ...]:
        """The sizes that whoever runs the iterations is handed: the symbols, and what else tensors have."""
        return tuple(self._wanted)

    def conditions(self) -> tuple[Any, ...]:
        """What has been asked of the symbols."""
        guards = () if self.symbolic.env is None else self.symbolic.env.guards
        return tuple(dict.fromkeys(self._own(guard.expr) for guard in guards if guard.expr is not sympy.true))

    def computed(self, graph: torch.fx.GraphModule) -> None:
        """Let the graph compute its sizes of those that it is given, which come first, and not of tensors."""
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
            made = sympy_interp(
                PythonReferenceAnalysis, {s: torch.fx.Proxy(places[s]) for s in expr.free_symbols}, expr
            )
        node = last.next
        while node is not before:
            given = torch.fx.node.map_arg((node.args, node.kwargs), lambda part: part.meta["val"])
            node.meta["val"] = node.target(*given[0], **given[1])  # type: ignore[operator]
            node = node.next
        return made.node if isinstance(made, torch.fx.Proxy) else int(made)
