"""Sizes of tensors that the program reads, as traced integers, so that computed values follow when sizes change.

Knows the functions that read them only by name.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from torchjanus.core.access_path import Step
from torchjanus.core.kinds import isinstance
from torchjanus.semantics.containers.made_lists import length_of
from torchjanus.semantics.record.recording import Recording
from torchjanus.trace.values import Apply, Expr, Size, Traced, plain, symbol, trace_value

__all__ = ["Sizes", "holds_traced"]


class Sizes:
    """The sizes read in one watched run."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._unbound: dict[int, tuple[Any, Any]] = {}  # the tuples that unbind() returned, with the number of parts

    def of(self, tensor: torch.Tensor, dim: int) -> Any:
        """Return ``tensor.shape[dim]``, traced."""
        recording = self.recording
        with torch._C.DisableTorchFunction():
            shape = tuple(tensor.shape)
        access_path, number = recording.owner(tensor), recording.number(tensor)
        if access_path is not None and recording.shapes.get(id(tensor)) == shape:
            return recording.found(access_path.then(Step.SIZE, dim % len(shape)), shape[dim])
        if number is None:
            return shape[dim]  # unknown access path: refused already
        size = Size(number, dim % len(shape), recording.ops)
        recording.fetch(size, shape[dim])
        return trace_value(shape[dim], size)

    def all(self, tensor: torch.Tensor) -> torch.Size:
        """Return ``tensor.shape``, of traced integers."""
        return torch.Size([self.of(tensor, dim) for dim in range(tensor.dim())])

    def note_unbind(self, parts: Any, input: torch.Tensor, dim: Any = 0) -> None:
        """``unbind(input, dim)`` has returned these parts."""
        if type(dim) is int:
            self._unbound[id(parts)] = (parts, self.of(input, dim))

    def count(self, over: Any) -> Expr | None:
        """Return the traced length of a tensor, of its parts, or of a list that a loop appends to; else None."""
        if isinstance(over, torch.Tensor):
            with torch._C.DisableTorchFunction():
                dims = over.dim()
            size = self.of(over, 0) if dims else None
        elif id(over) in self._unbound:
            _, size = self._unbound[id(over)]
        else:
            return length_of(self.recording, self._unbound.values(), over)
        return size.expr if isinstance(size, Traced) else None

    def pin(self, value: Any, why: str) -> None:
        """Hold the sizes constant: what the program does next depends on them in an unknown way."""
        if isinstance(value, torch.Tensor):
            with torch._C.DisableTorchFunction():
                dims = value.dim()
            for dim in range(dims):
                self.recording.pin(self.of(value, dim), why)

    def hold_squeeze(self, tensor: Any, dim: Any = None) -> None:
        """Hold which sizes are 1, since the rank after ``squeeze`` depends on it."""
        if not isinstance(tensor, torch.Tensor):
            return
        with torch._C.DisableTorchFunction():
            count = tensor.dim()
        dims = range(count) if dim is None else dim if isinstance(dim, tuple | list) else (dim,)
        for one in dims if count else ():
            size = self.of(tensor, plain(one)) if -count <= plain(one) < count else None
            if isinstance(size, Traced):
                self.recording.hold(Apply(operator.eq, (size.expr, 1)), plain(size) == 1)

    def traced(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        """Return the result of reading ``name`` of the first argument, traced if it is a size."""
        tensor = args[0] if args else None
        if not isinstance(tensor, torch.Tensor):
            return result
        with torch._C.DisableTorchFunction():
            if type(result) is torch.Size:
                return self.all(tensor)
            if name == "size":
                return self.of(tensor, int(kwargs["dim"] if "dim" in kwargs else args[1]))
            if name in ("numel", "nelement"):
                return self.product(self.all(tensor))
            return self.of(tensor, 0) if name == "__len__" else result

    def product(self, sizes: Any) -> Any:
        """Return the product of some sizes."""
        total: Any = sizes[0] if sizes else 1
        for size in sizes[1:]:
            if isinstance(total, Traced) or isinstance(size, Traced):
                value = plain(total) * plain(size)
                total = self.recording.computed(value, operator.mul, symbol(total), symbol(size))
            else:
                total *= size
        return total


def holds_traced(value: Any) -> bool:
    """Whether this is a ``torch.Size`` of traced integers."""
    return type(value) is torch.Size and any(isinstance(part, Traced) for part in value)
