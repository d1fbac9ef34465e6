"""Tensors of unknown value: fake tensors of torch, of which sizes may be symbols. Knows nothing of graphs."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils import _pytree as pytree

from torchjanus.core.errors import refused
from torchjanus.core.kinds import isinstance
from torchjanus.core.lazy import deferred
from torchjanus.semantics.staged.unknown.sampling import sampled
from torchjanus.semantics.staged.unknown.values import StagedNumber, TensorSpec
from torchjanus.tracegraph.graph import TensorType

__all__ = ["SYMBOLS", "Fakes", "at_any", "fits", "is_fake", "quiet", "size_text", "tensor_type"]

symbolic_shapes = deferred("torch.fx.experimental.symbolic_shapes")

SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


P = ParamSpec("P")
R = TypeVar("R")


def quiet(function: Callable[P, R]) -> Callable[P, R]:
    """Let what the function asks torch be no operation of the program."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch._C.DisableTorchFunction():
            return function(*args, **kwargs)

    return run


def is_fake(value: Any) -> bool:
    """Whether it is a tensor of unknown value."""
    return isinstance(value, FakeTensor)


def size_text(size: Any) -> int | str:
    """Return a size as a graph has it: a number, or what is known of it."""
    if isinstance(size, int):
        return size
    text = str(size.node.expr).replace(" ", "")
    return text if text.replace("*", "").replace("+", "").replace("-", "").isalnum() else "?"


def tensor_type(tensor: torch.Tensor) -> TensorType:
    """Return the type of a fake tensor."""
    strided = tensor.layout is torch.strided
    return TensorType(
        str(tensor.dtype).removeprefix("torch."),
        tuple(map(size_text, tensor.shape)),
        tuple(map(size_text, tensor.stride())) if strided else (),
        str(tensor.device),
        tensor.requires_grad,
    )


