"""The memory that captured work reads and writes, at addresses that stay: inputs, numbers of the host, and results.

Knows neither what is captured nor when it is launched.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from torchjanus.execute.comparing import duplicate
from torchjanus.execute.running.gate import below_autograd

__all__ = ["Inputs", "Results"]

LARGE = 1 << 16  # bytes: gradients from this size on are released before the graph runs (see runtime.launch.emit)


class Inputs:
    """The memory of inputs. Where it is the program's own (``adopted``) the program has to give it at each call;
    elsewhere it is ours, and contents are copied there and back."""

    def __init__(self, examples: Sequence[torch.Tensor], adopted: Collection[int]) -> None:
        self.adopted = frozenset(adopted)
        self.tensors = [
            example.detach() if number in self.adopted else duplicate(example.detach())
            for number, example in enumerate(examples)
        ]
        self._copied = [number for number in range(len(examples)) if number not in self.adopted]
        # The tensors keep their memory, so no other tensor can come to lie there.
        self._addresses = [(number, examples[number].data_ptr()) for number in sorted(self.adopted)]

    def elsewhere(self, given: Sequence[torch.Tensor]) -> set[int]:
        """Return the adopted inputs whose memory is another one now."""
        return {number for number, address in self._addresses if given[number].data_ptr() != address}

    def take(self, given: Sequence[torch.Tensor]) -> None:
        """Copy the contents of what is not adopted."""
        if self._copied:
            _copy([self.tensors[number] for number in self._copied], [given[number] for number in self._copied])

    def give_back(self, given: Sequence[torch.Tensor], mutated: Sequence[int]) -> None:
        """Copy new contents to the program's tensors, where these are not adopted."""
        written = [number for number in mutated if number not in self.adopted]
        if written:
            _copy([given[number] for number in written], [self.tensors[number] for number in written])


class Results:
    """The values that each launch writes anew. What a program may keep is never overwritten.

    Small ones are copied for the program. Large ones are given out themselves (``lending``), and counted: as long as
    somebody holds one, the work must not be launched.
    """

    def __init__(self, values: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], lending: bool) -> None:
        self._values = [*values]
        taken = [_memory(tensor) for tensor in (*inputs, *values)]
        self._lent = [
            number
            for number, value in enumerate(values)
            if lending and value.nbytes >= LARGE and taken.count(_memory(value)) == 1
        ]
        # Who holds each memory now: these values.
        self._unheld = [(memory, _holders(memory)) for memory in (_memory(self._values[n]) for n in self._lent)]
        self._copied = [number for number in range(len(values)) if number not in self._lent]

    @property
    def held(self) -> bool:
        """Whether the program holds a value that is not copied."""
        return any(_holders(memory) > own for memory, own in self._unheld)

    def hand_out(self) -> list[torch.Tensor]:
        """Return the values of this launch, for the program."""
        passed: list[torch.Tensor] = [*self._values]
        with torch.no_grad(), below_autograd():
            for number in self._lent:
                passed[number] = torch.ops.aten.alias.default(self._values[number])
            sources = [self._values[number] for number in self._copied]
            blanks = [
                torch.empty_strided(one.size(), one.stride(), dtype=one.dtype, device=one.device) for one in sources
            ]
            dense = [(one, blank) for one, blank in zip(sources, blanks, strict=True) if 0 not in one.stride()]
            if dense:
                torch._foreach_copy_([blank for _, blank in dense], [one for one, _ in dense])
            for number, one, blank in zip(self._copied, sources, blanks, strict=True):
                passed[number] = duplicate(one) if 0 in one.stride() else blank
        return passed


def _copy(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    pairs = [_once(target, source.detach()) for target, source in zip(targets, sources, strict=True)]
    with torch.no_grad():
        torch._foreach_copy_([target for target, _ in pairs], [source for _, source in pairs])


def _once(target: torch.Tensor, source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return parts of both in which each element of an expanded target is once."""
    if 0 in target.stride():
        for axis, stride in enumerate(target.stride()):
            if stride == 0 and target.size(axis):
                target, source = target.narrow(axis, 0, 1), source.narrow(axis, 0, 1)
    return target, source


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata  # type: ignore[no-any-return]


def _holders(memory: int) -> int:
    """Return how many tensors and storages refer to this memory: every view, and what autograd has saved."""
    return torch._C._storage_Use_Count(memory)
