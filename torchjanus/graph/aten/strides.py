"""Correct the strides of fake tensors where kernels return others.

Torch computes the strides of a fake tensor by a formula, which for some operators differs from the kernel: batch norm
of a transposed tensor, max pooling. Decisions on strides during tracing (whether a reshape is a view, whether
``contiguous()`` copies, where the elements of a view are) would then be wrong in the graph. So the operators that are
known to differ are measured: the kernel runs once on a few made-up numbers in the layout of the operands, and the fake
result gets the strides of its result. For operations of a watched run the layout of the result is known, too.

Knows nothing of programs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from torchjanus.core.caches import Recent
from torchjanus.ops.aten import operator_of
from torchjanus.trace.layout import Layout, ResultLayout, layout_by, layout_of, number_of

__all__ = ["MeasuredStrides", "laid_as", "lay_results"]

aten = torch.ops.aten

Geometry = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]  # sizes, strides, dtype

_SMALL = 3  # the length to which longer dimensions are cut
_AS_IT_IS = 4096  # the most elements of operands that are not cut
_MOST = 1 << 20  # the most elements of operands that are made


class MeasuredStrides(FakeTensorMode):
    """A fake tensor mode in which results have the strides that kernels return."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_dispatch__(func, types, args, kwargs)
        return self._corrected(func, args, kwargs or {}, made) if operator_of(func).measured_strides else made

    def _corrected(self, func: Any, args: Any, kwargs: dict[str, Any], made: Any) -> Any:
        """Return the result in the layout that the kernel would give it."""
        flat, spec = pytree.tree_flatten(made)
        layouts = _layouts(func, args, kwargs)
        if layouts is None or len(layouts) != len(flat):
            return made
        return pytree.tree_unflatten(list(map(self._laid, flat, layouts)), spec)

    def _laid(self, part: Any, layout: Layout | None) -> Any:
        if not isinstance(part, FakeTensor) or layout is None or len(layout) != part.dim():
            return part
        stride = [math.prod(part.size(dim) for dim in inner) for inner in layout]
        if all(_text(one) == _text(other) for one, other in zip(stride, part.stride(), strict=True)):
            return part
        with self:
            return torch.empty_strided(part.size(), stride, dtype=part.dtype, device=part.device)


def _text(number: Any) -> str:
    return str(number.node.expr) if isinstance(number, torch.SymInt) else str(number)


_known: Recent[tuple[Layout | None, ...] | None] = Recent(4096)  # by operator and operands