class Fakes:
    """The fake tensors of one staging, and the symbols for numbers."""

    def __init__(self) -> None:
        self.shapes = symbolic_shapes.ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.shapes)
        self.sizes: dict[str, Any] = {}  # by the names that specifications give them
        self.real: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by id: a tensor and its fake
        self.free: set[Any] = set()  # symbols of sizes that stand for any size: those of values that differ in it

    @quiet
    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the fake of a real tensor."""
        known = self.real.get(id(tensor))
        if known is None:
            known = self.real[id(tensor)] = tensor, self.mode.from_tensor(tensor, static_shapes=True)
        return known[1]

    @quiet
    def like(self, spec: TensorSpec) -> torch.Tensor:
        """Return a new fake tensor of this type; sizes with one name are one symbol."""
        with self.mode, torch.enable_grad():
            sizes = [self.size(one) for one in spec.sizes]
            made = torch.empty(sizes, dtype=spec.dtype, device=spec.device)
            return made.requires_grad_(spec.requires_grad)

    def size(self, one: int | str | None) -> Any:
        if isinstance(one, int):
            return one
        if one is None:
            return self._new_size()
        if one not in self.sizes:
            self.sizes[one] = self._new_size()
        return self.sizes[one]

    def _new_size(self) -> Any:
        size = self.shapes.create_unbacked_symint()
        torch._check(size >= 0)
        return size

    @quiet
    def number(self, kind: str) -> Any:
        """Return a new symbol for a number that is not known. ``kind``: "int", "bool", else a float."""
        match kind:
            case "int":
                return self.shapes.create_unbacked_symint()
            case "bool":
                return self.shapes.create_unbacked_symbool()
        return self.shapes.create_unbacked_symfloat()

    @quiet
    def are_one(self, one: StagedNumber, other: StagedNumber) -> bool:
        """Whether two whole numbers are one, whatever it is: the same size of tensors."""
        sizes = one.symbol, other.symbol
        if not all(isinstance(size, torch.SymInt) for size in sizes):
            return False
        return bool(symbolic_shapes.statically_known_true(sizes[0] == sizes[1]))

    @quiet
    def joined(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor | None:
        """Return a new fake for what is either tensor; None if there is none."""
        alike = (one.dtype, one.device, one.ndim, one.layout) == (other.dtype, other.device, other.ndim, other.layout)
        if not alike or one.layout is not torch.strided:
            return None
        sizes = [a if self.same_size(a, b) else self._free_size() for a, b in zip(one.shape, other.shape, strict=True)]
        kept = all(
            self.same_size(a, b) for a, b in zip((*sizes, *one.stride()), (*one.shape, *other.stride()), strict=True)
        )
        with self.mode, torch.enable_grad():
            if kept:
                made = torch.empty_strided(sizes, one.stride(), dtype=one.dtype, device=one.device)
            else:
                made = torch.empty(sizes, dtype=one.dtype, device=one.device)
            return made.requires_grad_(one.requires_grad or other.requires_grad)

    def _free_size(self) -> Any:
        size = self._new_size()
        self.free.add(size.node.expr)
        return size

    def _is_free(self, size: Any) -> bool:
        return not isinstance(size, int) and size.node.expr in self.free

    @quiet
    def renewed(self, one: torch.Tensor) -> torch.Tensor:
        """Return a new fake like this one: where it may have any size, the new one may have another."""
        if not any(map(self._is_free, one.shape)):
            made = self.joined(one, one)
            assert made is not None
            return made
        sizes = [self._free_size() if self._is_free(size) else size for size in one.shape]
        with self.mode, torch.enable_grad():
            return torch.empty(sizes, dtype=one.dtype, device=one.device).requires_grad_(one.requires_grad)

    @quiet
    def takes(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Whether every tensor like the second is like the first. Free sizes of the first match any size."""
        if not any(map(self._is_free, one.shape)):
            return self.same(one, other)
        kinds = (one.dtype, one.device, one.ndim, one.layout, one.requires_grad)
        if kinds != (other.dtype, other.device, other.ndim, other.layout, other.requires_grad):
            return False
        return all(self._is_free(a) or self.same_size(a, b) for a, b in zip(one.shape, other.shape, strict=True))

    @quiet
    def varying(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Return a new fake for results of which the sizes are not known where these two differ."""
        made = self.joined(one, other)
        assert made is not None
        return made

    @quiet
    def same(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Whether the two have one type."""
        if (one.dtype, one.device, one.ndim, one.layout) != (other.dtype, other.device, other.ndim, other.layout):
            return False
        if one.requires_grad is not other.requires_grad:
            return False
        pairs = zip((*one.shape, *one.stride()), (*other.shape, *other.stride()), strict=True)
        return all(self.same_size(a, b) for a, b in pairs)

    @staticmethod
    def same_size(one: Any, other: Any) -> bool:
        if isinstance(one, int) and isinstance(other, int):
            return one == other
        return not isinstance(one, int) and not isinstance(other, int) and one.node.expr == other.node.expr

    @quiet
    def call(
        self, function: Callable[..., Any], args: Any, kwargs: Any, what: str, place: Any
    ) -> tuple[Any, list[torch.Tensor]]:
        """Call torch with fakes. Return what it gives, and which tensors it has written."""
        seen = [one for one in pytree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        before = [one._version for one in seen]
        with self.asked(what, place):
            try:
                with self.mode:
                    out = function(*args, **kwargs)
            except symbolic_shapes.GuardOnDataDependentSymNode:  # torch chooses a kernel by sizes, or checks them
                found = sampled(function, args, kwargs, self._new_size)
                if found is None:
                    raise
                made = [self._sized(one, sizes) for one, sizes in zip(found.tensors, found.sizes, strict=True)]
                return pytree.tree_unflatten(made, found.spec), [seen[number] for number in found.written]
        return out, [one for one, version in zip(seen, before, strict=True) if one._version != version]

    def _sized(self, like: torch.Tensor, sizes: list[Any]) -> torch.Tensor:
        with self.mode, torch.enable_grad():
            return torch.empty(sizes, dtype=like.dtype, device=like.device).requires_grad_(like.requires_grad)

    @contextmanager
    def asked(self, what: str, place: Any) -> Iterator[None]:
        """Refuse where torch would have to know a value."""
        log = logging.getLogger("torch._subclasses.fake_tensor")  # it logs what is raised
        was, log.disabled = log.disabled, True
        try:
            yield
        except _unknown() as error:
            raise refused(
                "staged-shape", f"{what} of staged values",
                f"Its result depends on values that are not known when a function is staged ({type(error).__name__}).",
                "Give the sizes it depends on as numbers, or compute it outside of the staged function.", place,
            ) from error  # fmt: skip
        except (TypeError, IndexError, RuntimeError) as error:
            if "Sym" not in str(error):
                raise
            raise refused(
                "staged-shape", f"{what} of staged numbers", "Torch takes no number there that is not known.",
                "Give it as a number.", place,
            ) from error  # fmt: skip
        finally:
            log.disabled = was


_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8)


def at_any(index: Any) -> Any:
    """Return an index of a tensor for which the result is like that for this one: torch takes no number there that is
    not known, and which number it is decides on no size. A tensor of one whole number and no dimensions is a number to
    torch, too."""
    if isinstance(index, tuple | list):
        return type(index)(map(at_any, index))
    if isinstance(index, torch.Tensor) and not index.ndim and index.dtype in _WHOLE:
        return 0
    return 0 if isinstance(index, torch.SymInt) else index


def fits(symbol: Any, kind: str) -> bool:
    """Whether this is a symbol of torch for a number of that kind."""
    wanted = {"int": torch.SymInt, "float": torch.SymFloat, "bool": torch.SymBool}.get(kind)
    return wanted is not None and isinstance(symbol, wanted)


def _unknown() -> tuple[type[Exception], ...]:
    """Return what torch raises where sizes of a result are not known."""
    return (
        DataDependentOutputException,
        DynamicOutputShapeException,
        UnsupportedOperatorException,
        symbolic_shapes.GuardOnDataDependentSymNode,
    )
