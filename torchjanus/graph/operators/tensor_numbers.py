"""Python arithmetic on numbers fetched from tensors, as operations on 0-d float64 and int64 tensors.

Python's floats are float64, so these operations give the same numbers. What would differ (powers, mathematical
functions) is refused rather than approximated.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchjanus.core.errors import Place, refused
from torchjanus.graph.ir.program import Node, Ref
from torchjanus.trace.modes import Modes
from torchjanus.trace.values import Apply, Fetch, leaves, where_made

__all__ = ["HostNumber", "Tensorised", "as_operand", "beside", "snapshot", "tensorise"]

_QUIET = Modes(grad=False)
_SAME: dict[Callable[..., Any], Callable[..., Any]] = {
    operator.add: torch.add,
    operator.sub: torch.sub,
    operator.mul: torch.mul,
    operator.truediv: torch.true_divide,
    operator.neg: torch.neg,
    operator.pos: torch.positive,
    operator.lt: torch.lt,
    operator.le: torch.le,
    operator.gt: torch.gt,
    operator.ge: torch.ge,
    operator.eq: torch.eq,
    operator.ne: torch.ne,
    abs: torch.abs,
    operator.abs: torch.abs,
    math.isnan: torch.isnan,
    math.isinf: torch.isinf,
    math.isfinite: torch.isfinite,
}
# For ints only. Division by zero raises in the graph, and then Python makes the call.
_OF_INTS: dict[Callable[..., Any], Callable[..., Any]] = {
    operator.floordiv: torch.floor_divide,
    operator.mod: torch.remainder,
}
_CHOOSING: dict[Callable[..., Any], Callable[..., Any]] = {max: torch.gt, min: torch.lt}
_TRUTHS = frozenset(
    {torch.lt, torch.le, torch.gt, torch.ge, torch.eq, torch.ne, torch.isnan, torch.isinf, torch.isfinite}
)


@dataclass(frozen=True, slots=True)
class HostNumber:
    """A number of the host: a constant, or a Slot."""

    operand: Any
    type: type


@dataclass(frozen=True, slots=True)
class Tensorised:
    """A number as a 0-d tensor, and the Python type that it represents."""

    ref: Ref
    type: type


def snapshot(ref: Ref, fetch: Fetch, new_ref: Callable[[], Ref]) -> tuple[Tensorised, list[Node]]:
    """Return the number that ``fetch`` reads from ``ref`` at this point, and its nodes. Raises Refused."""
    if fetch.each:
        what = "an operation on tensors depends on a loop-carried number"
        raise refused("text-of-tensor", what, "it is made when the graph has run.", "Compute it with torch functions.")
    if fetch.type not in (int, float, bool):
        what = "the text of a tensor decides what the program does"
        raise refused("text-of-tensor", what, "it is made when the graph has run.", "Decide by the tensor's values.")
    dtype = torch.float64 if fetch.type is float else torch.int64
    source, nodes = ref, []
    flat = new_ref()
    index = fetch.index or 0
    nodes.append(Node(torch.reshape, (source, (-1,)), {}, (flat,), _QUIET))
    picked, out = new_ref(), new_ref()
    nodes.append(Node(torch.select, (flat, 0, index), {}, (picked,), _QUIET))
    nodes.append(Node(torch.Tensor.to, (picked, dtype), {"copy": True}, (out,), _QUIET))
    return Tensorised(out, fetch.type), nodes


def tensorise(
    expr: Any,
    snapshots: Mapping[Any, Tensorised],
    given: Callable[[Any], HostNumber],
    new_ref: Callable[[], Ref],
    place: Place,
) -> tuple[Tensorised, list[Node]]:
    """Return an expression's value and nodes. ``given``: maps parts without fetches. Raises Refused."""
    nodes: list[Node] = []

    def emit(func: Callable[..., Any], args: tuple[Any, ...], kind: type) -> Tensorised:
        out = new_ref()
        nodes.append(Node(func, args, {}, (out,), _QUIET, place))
        return Tensorised(out, kind)

    def tensor_of(number: Tensorised | HostNumber) -> Tensorised:
        if isinstance(number, Tensorised):
            return number
        dtype = torch.float64 if number.type is float else torch.int64
        out = new_ref()
        nodes.append(Node(torch.full, ((), number.operand), {"dtype": dtype}, (out,), _QUIET, place))
        return Tensorised(out, number.type)

    def visit(part: Any) -> Any:
        if isinstance(part, Fetch) and part.token in snapshots:
            return snapshots[part.token]
        if not isinstance(part, Apply) or not any(leaf.token in snapshots for leaf in leaves(part)):
            return given(part)
        args = [visit(a) for a in part.args]
        if part.func in (int, operator.index) and args[0].type in (int, bool):
            return Tensorised(args[0].ref, int)
        if part.func is float:
            return emit(torch.Tensor.to, (args[0].ref, torch.float64), float)
        if part.func is bool:
            return emit(torch.ne, (args[0].ref, 0), bool)
        kinds = [a.type for a in args]
        if part.func in _CHOOSING and len(args) > 1 and kinds in ([int] * len(args), [float] * len(args)):
            # Python keeps the first of two that are equal or not comparable.
            best, *others = (tensor_of(a) for a in args)
            for other in others:
                better = emit(_CHOOSING[part.func], (other.ref, best.ref), bool)
                best = emit(torch.where, (better.ref, other.ref, best.ref), kinds[0])
            return best
        func = _SAME.get(part.func) or (torch.eq if getattr(part.func, "__name__", "") == "_equal" else None)
        if func is None and all(kind is int for kind in kinds):
            func = _OF_INTS.get(part.func)
        if func is None:
            where = f" ({merged})" if (merged := where_made(part, place)) else ""
            raise refused(
                "number-rounding",
                f"computes {part} from a number fetched from a tensor{where}",
                "a graph would not give Python's exact result.",
                "Compute it with torch functions on the tensor.",
                place,
            )
        kind = bool if func in _TRUTHS else float if float in kinds or func is torch.true_divide else int
        operands = []
        for a in args:
            if isinstance(a, Tensorised):
                # Beside a float, torch would convert an int64 tensor to the default dtype.
                exact = a.type is int and (func is torch.true_divide or float in kinds)
                operands.append(emit(torch.Tensor.to, (a.ref, torch.float64), float).ref if exact else a.ref)
            else:
                operands.append(a.operand)
        if not isinstance(args[0], Tensorised):
            operands[0] = tensor_of(args[0]).ref  # torch's functions require a tensor first
        return emit(func, tuple(operands), kind)

    return visit(expr), nodes


