"""Slots: finds where the Python numbers of a program occur in its graph, by tracing twice with different numbers.

The two traces get the numbers a and b for one slot. A place where they have f(a) and f(b), for a known function f, is f
of that slot. Places where a number may take any value become graph inputs; otherwise the slot becomes a constant.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.graph.ir.lowered import Pin
from torchjanus.graph.ir.program import SlotKind
from torchjanus.graph.operators.loop_op import is_loop, is_until
from torchjanus.graph.tracing.renumbered import Renumbered, geometries, same
from torchjanus.ops.aten import DATA_ARGUMENTS, operator_of

__all__ = ["Difference", "numbers_for", "thread"]

aten = torch.ops.aten


def numbers_for(slots: Sequence[SlotKind], pinned: Mapping[int, float | int], seed: int) -> list[float | int]:
    """Return numbers to trace with: the constant where pinned, else one that occurs nowhere else in the program."""
    draw = random.Random(seed)
    chosen: list[float | int] = []
    for index, slot in enumerate(slots):
        if index in pinned:
            chosen.append(pinned[index])
        elif slot.type is float:
            # In (0, 1), so that a probability stays valid. Never a number that C++ treats specially.
            chosen.append(draw.uniform(0.25, 0.75))
        else:
            # Large and odd: used as a size or an index it fails in the trace instead of passing unnoticed.
            chosen.append(draw.randrange(100_003, 999_983, 2))
    return chosen


@dataclass(frozen=True, slots=True)
class Derived:
    """A function of one slot that C++ code may compute before it calls a kernel."""

    name: str
    function: Callable[[Any], Any]
    build: Callable[[torch.fx.Graph, torch.fx.Node], torch.fx.Node]


def _call(target: Callable[..., Any], *arguments: Any) -> Callable[[torch.fx.Graph, torch.fx.Node], torch.fx.Node]:
    """Return a builder of ``target(*arguments)``, where None represents the slot."""

    def build(graph: torch.fx.Graph, slot: torch.fx.Node) -> torch.fx.Node:
        return graph.call_function(target, tuple(slot if part is None else part for part in arguments))

    return build


DERIVED = (
    Derived("s", lambda s: s, lambda graph, slot: slot),
    Derived("-s", operator.neg, _call(operator.neg, None)),
    Derived("1 - s", lambda s: 1 - s, _call(operator.sub, 1, None)),
    Derived("s - 1", lambda s: s - 1, _call(operator.sub, None, 1)),
    Derived("1 / s", lambda s: 1 / s, _call(operator.truediv, 1, None)),
    Derived("-1 / s", lambda s: -1 / s, _call(operator.truediv, -1, None)),
    Derived("2 * s", lambda s: 2 * s, _call(operator.mul, 2, None)),
    Derived("s * s", lambda s: s * s, _call(operator.mul, None, None)),
    Derived("float(s)", float, _call(float, None)),
    Derived("-float(s)", lambda s: -float(s), _call(operator.neg, None)),
)


@dataclass(frozen=True, slots=True)
class Difference:
    """A number that differs between two traces and is no known function of one slot."""

    node: int
    path: tuple[int | str, ...]
    first: Any
    second: Any


def thread(
    one: torch.fx.GraphModule,
    other: torch.fx.GraphModule | Renumbered,
    first: Sequence[float | int],
    second: Sequence[float | int],
    sizes: Sequence[int] = (),
) -> list[Difference]:
    """Make ``one`` take its slots as further placeholders, or return the differences that no slot explains.

    ``sizes``: the slots that it already takes first, as symbolic sizes. Raises Pin where a slot occurs at a place that
    must be constant. ``one`` is changed only if nothing is returned."""
    nodes, twins = list(one.graph.nodes), list(other.graph.nodes)
    if [(node.op, str(node.target)) for node in nodes] != [(node.op, str(node.target)) for node in twins]:
        return [Difference(-1, (), len(nodes), len(twins))]
    finder = _Finder(first, second)
    for number, (node, twin) in enumerate(zip(nodes, twins, strict=True)):
        finder.compare_node(number, node, twin, one, other)
    if finder.differences:
        return finder.differences
    if finder.pins:
        raise Pin(finder.pins)
    _rewrite(one, nodes, finder, first, sizes)
    return []


class _Finder:
    """Walks over two graphs in parallel and collects where their numbers differ."""

    def __init__(self, first: Sequence[float | int], second: Sequence[float | int]) -> None:
        self.pairs = [(index, a, b) for index, (a, b) in enumerate(zip(first, second, strict=True)) if a != b]
        self.differences: list[Difference] = []
        self.pins: dict[int, str] = {}
        self.uses: dict[int, dict[tuple[int | str, ...], tuple[int, Derived]]] = {}
        self.constants: dict[int, list[tuple[int, Derived] | None]] = {}

    def compare_node(
        self,
        number: int,
        node: torch.fx.Node,
        twin: torch.fx.Node,
        one: torch.fx.GraphModule,
        other: torch.fx.GraphModule | Renumbered,
    ) -> None:
        """Record the differences between two corresponding nodes."""
        if node.op == "get_attr":
            self._compare_constants(number, getattr(one, str(node.target)), getattr(other, str(twin.target)))
            return
        if not self._alike(geometries(node.meta.get("val")), geometries(twin.meta.get("val"))):
            self.differences.append(Difference(number, ("shape",), str(node.target), ""))
        for path, (a, b) in _pairs(node, twin):
            if isinstance(a, torch.fx.Node) or same(a, b):
                continue
            found = self._match(a, b)
            if found is None:
                self.differences.append(Difference(number, path, a, b))
                continue
            index, derived = found
            if self._is_data(node, path, derived):
                self.uses.setdefault(number, {})[path] = found
            else:
                self.pins[index] = f"it reaches {node.target} as {path[0]!r} ({derived.name}), which must be constant"

    def _alike(self, one: Any, other: Any) -> bool:
        """Whether geometries are equal, except for sizes that are slots (trip counts)."""
        if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
            return all(map(self._alike, one, other))
        return bool(one == other) or (type(one) is int and (one, other) in [(a, b) for _, a, b in self.pairs])

    def _match(self, a: Any, b: Any, rounded: torch.dtype | None = None) -> tuple[int, Derived] | None:
        for derived in DERIVED:
            for index, x, y in self.pairs:
                left, right = derived.function(x), derived.function(y)
                if rounded is not None:
                    left, right = (torch.tensor(part, dtype=rounded).item() for part in (left, right))
                if same(left, a) and same(right, b):
                    return index, derived
        return None

    @staticmethod
    def _is_data(node: torch.fx.Node, path: tuple[int | str, ...], derived: Derived) -> bool:
        if not isinstance(node.target, torch._ops.OpOverload):
            return False
        name = operator_of(node.target).name
        # x - 1 comes from pow's derivative, which branches on whether the exponent is 0.
        if is_loop(node.target) or is_until(node.target):
            return path[0] == ("count" if is_loop(node.target) else "limit") and derived.name == "s"
        return path[0] in DATA_ARGUMENTS.get(name, ()) and not (name == "pow" and derived.name == "s - 1")

    def _compare_constants(self, number: int, one: Any, other: Any) -> None:
        if not isinstance(one, torch.Tensor) or one.shape != other.shape or one.dtype != other.dtype:
            self.differences.append(Difference(number, ("constant",), one, other))
            return
        if torch.equal(one, other) or (
            one.is_floating_point() and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
        ):
            return
        elements: list[tuple[int, Derived] | None] = []
        for position, (a, b) in enumerate(zip(one.flatten().tolist(), other.flatten().tolist(), strict=True)):
            found = None
            if not same(a, b):
                found = self._match(a, b, one.dtype)
                if found is None:
                    self.differences.append(Difference(number, (position,), a, b))
            elements.append(found)
        self.constants[number] = elements


def _pairs(node: torch.fx.Node, twin: torch.fx.Node) -> Iterator[tuple[tuple[int | str, ...], tuple[Any, Any]]]:
    """Yield the leaves of both nodes' arguments, under the names of the operator's schema."""
    names: list[int | str] = list(range(len(node.args)))
    if isinstance(node.target, torch._ops.OpOverload):
        names = [argument.name for argument in node.target._schema.arguments[: len(node.args)]]
    for name, a, b in zip(names, node.args, twin.args, strict=True):
        yield from _leaves((name,), a, b)
    for keyword in sorted({*node.kwargs, *twin.kwargs}):
        yield from _leaves((keyword,), node.kwargs.get(keyword), twin.kwargs.get(keyword))


def _leaves(path: tuple[int | str, ...], a: Any, b: Any) -> Iterator[tuple[tuple[int | str, ...], tuple[Any, Any]]]:
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        for position, (left, right) in enumerate(zip(a, b, strict=True)):
            yield from _leaves((*path, position), left, right)
    else:
        yield path, (a, b)


def _rewrite(
    module: torch.fx.GraphModule,
    nodes: list[torch.fx.Node],
    finder: _Finder,
    first: Sequence[Any],
    sizes: Sequence[int],
) -> None:
    graph = module.graph
    last = [node for node in nodes if node.op == "placeholder"]
    start = last[-1].next if last else nodes[0]
    slots = []
    with graph.inserting_before(start):
        for index, value in enumerate(first):
            slots.append(graph.placeholder(f"slot_{index}"))
            slots[-1].meta["val"] = value
    for node, index in zip(nodes, sizes, strict=False):
        slots[index].meta["val"] = node.meta["val"]
        node.replace_all_uses_with(slots[index])
        graph.erase_node(node)
    built: dict[tuple[int, str], torch.fx.Node] = {}

    def number_of(index: int, derived: Derived) -> torch.fx.Node:
        if (index, derived.name) not in built:
            with graph.inserting_before(start):
                built[index, derived.name] = derived.build(graph, slots[index])
            if built[index, derived.name] is not slots[index]:
                built[index, derived.name].meta["val"] = derived.function(first[index])
        return built[index, derived.name]

    for number, uses in finder.uses.items():
        node = nodes[number]
        schema = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
        for path, (index, derived) in uses.items():
            place = schema.index(str(path[0]))
            if place < len(node.args):
                arguments = list(node.args)
                arguments[place] = _put(arguments[place], path[1:], number_of(index, derived))
                node.args = tuple(arguments)
            else:
                key = str(path[0])
                node.kwargs = {**node.kwargs, key: _put(node.kwargs[key], path[1:], number_of(index, derived))}
    for number, elements in finder.constants.items():
        _rebuild_constant(module, nodes[number], elements, number_of)


def _put(value: Any, path: tuple[int | str, ...], node: torch.fx.Node) -> Any:
    if not path:
        return node
    parts = list(value)
    parts[int(path[0])] = _put(parts[int(path[0])], path[1:], node)
    return parts


def _rebuild_constant(
    module: torch.fx.GraphModule,
    node: torch.fx.Node,
    elements: Sequence[tuple[int, Derived] | None],
    number_of: Callable[[int, Derived], torch.fx.Node],
) -> None:
    """Replace a constant tensor that holds slots by operations that build it from them at each call."""
    constant: torch.Tensor = getattr(module, str(node.target))
    graph, parts = module.graph, []
    known = constant.flatten().tolist()
    with graph.inserting_before(node):
        for value, found in zip(known, elements, strict=True):
            number = value if found is None else number_of(*found)
            options: dict[str, Any] = {"dtype": constant.dtype, "device": constant.device}
            made = graph.call_function(aten.full.default, ([], number), options)
            made.meta["val"] = constant.new_empty((), device="meta")
            parts.append(made)
        whole = parts[0]
        if constant.dim() > 0:
            stacked = graph.call_function(aten.stack.default, (parts,))
            stacked.meta["val"] = constant.new_empty(len(parts), device="meta")
            whole = graph.call_function(aten.view.default, (stacked, list(constant.shape)))
            whole.meta["val"] = constant.to("meta")
    node.replace_all_uses_with(whole)
    graph.erase_node(node)
