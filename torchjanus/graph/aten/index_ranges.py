"""Range analysis of integer tensors: their elements are elements of inputs, or numbers within intervals.

Positions are counted, picked from tables, padded and clamped before a lookup uses them. With the ranges, checking the
inputs is enough to know that a lookup cannot fail. The ends of intervals may be symbolic sizes, as sympy expressions.
Knows ATen's operations, not who looks up.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from torchjanus.core.lazy import deferred
from torchjanus.ops.aten import operator_of

__all__ = ["Elements", "elements_of", "end_of", "named"]

if TYPE_CHECKING:
    import sympy  # type: ignore[import-untyped]
else:
    sympy = deferred("sympy")

Node = torch.fx.Node

_WIDE = frozenset({torch.int32, torch.int64})  # every element of an index keeps its value in these
_FILLED = {"zeros": 0, "zeros_like": 0, "new_zeros": 0, "ones": 1, "ones_like": 1, "new_ones": 1}

End: TypeAlias = Any  # an int, or a sympy expression of symbolic sizes
Ask = Callable[[Node], "Elements | None"]


@dataclass(frozen=True, slots=True)
class Elements:
    """Each element is one of these ``inputs``' elements, or in one of the ``intervals`` (both ends included)."""

    inputs: frozenset[int] = frozenset()
    intervals: frozenset[tuple[End, End]] = frozenset()

    def __or__(self, other: Elements) -> Elements:
        return Elements(self.inputs | other.inputs, self.intervals | other.intervals)

    def within(self, limit: End, exempt: int | None) -> list[Any] | None:
        """Return the conditions on sizes under which the numbers of the intervals are at least 0 and less than
        ``limit``, or ``exempt``; None where that is impossible."""
        found: list[Any] = []
        for low, high in self.intervals:
            if isinstance(low, int) and isinstance(high, int):
                low, high = low + (low == exempt), high - (high == exempt)
                if low > high:
                    continue
            for condition in (sympy.Ge(low, 0), sympy.Lt(high, limit)):
                if condition == sympy.false:
                    return None
                if condition != sympy.true:
                    found.append(condition)
        return found


def elements_of(node: Node, inputs: Mapping[Node, int]) -> Elements | None:
    """Return the possible elements; None if unknown. ``inputs``: the placeholders that hold only elements of one input
    of the step, with its number."""
    known: dict[Node, Elements | None] = {}
    pending = [node]
    while pending:  # no recursion: chains may be long, and many paths may lead to one node
        one = pending[-1]
        used = () if one in inputs else filter(_is_integral, one.all_input_nodes)  # other tensors have no ranges
        missing = [other for other in used if other not in known]
        if missing:
            pending += missing
        else:
            pending.pop()
            known[one] = _merged(one, inputs, known.get)
    return known[node]


def _merged(node: Node, inputs: Mapping[Node, int], ask: Ask) -> Elements | None:
    if node in inputs:
        return Elements(frozenset({inputs[node]})) if _is_integral(node) else None
    if node.op != "call_function" or not _is_integral(node):
        return None
    kind, known = _kind(node), operator_of(node.target)
    if node.target is operator.getitem:
        return _column(node)
    if kind is torch.bool:
        return _interval(0, 1)
    if known.same_elements or known.picks_elements or (known.name == "_to_copy" and kind in _WIDE):
        return ask(node.args[0])  # type: ignore[arg-type]
    if known.joins:
        return _any_of([ask(part) for part in node.args[0]])  # type: ignore[union-attr,arg-type]
    rule = _RULES.get(known.name)
    return None if rule is None else rule(node, ask)


def _kind(node: Node) -> torch.dtype | None:
    value = node.meta.get("val")
    return value.dtype if isinstance(value, torch.Tensor) else None


def _is_integral(node: Node) -> bool:
    kind = _kind(node)
    return kind is not None and not (kind.is_floating_point or kind.is_complex)


def end_of(value: Any) -> End:
    """Return a number as int, or a symbolic size as a sympy expression; None for anything else."""
    if isinstance(value, Node):
        value = value.meta.get("val")
    if isinstance(value, torch.SymInt):
        value = value.node.expr
        return int(value) if isinstance(value, sympy.Integer) else value
    return value if type(value) is int else None


def _interval(low: Any, high: Any) -> Elements | None:
    """Return the elements from ``low`` to ``high``; None where an end is unknown."""
    if low is None or high is None or not all(type(end) is int or isinstance(end, sympy.Expr) for end in (low, high)):
        return None
    empty = type(low) is int and type(high) is int and low > high
    return Elements(intervals=frozenset() if empty else frozenset({(low, high)}))


