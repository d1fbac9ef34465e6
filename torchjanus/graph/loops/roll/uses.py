"""Finds the uses of a loop's inputs and outputs outside of its iterations, and rewrites them for the rolled loop.

Has the operators that such uses become: windows of a tensor, joins of stacked rows, shifted rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchjanus.core.errors import refused
from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.ir.loop_matching import RolledSegment, call_name
from torchjanus.graph.ir.program import Assertion, Node, Program, Ref
from torchjanus.graph.loops.roll.reversal import UNBIND_BACK

__all__ = [
    "SlidingWindow", "as_expected", "asked_by", "check_measures", "count_up", "is_counting", "joins", "one_later",
    "parts_of", "simplified", "stepping", "unbindings", "used_of", "windows",
]  # fmt: skip


def unbindings(program: Program, loop: RolledSegment) -> Iterator[tuple[int, list[Node]]]:
    """Yield the unbindings whose rows only this loop uses (or all rows but the first), and the nodes that replace
    each."""
    inside = range(loop.segment.start, loop.segment.end)
    elsewhere = set(program.outputs) | {assertion.ref for assertion in program.assertions}
    for number, node in enumerate(program.nodes):
        if number not in inside:
            elsewhere.update(node.inputs)
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
    """Return the operand of ``unbind()`` and its dimension."""
    source, dim = (*node.args, *(0,) * (2 - len(node.args)))[:2]
    return node.kwargs.get("input", source), node.kwargs.get("dim", dim)


def one_later(start: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return the rows shifted by one iteration: ``start``, and all rows but the last. Raises Refused."""
    if start.size() != rows.size()[1:] or start.dtype != rows.dtype or start.device != rows.device:
        what = "what the first iteration takes for the row of the one before is of another kind"
        raise refused("loop-first-iteration", what, "Iterations are compiled for one.", "Begin with one like the rows.")
    return torch.cat([start.unsqueeze(0), rows[:-1]])


def used_of(program: Program, loop: RolledSegment) -> set[int]:
    """Return the tensors of the iterations that are used outside of them."""
    inside = range(loop.segment.start, loop.segment.end)
    taken = {value.index for number, node in enumerate(program.nodes) if number not in inside for value in node.inputs}
    measured = {measure.ref.index for measure in program.measures}
    return (taken | measured | {ref.index for ref in program.outputs}) & loop.made.keys()


def check_measures(program: Program, loop: RolledSegment) -> None:
    """Check that no data-dependent size is measured within the iterations. Raises NotMergeable."""
    if any(loop.segment.start < measure.after < loop.segment.end for measure in program.measures):
        raise NotMergeable("loop-sizes", "a size that iterations measure is asked for outside of them")


def asked_by(program: Program, loop: RolledSegment) -> Sequence[Assertion]:
    """Return the assertions at the ends of the iterations. Raises NotMergeable if they are not alike."""
    segment = loop.segment
    found = [a for a in program.assertions if segment.start < a.after <= segment.end]
    ends = [segment.start + (number + 1) * segment.length for number in range(segment.iterations)]
    where = [loop.made.get(assertion.ref.index, (-1, -1, -1)) for assertion in found]
    if [a.after for a in found] != ends or len({place[1:] for place in where}) != 1:
        raise NotMergeable("loop-iterations-differ", "iterations assert different things")
    if [place[0] for place in where] != list(range(segment.iterations)):
        raise NotMergeable("loop-iterations-differ", "some iterations assert what others do not")
    return found


def simplified(node: Node, stacks: Mapping[tuple[Ref, ...], Ref]) -> Node:
    """Return the node for a ``torch.stack`` or ``torch.cat`` of the outputs of all iterations, first to last or last to
    first, perhaps with tensors before and after them: it uses the stacked output of the loop. Other nodes are
    unchanged."""
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
    """Whether the node uses these rows only to stack or concatenate all of them, in either order."""
    joined = _joined_by(node, (rows,))
    return joined is not None and not any(back is None and some[0] in rows for some, back in joined[1])


def _joined_by(
    node: Node, stacks: Iterable[tuple[Ref, ...]]
) -> tuple[int, list[tuple[tuple[Ref, ...], bool | None]]] | None:
    """Return the dimension in which the node stacks or concatenates, and its parts: the rows of a stack and whether
    they are reversed, or a single tensor and None. None if it is another operation, or has no stack among its
    operands."""
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
    """Return a new tensor equal to ``torch.stack(rows, dim)``. ``back``: with the last row first."""
    stacked = stacked.flip(0) if back else stacked
    return stacked.movedim(0, dim).clone(memory_format=torch.contiguous_format)


