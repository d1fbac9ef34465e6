"""Find which results of a traced program share memory with each other or with inputs, and which are views of others to
autograd. Knows nothing of programs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from torchjanus.core.errors import Refused, refused
from torchjanus.graph.aten.symbolic_sizes import hint
from torchjanus.graph.ir.lowered import Fresh, FromInput, NoGradient, Source, ViewOf
from torchjanus.trace.layout import extent

__all__ = ["Memory", "base_of", "counted_apart"]


class Memory:
    """Finds a Source for each result, and collects the values that a graph has to return for them."""

    def __init__(self) -> None:
        self.values: list[torch.Tensor] = []  # value k of the graph
        self._inputs: Sequence[torch.Tensor] = ()
        self._before: Sequence[torch.Tensor] = ()
        self._known: dict[int, Source] = {}
        self._bases: dict[int, list[tuple[torch.Tensor, Fresh | FromInput]]] = {}  # by storage

    @property
    def fresh(self) -> int:
        return len(self.values)

    def of_input(self, index: int) -> FromInput:
        """Return the source of input ``index``: the first position at which that object was passed."""
        return FromInput(next(i for i, tensor in enumerate(self._inputs) if tensor is self._inputs[index]))

    def place(
        self,
        inputs: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor | None],
        before: Sequence[torch.Tensor] | None = None,
        shown: Collection[int] = (),
        saved: Sequence[torch.Tensor] = (),
    ) -> list[Source]:
        """Return a source for each result. Results that are one object share a source; overlapping ones become views of
        one that contains the others, or of their base. ``before``: tensors with the memory of the inputs at entry.
        ``shown``: positions of results that the program may inspect: their bases are returned, too. ``saved``: further
        results, which come last; their memory matters only where other results share it. Raises Refused."""
        self._inputs = inputs
        self._before = inputs if before is None else before
        made = [tensor for tensor in results if tensor is not None]
        bases = [base for base in map(base_of, (results[k] for k in shown)) if base is not None]
        try:
            known = self._placed(inputs, bases, made)
        except Refused:
            bases = [tensor._base for tensor in made if tensor._base is not None]
            if not bases:
                raise
            self.values.clear()
            known = self._placed(inputs, bases, made)
        self._known = known
        return [*(NoGradient() if tensor is None else known[id(tensor)] for tensor in results), *self._saved(saved)]

    def of_base(self, base: torch.Tensor) -> Source | None:
        """Return the source of a base of results; None where the graph does not return it."""
        return self._known.get(id(base))

    def _saved(self, tensors: Sequence[torch.Tensor]) -> list[Source]:
        """Return the sources of saved tensors. Raises Refused."""
        shared, found = {*self._bases}, {}
        for tensor in sorted(tensors, key=_size):
            some = self._bases.setdefault(_storage(tensor), [])
            try:
                source: Source | None = self._view(tensor, some)
            except Refused:
                if _storage(tensor) in shared:
                    raise
                source = None
            if source is None:
                source = Fresh(len(self.values))
                self.values.append(tensor)
                some.append((tensor, source))
            found[id(tensor)] = source
        return [found[id(tensor)] for tensor in tensors]

    def _placed(
        self, inputs: Sequence[torch.Tensor], first: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
    ) -> dict[int, Source]:
        known: dict[int, Source] = {}
        bases = self._bases = {}
        for index, (tensor, alias) in enumerate(zip(inputs, self._before, strict=True)):
            if id(tensor) not in known:
                known[id(tensor)] = FromInput(index)
                bases.setdefault(_storage(alias), []).append((alias, FromInput(index)))
        # Larger results first: one that covers a storage is the base of the views on it.
        larger = [sorted(some, key=_size) for some in (first, results)]
        for tensor in (*larger[0], *larger[1]):
            if id(tensor) in known:
                continue
            view = self._view(tensor, bases.get(_storage(tensor), ()))
            if view is None:
                known[id(tensor)] = made = Fresh(len(self.values))
                self.values.append(tensor)
                bases.setdefault(_storage(tensor), []).append((tensor, made))
            else:
                known[id(tensor)] = view
        return known

    def _view(self, tensor: torch.Tensor, bases: Sequence[tuple[torch.Tensor, Fresh | FromInput]]) -> ViewOf | None:
        for base, source in bases:
            start, stop = extent(tensor)
            base_start, base_stop = extent(base)
            if stop <= base_start or base_stop <= start:
                continue  # disjoint: that they share a storage is not observable
            if not (
                base_start <= start and stop <= base_stop and _is_rebuilt(tensor, base, source, start - base_start)
            ):
                what = "two results overlap in memory, and neither contains the other"
                raise refused("results-overlap", what, "The graph cannot rebuild that aliasing.", "Return a clone.")
            offset = (start - base_start) // tensor.element_size()
            other = tensor.dtype != base.dtype
            bits = (tensor.is_conj(), tensor.is_neg()), (base.is_conj(), base.is_neg())
            conjugated, negated = bits[0] if other else (one is not below for one, below in zip(*bits, strict=True))
            size, stride = tuple(tensor.size()), tuple(tensor.stride())
            return ViewOf(source, size, stride, offset, conjugated, negated, tensor.dtype if other else None)
        return None


def base_of(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Return the tensor that a result is a view of to autograd; None where the host could not make the view, as of a
    size that only the graph knows."""
    if tensor is None or tensor.is_inference() or not tensor._is_view() or not _is_strided(tensor):
        return None
    base = tensor._base
    return base if base is not None and _is_strided(base) else None


def _is_strided(tensor: torch.Tensor) -> bool:
    numbers = (*tensor.size(), *tensor.stride(), tensor.storage_offset())
    return all(not isinstance(number, torch.SymInt) or number.node.has_hint() for number in numbers)


def counted_apart(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have different version counters."""
    if tensor.is_inference() or other.is_inference():
        return False
    version, there = tensor._version, other._version
    torch._C._autograd._unsafe_set_version_counter((tensor,), (version + 1_000_003,))
    apart = other._version == there
    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))
    return apart


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _is_rebuilt(tensor: torch.Tensor, base: torch.Tensor, source: Fresh | FromInput, distance: Any) -> bool:
    """Whether the host can make a tensor of the memory of a base ``distance`` bytes before it."""
    if tensor.dtype == base.dtype or tensor.element_size() <= base.element_size():
        return True
    # In another call, the input may begin at an address at which wider numbers cannot begin.
    return isinstance(source, Fresh) and isinstance(distance, int) and distance % tensor.element_size() == 0


def _size(tensor: torch.Tensor) -> tuple[int, int, bool]:
    """Return the order in which results are made: larger ones first, among those the ones of wider numbers."""
    each = tensor.element_size()
    return -_count(tensor.numel()) * each, -each, not (tensor.is_floating_point() or tensor.is_complex())


def _count(numel: Any) -> int:
    """Return the number of elements, or 0 where it is unknown while tracing (``a[:-len(b)]``)."""
    return 0 if isinstance(numel, torch.SymInt) and not numel.node.has_hint() else hint(numel)