def _any_of(parts: list[Elements | None]) -> Elements | None:
    found = Elements()
    for part in parts:
        if part is None:
            return None
        found |= part
    return found


def named(node: Node) -> dict[str, Any]:
    """Return the arguments of an ATen operation by name."""
    target: Any = node.target
    return dict(zip((a.name for a in target._schema.arguments), node.args, strict=False)) | node.kwargs


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _counted(node: Node, ask: Ask) -> Elements | None:
    """``arange`` with step 1."""
    given = named(node)
    end, start = end_of(_whole(given.get("end"))), end_of(_whole(given.get("start", 0)))
    return _interval(start, end - 1) if given.get("step", 1) == 1 and end is not None else None


def _added(node: Node, ask: Ask) -> Elements | None:
    """Return a number added to elements of intervals."""
    one, other = node.args[0], end_of(node.args[1])
    if not isinstance(one, Node) or other is None or node.kwargs.get("alpha", 1) != 1:
        return None
    known = ask(one)
    if known is None or (known.inputs and other != 0):
        return None
    by = other if operator_of(node.target).name == "add" else -other
    return Elements(known.inputs, frozenset((low + by, high + by) for low, high in known.intervals))


def _clamped(node: Node, ask: Ask) -> Elements | None:
    given = named(node)
    low, high = _whole(given.get("min")), _whole(given.get("max"))
    # If min > max all elements are ``max``.
    return _interval(min(low, high), high) if type(low) is int and type(high) is int else None


def _padded(node: Node, ask: Ask) -> Elements | None:
    value = _whole(named(node).get("value", 0))
    return _any_of([ask(node.args[0]), _interval(value, value)])  # type: ignore[arg-type]


def _either(node: Node, ask: Ask) -> Elements | None:
    parts = node.args[1:]
    return _any_of([ask(part) if isinstance(part, Node) else _interval(part, part) for part in parts])


def _replaced(node: Node, ask: Ask) -> Elements | None:
    """``masked_fill`` with a number."""
    value = _whole(node.args[2])
    return _any_of([ask(node.args[0]), _interval(value, value)])  # type: ignore[arg-type]


def _filled(node: Node, ask: Ask) -> Elements | None:
    name, given = operator_of(node.target).name, named(node)
    value = _FILLED[name] if name in _FILLED else _whole(given.get("fill_value"))
    return _interval(value, value)


def _constant(node: Node, ask: Ask) -> Elements | None:
    value = _whole(node.args[0])
    return _interval(value, value)


def _rest(node: Node, ask: Ask) -> Elements | None:
    by = node.args[1]
    return _interval(0, by - 1) if type(by) is int and by > 0 else None


def _place(node: Node, ask: Ask | None = None) -> Elements | None:
    """Return the positions of the largest or smallest elements, or of all in order."""
    given = {"dim": -1, **named(node)} if operator_of(node.target).finds else named(node)
    of = given["self"].meta["val"]
    size = of.numel() if given.get("dim") is None else of.size(given["dim"]) if of.dim() else 1
    end = end_of(size)
    return None if end is None else _interval(0, end - 1)


def _position(node: Node, ask: Ask) -> Elements | None:
    """``nonzero``: positions along any of the dimensions."""
    ends = [end_of(size) for size in node.args[0].meta["val"].size()]  # type: ignore[union-attr]
    return _any_of([_interval(0, end - 1) if type(end) is int or len(ends) == 1 else None for end in ends])


def _column(node: Node) -> Elements | None:
    """One column of ``nonzero``, with positions along one dimension; or the positions that sort and the like give."""
    columns, place = node.args
    if isinstance(columns, Node) and operator_of(columns.target).finds and place == 1:
        return _place(columns)
    if not isinstance(columns, Node) or operator_of(columns.target).name != "unbind" or named(columns).get("dim") != 1:
        return None
    of = columns.args[0]
    if not isinstance(of, Node) or operator_of(of.target).name != "nonzero" or type(place) is not int:
        return None
    end = end_of(of.args[0].meta["val"].size(place))  # type: ignore[union-attr]
    return None if end is None else _interval(0, end - 1)


_RULES: dict[str, Callable[[Node, Ask], Elements | None]] = {
    "arange": _counted,
    "add": _added,
    "sub": _added,
    "clamp": _clamped,
    "constant_pad_nd": _padded,
    "where": _either,
    "masked_fill": _replaced,
    "full": _filled,
    "full_like": _filled,
    "new_full": _filled,
    "scalar_tensor": _constant,
    "remainder": _rest,
    "nonzero": _position,
    "argmax": _place,
    "argmin": _place,
    **dict.fromkeys(_FILLED, _filled),
}