def as_operand(
    number: Tensorised, others: Sequence[Ref], modes: Modes, new_ref: Callable[[], Ref], place: Place
) -> tuple[Ref, Node]:
    """Return the number as an operand beside other tensors, and its node (see ``beside``)."""
    out = new_ref()
    quiet = replace(modes, grad=False, autocast=())
    return out, Node(beside, (number.ref, number.type is float, *others), {}, (out,), quiet, place)


def beside(number: torch.Tensor, is_float: bool, *others: torch.Tensor) -> torch.Tensor:
    """Return a 0-d tensor in a dtype that promotes the others as a Python number would. Raises Refused."""
    if not others:
        return number
    wanted = torch.result_type(others[0], 1.0 if is_float else 1)
    given = torch.result_type(others[0], number)
    for other in others[1:]:
        tensor = torch.empty((), dtype=other.dtype) if other.dim() == 0 else torch.empty(0, dtype=other.dtype)
        wanted = torch.promote_types(wanted, torch.result_type(tensor, 1.0 if is_float else 1))
        given = torch.promote_types(given, torch.result_type(tensor, number))
    if wanted == given:
        return number
    if wanted in (torch.float16, torch.bfloat16):
        raise refused(
            "number-rounding",
            f"a number fetched from a tensor meets a tensor of one {wanted} element",
            "a graph would round the number first.",
            "Compute it with torch functions on the tensor.",
        )
    return number.to(wanted)
