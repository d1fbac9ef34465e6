"""Who outside of a loop's iterations uses what they take and make, and what a use becomes once they are one node.

Knows programs, not how loops are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchjanus.core.errors import refused
from torchjanus.graph.ir.loop_matching import Rolled, Unfit, call_name
from torchjanus.graph.ir.program import Assertion, Node, Program, Ref
from torchjanus.graph.ir.repetition import leaves_of
from torchjanus.graph.loops.roll.reversal import UNBIND_BACK

__all__ = [
    "Stepping", "as_expected", "asked_by", "check_measures", "count_up", "is_counting", "joins", "one_later",
    "parts_of", "simplified", "stepping", "unbindings", "used_of", "windows",
]  # fmt: skip


def unbindings(program: Program, loop: Rolled) -> Iterator[tuple[int, list[Node]]]:
    """The nodes that unbind a tensor into rows for this loop alone, or all but the first row, and what is left."""
    inside = range(loop.segment.start, loop.segment.end)
    elsewhere = set(program.outputs) | {assertion.ref for assertion in program.assertions}
    for number, node in enumerate(program.nodes):
        if number not in inside:
            elsewhere.update(value for value in leaves_of((node.args, node.kwargs)) if isinstance(value, Ref))
    rows = {tuple(one.values) for found in loop.arguments for one in found if one.kind == "rows"}
    for number, node in enumerate(program.nodes[: loop.segment.start]):
        found = parts_of(node)
        if found is None or call_name(node) == "__iter__":
            continue
        if node.outs in rows and not elsewhere.intersection(node.outs):
            yield number, []
        elif node.outs[1:] in rows and not elsewhere.intersection(node.outs[1:]):
            source, dim, back = found
            args = (source, dim, -1 if back else 0)
            yield number, [replace(node, func=torch.select, args=args, kwargs={}, outs=node.outs[:1])]


def parted(node: Node) -> tuple[Any, Any]:
    """What ``unbind()`` parts, and along which dimension."""
    source, dim = (*node.args, *(0,) * (2 - len(node.args)))[:2]
    return node.kwargs.get("input", source), node.kwargs.get("dim", dim)


def one_later(start: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """For each iteration the row of the one before; for the first ``start``. Raises Refused."""
    if start.size() != rows.size()[1:] or start.dtype != rows.dtype or start.device != rows.device:
        what = "what the first iteration takes for the row of the one before is of another kind"
        raise refused("loop-first-iteration", what, "Iterations are compiled for one.", "Begin with one like the rows.")
    return torch.cat([start.unsqueeze(0), rows[:-1]])


def used_of(program: Program, loop: Rolled) -> set[int]:
    """The iterations' tensors that something outside of them takes."""
    inside = range(loop.segment.start, loop.segment.end)
    taken = {
        value.index
        for number, node in enumerate(program.nodes)
        if number not in inside
        for value in leaves_of((node.args, node.kwargs))
        if isinstance(value, Ref)
    }
    measured = {measure.ref.index for measure in program.measures}
    return (taken | measured | {ref.index for ref in program.outputs}) & loop.made.keys()


def check_measures(program: Program, loop: Rolled) -> None:
    """Sizes that are known only when a tensor has been made are asked for outside of iterations. Raises Unfit."""
    if any(loop.segment.start < measure.after < loop.segment.end for measure in program.measures):
        raise Unfit


def asked_by(program: Program, loop: Rolled) -> Sequence[Assertion]:
    """What each iteration of a loop asserts in the end. Raises Unfit where that is not the same."""
    segment = loop.segment
    found = [a for a in program.assertions if segment.start < a.after <= segment.end]
    ends = [segment.start + (number + 1) * segment.length for number in range(segment.iterations)]
    where = [loop.made.get(assertion.ref.index, (-1, -1, -1)) for assertion in found]
    if [a.after for a in found] != ends or len({place[1:] for place in where}) != 1:
        raise Unfit
    if [place[0] for place in where] != list(range(segment.iterations)):
        raise Unfit
    return found


