"""Packed sequences of different lengths (``pack_padded_sequence``). The host computes what depends on the lengths.

The number of elements at each step, and their rows in the padded batch, are integers that the host computes from the
lengths, as it makes selections. Packing gathers these rows; padding scatters them. The first number is the number of
sequences, which torch's layers use as a size. Knows nothing of how the host's calls are recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.semantics.record.recording import Recording
from torchjanus.trace.actions import Op
from torchjanus.trace.functions import placed, taken

__all__ = ["PACKING", "PackedSequences", "packing"]

PACKING = {"_pack_padded_sequence": "pack", "_pad_packed_sequence": "pad"}  # functions of torch._VF: methods of Packs
_BY_SIZE = frozenset({"zeros", "ones", "empty", "full", "rand", "randn"})
_NUMBERS = frozenset({"item", "__int__", "__index__"})


class PackedSequences:
    """Makes the calls of one run."""

    def __init__(
        self,
        recording: Recording,
        host: Callable[..., torch.Tensor],
        framework: Callable[..., Any],
        really: Callable[..., Any],
        plain: Callable[[torch.Tensor], torch.Tensor],
        holds: Callable[[str, Any, Any], object],
    ) -> None:
        """``plain`` returns what the host is given for a tensor. See Selections for the others."""
        self._recording, self._holds = recording, holds
        self._host, self._framework, self._really, self._plain = host, framework, really, plain
        self._counts: dict[int, tuple[torch.Tensor, Any]] = {}  # sizes of a batch, step by step -> the first of them
        self._firsts: dict[int, tuple[torch.Tensor, Any]] = {}  # tensors that hold such a first number -> the number

    @property
    def any(self) -> bool:
        """Whether anything has been packed."""
        return bool(self._counts)

    def pack(self, padded: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``torch._VF._pack_padded_sequence``: the elements, step by step, and their number at each step."""
        with torch._C.DisableTorchFunction():
            made, _ = torch._VF._pack_padded_sequence(padded, lengths, batch_first)  # raises where eager does
        source = self._sorted_from(lengths)
        counts = self._host(
            _counts_checked if source is None else _counts, self._plain(lengths if source is None else source)
        )
        steps = self._framework(torch.Tensor.transpose, padded, 0, 1) if batch_first else padded
        flat = self._framework(torch.Tensor.flatten, steps, 0, 1)
        asked = ((lengths, 0), (steps, 1), (counts, 0), (steps, 0))
        sizes = [self._framework(torch.Tensor.size, one, dim) for one, dim in asked]
        self._holds("==", *sizes[:2])
        self._holds("<=", *sizes[2:])
        self._counts[id(counts)] = (counts, sizes[0])
        return self._really(lambda: made, taken, flat, self._host(_places, counts)), counts

    def pad(
        self, data: torch.Tensor, counts: torch.Tensor, batch_first: bool, value: Any, total: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``torch._VF._pad_packed_sequence``: the batch padded with ``value`` to ``total`` steps; lengths."""
        known = self._counts.get(id(counts))
        batch = known[1] if known else self._framework(torch.Tensor.item, self._framework(torch.select, counts, 0, 0))
        plain = self._plain(counts)
        rest = [self._framework(torch.Tensor.size, data, dim) for dim in range(1, data.dim())]
        padded = self._framework(torch.Tensor.new_full, data, (total, batch, *rest), value)
        rows = self._framework(torch.Tensor.flatten, padded, 0, 1)
        places = self._host(_places, plain)
        filled = self._really(lambda: rows.index_copy(0, places, data), placed, rows, places, data)
        steps = self._framework(torch.Tensor.reshape, filled, (total, batch, *rest))
        out = self._framework(torch.Tensor.transpose, steps, 0, 1) if batch_first else steps
        return out, self._host(_lengths, plain)

    def number(self, short: str, args: tuple[Any, ...]) -> Any:
        """Return the result of a call that reads the number of sequences; None for any other call."""
        if not args or not isinstance(args[0], torch.Tensor):
            return None
        if short in _NUMBERS:
            known = self._firsts.get(id(args[0]))
            return None if known is None else known[1]
        if short == "__getitem__" and type(args[1]) is int and args[1] == 0 and id(args[0]) in self._counts:
            first = self._really(lambda: args[0][0], torch.Tensor.__getitem__, *args)
            self._firsts[id(first)] = (first, self._counts[id(args[0])][1])
            return first
        return None

    def sized(self, short: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments of a call with such tensors as numbers where they are sizes."""
        return tuple(map(self._size, args)) if short in _BY_SIZE else args

    def _size(self, value: Any) -> Any:
        if is_one_of(type(value), (list, tuple)):
            return type(value)(map(self._size, value))
        known = self._firsts.get(id(value))
        return value if known is None else known[1]

    def _sorted_from(self, lengths: torch.Tensor) -> torch.Tensor | None:
        """Return the tensor that the run has sorted by decreasing length to get these lengths, or None."""
        number = self._recording.number(lengths)
        for event in reversed(self._recording.trace.events):
            if isinstance(event, Op) and number in [ref.number for ref in event.outs]:
                given = event.args[0] if event.name == "torch.sort" and event.outs[0].number == number else None
                source = None if given is None else self._recording.trace.tensors[given.number]
                if source is None or source.dim() != 1:
                    return None
                with torch.no_grad(), torch._C.DisableTorchFunction():
                    same = torch.equal(source.sort(descending=True).values, lengths)
                return source if same else None
        return None


def packing(short: str, args: tuple[Any, ...]) -> str:
    """Return the method of Packs that makes a call of torch's function ``short``; "" for any other."""
    name = PACKING.get(short, "")
    if not name or not args or not isinstance(args[0], torch.Tensor) or args[0].device.type != "cpu":
        return ""
    return name


def _counts_checked(lengths: torch.Tensor) -> torch.Tensor:
    """Return the number of sequences with an element at each step. Raises if the lengths are not sorted."""
    steps = int(lengths.max()) if lengths.numel() else 0
    counts: torch.Tensor = torch._VF._pack_padded_sequence(torch.empty(steps, lengths.numel()), lengths, False)[1]
    return counts


def _counts(lengths: torch.Tensor) -> torch.Tensor:
    """Return the same for lengths in any order."""
    return _counts_checked(lengths.sort(descending=True).values)


def _places(counts: torch.Tensor) -> torch.Tensor:
    """Return the rows of a padded batch, steps first, that hold elements, step by step."""
    return (torch.arange(int(counts[0]))[None] < counts[:, None]).flatten().nonzero().squeeze(1)


def _lengths(counts: torch.Tensor) -> torch.Tensor:
    """Return the lengths of the sequences, the longest first."""
    return (torch.arange(int(counts[0]))[None] < counts[:, None]).sum(0)