def _layouts(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Layout | None, ...] | None:
    """Return the layout of each part of the kernel's result; None if unknown."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    given = [number_of(leaf) for leaf in leaves]
    tensors = [leaf for leaf in given if isinstance(leaf, FakeTensor)]
    if any(one.layout != torch.strided or one.device.type != "cpu" for one in tensors):
        return None  # that would start another device, perhaps in a process that never uses it
    geometries = {place: _geometry_of(leaf) for place, leaf in enumerate(given) if isinstance(leaf, FakeTensor)}
    if any(None in size or 0 in size for size, _, _ in geometries.values()):
        return None
    cuts = (
        [geometries]
        if sum(math.prod(size) for size, _, _ in geometries.values()) <= _AS_IT_IS
        else [_cut(geometries), geometries]
    )
    for cut in cuts:
        if sum(_reach(size, stride) for size, stride, _ in cut.values()) > _MOST:
            continue
        key = func, tuple(cut.items()), repr([leaf for leaf in given if not isinstance(leaf, FakeTensor)])
        found = _known.get(key, partial(_measure, func, cut, given, spec))
        if found is not None:
            return found
    return None


def _geometry_of(tensor: torch.Tensor) -> Geometry:
    return tuple(map(number_of, tensor.size())), tuple(map(number_of, tensor.stride())), tensor.dtype


def _cut(geometries: dict[int, Geometry]) -> dict[int, Geometry]:
    """Return smaller operands with the same order of dimensions and gaps in the same places."""
    found = {}
    for place, (size, stride, dtype) in geometries.items():
        less = tuple(min(length, _SMALL) for length in size)
        strides, dense, running = [0] * len(size), 1, 1
        for dim in sorted(range(len(size)), key=lambda dim: (stride[dim], size[dim])):
            if not stride[dim]:
                continue
            strides[dim] = running if stride[dim] == dense or size[dim] == 1 else running * 2
            if size[dim] > 1:
                dense, running = stride[dim] * size[dim], strides[dim] * less[dim]
        found[place] = less, tuple(strides), dtype
    return found


def _reach(size: tuple[int, ...], stride: tuple[int, ...]) -> int:
    return 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True))


def _measure(
    func: Any, geometries: dict[int, Geometry], given: Sequence[Any], spec: Any
) -> tuple[Layout | None, ...] | None:
    """Run the kernel on made-up numbers and return the layouts of its results; None where it raises."""
    with _disable_current_modes(), torch.no_grad(), torch.random.fork_rng(devices=()):
        made = {place: _made_up(*geometry) for place, geometry in geometries.items()}
        args, kwargs = pytree.tree_unflatten([made.get(place, leaf) for place, leaf in enumerate(given)], spec)
        try:
            results = func(*args, **kwargs)
        except (RuntimeError, IndexError, ValueError, TypeError):
            return None  # it needs other numbers; the results of the graph are checked in its first run
    parts = pytree.tree_leaves(results)
    return tuple(layout_of(part) if isinstance(part, torch.Tensor) else None for part in parts)


def _made_up(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    plain = torch.ones if dtype.is_floating_point or dtype.is_complex or dtype is torch.bool else torch.zeros
    return plain(_reach(size, stride), dtype=dtype).as_strided(size, stride)


def laid_as(tensor: torch.Tensor, layout: ResultLayout) -> torch.Tensor:
    """Return the tensor if it has this layout, or a copy that has. Strides of dimensions of size 1 do not matter."""
    order = _other_order(tensor, layout)
    if order is None:
        return tensor
    if order == [*range(tensor.dim())]:
        return tensor.contiguous()
    return tensor.permute(order).contiguous().permute([order.index(dim) for dim in range(tensor.dim())])


def _other_order(tensor: torch.Tensor, layout: ResultLayout) -> list[int] | None:
    """Return the dimensions from outermost to innermost in this layout; None where it has it, or it is unknown."""
    if layout is None or tensor.layout != torch.strided or tensor.dim() < 2:
        return None
    size, stride = list(map(number_of, tensor.size())), list(map(number_of, tensor.stride()))
    dims = [dim for dim, length in enumerate(size) if length != 1]
    if None in size or 0 in size or not dims:
        return None
    made = layout_by(size, [step if length > 1 else 1 for length, step in zip(size, stride, strict=True)])
    rows = tuple(tuple(range(dim + 1, len(size))) for dim in range(len(size)))
    wanted = rows if isinstance(layout, bool) else layout
    if made is None or len(wanted) != len(size):
        return None  # layouts with gaps are not handled

    def rank(dim: int) -> int:
        return sum(inner in dims for inner in wanted[dim])

    if sorted(map(rank, dims)) != list(range(len(dims))) or all(len(made[dim]) == rank(dim) for dim in dims):
        return None  # it was watched with other sizes, or has this layout
    return sorted(range(len(size)), key=lambda dim: -rank(dim))


def lay_results(module: torch.fx.GraphModule, wanted: Sequence[ResultLayout]) -> None:
    """Restore the layouts of the first results of a functional graph to those before functionalisation: a result that
    was computed in place, or into a given tensor, had that tensor's layout. Views of results are taken as they are."""
    graph = module.graph
    output: Any = graph.output_node()
    results = list(output.args[0])
    changed = False
    for place, layout in enumerate(wanted):
        node = results[place]
        order = _other_order(node.meta["val"], layout)
        if order is None:
            continue
        changed = True
        inverse = [order.index(dim) for dim in range(len(order))]
        rows: dict[str, Any] = {"memory_format": torch.contiguous_format}
        for func, args, kwargs in (
            (aten.permute, (order,), {}),
            (aten.clone, (), rows),
            (aten.permute, (inverse,), {}),
        ):
            value = func.default(node.meta["val"], *args, **kwargs)
            with graph.inserting_before(output):
                node = graph.call_function(func.default, (node, *args), kwargs)
            node.meta["val"] = value
        results[place] = node
    if changed:
        output.args = (results,)
        module.recompile()