def simplified(node: Node, stacks: Mapping[tuple[Ref, ...], Ref]) -> Node:
    """``torch.stack`` or ``torch.cat`` of all that the iterations of a loop gave, first to last or last to first, is
    what the loop gave; with what stands before and behind it."""
    joined = _joined_by(node, stacks)
    if joined is None:
        return node
    dim, parts = joined
    stacking = call_name(node) == "stack"
    if len(parts) == 1:
        ((rows, back),) = parts
        args: tuple[Any, ...] = (stacks[rows], dim, back)
        return Node(_restacked if stacking else _rejoined, args, {}, node.outs, node.modes, node.place)
    given = [rows[0] if back is None else stacks[rows] for rows, back in parts]
    args = (given, tuple(back for _, back in parts), dim, stacking)
    return Node(_joined, args, {}, node.outs, node.modes, node.place)


def joins(node: Node, rows: tuple[Ref, ...]) -> bool:
    """Whether it takes these rows only to stack or concatenate all of them, in either order."""
    joined = _joined_by(node, (rows,))
    return joined is not None and not any(back is None and some[0] in rows for some, back in joined[1])


def _joined_by(
    node: Node, stacks: Iterable[tuple[Ref, ...]]
) -> tuple[int, list[tuple[tuple[Ref, ...], bool | None]]] | None:
    """The dimension in which it stacks or concatenates, and what: the rows of stacks, and whether backwards; None for
    a single tensor. None where it does something else, or takes no stack."""
    if call_name(node) not in ("stack", "cat") or not node.args or not isinstance(node.args[0], list | tuple):
        return None
    given, dim = tuple(node.args[0]), node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
    if type(dim) is not int or dim < 0 or set(node.kwargs) - {"dim"}:
        return None
    known = {one: (rows, one is not rows) for rows in stacks for one in (rows[::-1], rows)}
    lengths = sorted({len(rows) for rows in known}, reverse=True)
    parts: list[tuple[tuple[Ref, ...], bool | None]] = []
    at = 0
    while at < len(given):
        length = next((n for n in lengths if given[at : at + n] in known), 0)
        parts.append(known[given[at : at + length]] if length else ((given[at],), None))
        at += length or 1
    return (dim, parts) if any(back is not None for _, back in parts) else None


def _restacked(stacked: torch.Tensor, dim: int, back: bool) -> torch.Tensor:
    """A new tensor with what ``torch.stack(rows, dim)`` gives. ``back``: with the last row first."""
    stacked = stacked.flip(0) if back else stacked
    return stacked.movedim(0, dim).clone(memory_format=torch.contiguous_format)


def _rejoined(stacked: torch.Tensor, dim: int, back: bool) -> torch.Tensor:
    """A new tensor with what ``torch.cat(rows, dim)`` gives."""
    return _restacked(stacked, dim, back).flatten(dim, dim + 1)


def _joined(given: Sequence[torch.Tensor], backs: Sequence[bool | None], dim: int, stacking: bool) -> torch.Tensor:
    """What ``torch.stack`` or ``torch.cat`` gives of these, some of which are the rows of a stack. ``backs``: for each
    whether its last row comes first; None for a single tensor."""
    whole = _restacked if stacking else _rejoined
    parts = [
        (one.unsqueeze(dim) if stacking else one) if back is None else whole(one, dim, back)
        for one, back in zip(given, backs, strict=True)
    ]
    return torch.cat(parts, dim)


def as_expected(expected: Sequence[bool], *given: torch.Tensor) -> torch.Tensor:
    """Whether the truth of each tensor is what was assumed."""
    flags = [tensor.detach().reshape(()).ne(0) == truth for tensor, truth in zip(given, expected, strict=True)]
    return torch.stack(flags).all()


@dataclass(frozen=True, slots=True)
class Stepping:
    """``x[:, t]`` or ``x[0, t, 2:4]`` with t going up by one: the dimension of t, the first t, x, and how a row is
    indexed further. ``width``: of ``x[t : t + width]``, where t may go up by more in each ``step``."""

    dim: int
    first: int
    source: Ref
    rest: tuple[Any, ...] = ()
    width: int = 0
    step: int = 1