def _rejoined(stacked: torch.Tensor, dim: int, back: bool) -> torch.Tensor:
    """Return a new tensor equal to ``torch.cat(rows, dim)``, which is no view to autograd."""
    stacked = _restacked(stacked, dim, back)
    size = [*stacked.size()]
    size[dim : dim + 2] = [size[dim] * size[dim + 1]]
    made: torch.Tensor = torch.ops.aten._unsafe_view(stacked, size)
    return made


def _joined(given: Sequence[torch.Tensor], backs: Sequence[bool | None], dim: int, stacking: bool) -> torch.Tensor:
    """Return ``torch.stack`` or ``torch.cat`` of these, some of which are stacks of rows. ``backs``: for each whether
    its last row comes first; None for a single tensor."""
    whole = _restacked if stacking else _rejoined
    parts = [
        (one.unsqueeze(dim) if stacking else one) if back is None else whole(one, dim, back)
        for one, back in zip(given, backs, strict=True)
    ]
    return torch.cat(parts, dim)


def as_expected(expected: Sequence[bool], *given: torch.Tensor) -> torch.Tensor:
    """Return whether the truth value of each tensor is the assumed one, as a tensor."""
    flags = [tensor.detach().reshape(()).ne(0) == truth for tensor, truth in zip(given, expected, strict=True)]
    return torch.stack(flags).all()


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Accesses ``x[:, t]`` or ``x[0, t, 2:4]`` where t increases by one in each iteration. ``dim``: the dimension of t.
    ``first``: the first t. ``source``: x. ``rest``: further indices of a row. ``width``: for ``x[t : t + width]``,
    where t may increase by ``step``."""

    dim: int
    first: int
    source: Ref
    rest: tuple[Any, ...] = ()
    width: int = 0
    step: int = 1


def windows(source: torch.Tensor, dim: int, first: int, count: int | None, width: int, step: int) -> torch.Tensor:
    """Return the windows ``source[first : first + width]``, ``source[first + step : first + step + width]``, ... along
    the dimension, as rows: ``count`` of them, or as many as there are."""
    if count is None:
        count = (source.size(dim) - first - width) // step + 1
    if step == width:  # the windows do not overlap
        taken = source.narrow(dim, first, count * width)
        parts: torch.Tensor = torch.unflatten(taken, dim, (count, width))
        return parts.movedim(dim, 0)
    parts = source.narrow(dim, first, (count - 1) * step + width).unfold(dim, width, step)
    return parts.movedim(-1, dim + 1).movedim(dim, 0)


def stepping(args: list[tuple[Any, ...]]) -> SlidingWindow | None:
    """Return how the iterations index a tensor by their induction variable; None if they do not."""
    source = args[0][0]
    if not isinstance(source, Ref) or len(args[0]) not in (2, 3):
        return None
    if len(args[0]) == 3:  # select(x, dim, t)
        dim, steps = args[0][1], [given[2] for given in args]
        return SlidingWindow(dim, steps[0], source) if type(dim) is int and dim >= 0 and is_counting(steps) else None
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
    return SlidingWindow(dim, first, source, () if whole else rest, width, step)


def _window(slices: Sequence[Any]) -> tuple[int, int, int] | None:
    """Return the first start of the slices ``x[t : t + width]``, their width, and the step of t; None if they
    differ."""
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
    """Return the tensor that the node unbinds, the dimension, and whether the last row comes first; None for other
    nodes."""
    if call_name(node) not in ("unbind", "__iter__", UNBIND_BACK):
        return None
    return (*parted(node), call_name(node) == UNBIND_BACK)


def _is_basic(part: Any) -> bool:
    ends = (part.start, part.stop, part.step) if isinstance(part, slice) else (part,)
    return all(end is None or type(end) is int for end in ends)


def is_counting(steps: Sequence[Any]) -> bool:
    """Whether these are non-negative integers that increase by one."""
    if any(type(step) is not int for step in steps) or steps[0] < 0:
        return False
    return list(steps) == list(range(steps[0], steps[0] + len(steps)))


def count_up(count: int, first: int) -> torch.Tensor:
    """Return the indices of ``count`` iterations, from ``first`` on."""
    return torch.arange(count).add(first)
