"""What an operator gives for sizes that are not known, where torch's fake tensors do not tell: found by its results for
several sizes. Knows nothing of graphs.

What has one value for all of them is that; what is a size of the arguments for all of them is that size; every other
size is not known, which is always true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from torchjanus.core.kinds import isinstance

__all__ = ["Sampled", "sampled"]

# Sizes that are tried: operators choose kernels by sizes, and may have other results for small ones.
_SIZES = (1, 2, 3, 4, 8, 37, 2050, 65_543)
# Fake tensors run recurrent layers step by step, which takes minutes for long sequences; all lengths are alike to them.
_SIZES_OF_LAYERS = _SIZES[:5]
_LAYERS = frozenset({"gru", "lstm", "rnn_relu", "rnn_tanh"})
_FEWEST = 4  # samples that have to succeed, a large one among them


@dataclass
class Sampled:
    """``sizes`` and ``tensors``: of each result its sizes, and one like it; ``spec``: how the results are held;
    ``written``: the numbers of the tensors among the arguments that are written."""

    sizes: list[list[Any]]
    tensors: list[torch.Tensor]
    spec: Any
    written: list[int]


def sampled(function: Callable[..., Any], args: Any, kwargs: Any, new_size: Callable[[], Any]) -> Sampled | None:
    """Return what an operator gives; None if that differs in more than sizes, or depends on other numbers than sizes of
    its arguments. ``args`` and ``kwargs`` hold fake tensors and symbols."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    known = [size for one in leaves if isinstance(one, FakeTensor) for size in one.shape if not isinstance(size, int)]
    symbols = list(dict.fromkeys(part for size in known for part in _parts(size)))
    for one in leaves:
        if isinstance(one, torch.SymFloat | torch.SymBool):
            return None
        if isinstance(one, torch.SymInt) and not set(_parts(one)) <= set(symbols):
            return None
    tried = _SIZES_OF_LAYERS if getattr(function, "__name__", "") in _LAYERS else _SIZES
    runs: list[_Run] = []
    for run in _runs(function, leaves, spec, symbols, tried) if symbols else ():
        runs.append(run)
        # Before larger sizes are tried: a tensor that is split has thousands of results for those.
        if run.is_view or (run.kinds, run.written, run.spec) != (runs[0].kinds, runs[0].written, runs[0].spec):
            return None
    if len(runs) < _FEWEST or runs[-1].values[symbols[0]] < tried[-2]:
        return None
    first = runs[0]
    sizes = [
        [_size([one.outs[n].shape[dim] for one in runs], runs, known, new_size) for dim in range(out.ndim)]
        for n, out in enumerate(first.outs)
    ]
    return Sampled(sizes, first.outs, first.spec, first.written)


class _Run:
    """One call, with sizes in place of symbols."""

    def __init__(self, function: Any, leaves: list[Any], spec: Any, values: dict[Any, int]) -> None:
        self.values = values
        with FakeTensorMode(allow_non_fake_inputs=True):
            given = [self._instance(one) for one in leaves]
            tensors = [one for one in given if isinstance(one, torch.Tensor)]
            before = [one._version for one in tensors]
            args, kwargs = pytree.tree_unflatten(given, spec)
            made, self.spec = pytree.tree_flatten(function(*args, **kwargs))
        if not all(isinstance(one, torch.Tensor) for one in made):
            raise TypeError("other results than tensors")
        self.outs: list[torch.Tensor] = made
        self.written = [n for n, (one, was) in enumerate(zip(tensors, before, strict=True)) if one._version != was]
        held = {one.untyped_storage()._cdata for one in tensors}
        self.is_view = any(one.untyped_storage()._cdata in held for one in self.outs) or not self.outs
        self.kinds = [(one.dtype, one.device, one.ndim, one.layout, one.requires_grad) for one in self.outs]

    def _instance(self, one: Any) -> Any:
        if isinstance(one, torch.SymInt):
            return self.number(one)
        if isinstance(one, FakeTensor):
            sizes = [self.number(size) for size in one.shape]
            return torch.empty(sizes, dtype=one.dtype, device=one.device).requires_grad_(one.requires_grad)
        return one

    def number(self, symbol: Any) -> int:
        """Return what a size is in this call."""
        return symbol if isinstance(symbol, int) else int(symbol.node.expr.subs(self.values))


def _parts(size: Any) -> list[Any]:
    """Return the symbols in a size, by name."""
    return sorted(size.node.expr.free_symbols, key=str)


def _runs(function: Any, leaves: list[Any], spec: Any, symbols: list[Any], tried: tuple[int, ...]) -> Iterator[_Run]:
    """Calls with sizes that differ from each other and, if torch takes no such ones, with equal ones."""
    for apart in (1, 0):
        found = False
        for size in tried:
            try:
                run = _Run(function, leaves, spec, {one: size + apart * n for n, one in enumerate(symbols)})
            except Exception:  # eager raises for these sizes, when the graph runs
                continue
            found = True
            yield run
        if found:
            return


def _size(seen: list[int], runs: list[_Run], known: list[Any], new_size: Callable[[], Any]) -> Any:
    if len(set(seen)) == 1:
        return seen[0]
    for size in known:
        if all(one.number(size) == found for one, found in zip(runs, seen, strict=True)):
            return size
    return new_size()