def windows(source: torch.Tensor, dim: int, first: int, count: int | None, width: int, step: int) -> torch.Tensor:
    """``source[first : first + width]``, ``source[first + step : first + step + width]`` and so on, along this
    dimension, as rows: so many, or as many as there are."""
    if count is None:
        count = (source.size(dim) - first - width) // step + 1
    if step == width:  # each element is in one of them only
        taken = source.narrow(dim, first, count * width)
        parts: torch.Tensor = torch.unflatten(taken, dim, (count, width))
        return parts.movedim(dim, 0)
    parts = source.narrow(dim, first, (count - 1) * step + width).unfold(dim, width, step)
    return parts.movedim(-1, dim + 1).movedim(dim, 0)


def stepping(args: list[tuple[Any, ...]]) -> Stepping | None:
    """What each iteration takes of a tensor, if that is by the number of the iteration."""
    source = args[0][0]
    if not isinstance(source, Ref) or len(args[0]) not in (2, 3):
        return None
    if len(args[0]) == 3:  # select(x, dim, t)
        dim, steps = args[0][1], [given[2] for given in args]
        return Stepping(dim, steps[0], source) if type(dim) is int and dim >= 0 and is_counting(steps) else None
    keys = [key if isinstance(key, tuple) else (key,) for _, key in args]
    if len({len(key) for key in keys}) > 1 or not all(_is_basic(part) for key in keys for part in key):
        return None
    columns = list(zip(*keys, strict=True))
    moving = [place for place, column in enumerate(columns) if any(part != column[0] for part in column)]
    if len(moving) != 1:
        return None
    before, after = keys[0][: moving[0]], keys[0][moving[0] + 1 :]
    found = _window(columns[moving[0]])
    if found is None and not is_counting(columns[moving[0]]):
        return None
    first, width, step = (columns[moving[0]][0], 0, 1) if found is None else found
    rest = (*before, *(() if found is None else (slice(None),)), *after)
    whole = all(part == slice(None) for part in rest)
    dim = sum(part is not None for part in before)
    return Stepping(dim, first, source, () if whole else rest, width, step)


def _window(slices: Sequence[Any]) -> tuple[int, int, int] | None:
    """Where ``x[t : t + width]`` begins, its width, and by how much t goes up in each iteration."""
    if len(slices) < 2 or any(type(one) is not slice or one.step not in (None, 1) for one in slices):
        return None
    starts, stops = [0 if one.start is None else one.start for one in slices], [one.stop for one in slices]
    if any(type(number) is not int for number in (*starts, *stops)):
        return None
    width, step = stops[0] - starts[0], starts[1] - starts[0]
    evenly = starts == [starts[0] + step * number for number in range(len(starts))] if step > 0 else False
    wide = width > 0 and all(stop - start == width for start, stop in zip(starts, stops, strict=True))
    return (starts[0], width, step) if evenly and wide and starts[0] >= 0 else None


def parts_of(node: Node) -> tuple[Any, Any, bool] | None:
    """What the node parts into its rows, along which dimension, and whether the last row comes first. None where it
    does something else."""
    if call_name(node) not in ("unbind", "__iter__", UNBIND_BACK):
        return None
    return (*parted(node), call_name(node) == UNBIND_BACK)


def _is_basic(part: Any) -> bool:
    ends = (part.start, part.stop, part.step) if isinstance(part, slice) else (part,)
    return all(end is None or type(end) is int for end in ends)


def is_counting(steps: Sequence[Any]) -> bool:
    """Whether these are integers that go up by one."""
    if any(type(step) is not int for step in steps) or steps[0] < 0:
        return False
    return list(steps) == list(range(steps[0], steps[0] + len(steps)))


def count_up(count: int, first: int) -> torch.Tensor:
    """The numbers of so many iterations."""
    return torch.arange(count).add(first)
