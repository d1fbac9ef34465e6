"""Copies tensors, and measures how far two of them differ. It works piecewise, so it needs hardly any memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

__all__ = ["ONE", "Size", "distance", "duplicate", "nudge", "same_bits", "size_of"]

PIECE = 1 << 16  # elements: intermediates of so many stay in the cache
LARGEST_ELEMENT = 10.0  # how much more the largest element may differ than the norm

# What float32 can square, with room for sums: numbers beyond it are compared in float64.
_SQUARES = (1e-15, 1e15)


@dataclass(frozen=True, slots=True)
class Size:
    """The norm and the largest element of a tensor, or of its change. Only finite elements count."""

    norm: float
    largest: float


ONE = Size(1.0, 1.0)  # makes a relative measure absolute


def duplicate(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same geometry and requires_grad, on memory of its own."""
    source = tensor.detach()
    made = torch.empty_strided(source.size(), source.stride(), dtype=source.dtype, device=source.device)
    if _is_expanded(source):
        for axis, stride in enumerate(source.stride()):  # write each element once
            if stride == 0:
                source = source.narrow(axis, 0, min(1, source.size(axis)))
        made.as_strided(source.size(), made.stride()).copy_(source)
    else:
        made.copy_(source)
    return made.requires_grad_(tensor.requires_grad)


def nudge(tensor: torch.Tensor, units: int, seed: int) -> torch.Tensor:
    """Return a copy with every element changed by up to ``units`` units in the last place. Zeros and integers stay."""
    moved = duplicate(tensor)
    if not moved.dtype.is_floating_point or _is_expanded(moved):
        return moved
    draw = torch.Generator(device=moved.device).manual_seed(seed)
    wide = _wide(moved.dtype)
    # One row of noise with another offset for each piece: noise for every element would take longer than a step.
    noise = torch.rand(2 * PIECE, generator=draw, device=moved.device, dtype=wide).sub_(0.5)
    factors = noise.mul_(2 * units * torch.finfo(moved.dtype).eps).add_(1)
    with torch.no_grad():
        for number, (piece,) in enumerate(_pieces(moved)):
            begin = number * 7919 % PIECE
            piece.copy_(piece.to(wide) * factors[begin : begin + piece.numel()].view(piece.shape))
    return moved


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the contents are equal bitwise. All NaN are equal, whatever their payload; zeros of different sign are
    not."""
    one, other = one.detach(), other.detach()
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.is_complex:
        one, other = torch.view_as_real(one.resolve_conj()), torch.view_as_real(other.resolve_conj())
    if one.dtype.itemsize == 1:  # torch has no signbit of eight-bit floats
        one, other = one.view(torch.uint8), other.view(torch.uint8)
    if not one.dtype.is_floating_point:
        return torch.equal(one, other)
    for mine, theirs in _pieces(one, other):
        same = (mine == theirs) & (mine.signbit() == theirs.signbit()) | mine.isnan() & theirs.isnan()
        if not same.all():
            return False
    return True


def size_of(tensor: torch.Tensor, old: torch.Tensor | None = None) -> Size:
    """Return the size of a tensor, or of its change from ``old``."""
    size = _size(tensor, old, _wide(tensor.dtype))
    if _is_exact(size.norm):
        return size
    return _size(tensor, old, torch.complex128 if tensor.dtype.is_complex else torch.float64)


def _size(tensor: torch.Tensor, old: torch.Tensor | None, wide: torch.dtype) -> Size:
    squares, largest = 0.0, 0.0
    for new, *before in _pieces(tensor.detach(), *(() if old is None else (old.detach(),))):
        change = new.to(wide)
        for one in before:
            change = change - one.to(wide)
        most = float(change.abs().max())
        if not math.isfinite(most):
            change = torch.where(change.isfinite(), change, 0)
            most = float(change.abs().max())
        squares += float(torch.linalg.vector_norm(change)) ** 2
        largest = max(largest, most)
    return Size(math.sqrt(squares), largest)


def distance(
    expected: torch.Tensor,
    met: torch.Tensor,
    size: Size,
    olds: tuple[torch.Tensor, torch.Tensor] | None = None,
    update: bool = False,
) -> float:
    """Return how far ``met`` is off, relative to ``size``; infinite where it is not finite and ``expected`` is, or
    conversely.

    ``update``: allow for the rounding of storing it. ``olds``: the old contents of each, if these differ.
    """
    wide = _wide(expected.dtype)
    off = _off(expected, met, olds, update, wide)
    if off is not None and (off.largest > 0) and not (_is_exact(off.norm) and _is_exact(size.norm)):
        wide = torch.complex128 if expected.dtype.is_complex else torch.float64
        off = _off(expected, met, olds, update, wide)
    if off is None:
        return float("inf")
    if not off.largest:
        return 0.0
    if not size.largest:
        return float("inf")
    most = off.largest / size.largest / LARGEST_ELEMENT
    return max(off.norm / size.norm, most) if size.norm else most  # even float64 cannot square the smallest numbers


def _off(
    expected: torch.Tensor,
    met: torch.Tensor,
    olds: tuple[torch.Tensor, torch.Tensor] | None,
    update: bool,
    wide: torch.dtype,
) -> Size | None:
    """Return the size of the difference; None where one is finite and the other is not, or where non-finite elements
    differ."""
    squares, largest = 0.0, 0.0
    parts = (expected, met) if olds is None else (expected, met, *olds)
    for one, other, *before in _pieces(*(part.detach() for part in parts)):
        wanted, got = one.to(wide), other.to(wide)
        difference = got - wanted
        if before:
            difference = difference - (before[1].to(wide) - before[0].to(wide))
        difference = difference.abs()
        if not math.isfinite(float(difference.max())):
            finite = wanted.isfinite()
            if not same_bits(torch.where(finite, 0, wanted), torch.where(finite, 0, got)):
                return None
            difference = torch.where(finite, difference, 0)
            if not math.isfinite(float(difference.max())):
                return None
            wanted = torch.where(finite, wanted, 0)
        if update:
            difference = (difference - 2 * torch.finfo(expected.dtype).eps * wanted.abs()).clamp_(min=0)
        most = float(difference.max())
        if most:
            squares += float(torch.linalg.vector_norm(difference)) ** 2
            largest = max(largest, most)
    return Size(math.sqrt(squares), largest)


def _is_exact(norm: float) -> bool:
    return _SQUARES[0] < norm < _SQUARES[1]


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which differences of such numbers are computed."""
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype == torch.float64 else torch.float32


def _is_expanded(tensor: torch.Tensor) -> bool:
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.size(), tensor.stride(), strict=True))


def _pieces(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield views of the same parts of tensors of one shape."""
    first = tensors[0]
    if not first.numel():
        return
    if first.numel() <= PIECE:
        yield tensors
        return
    axis = next(number for number, size in enumerate(first.shape) if size > 1)
    rows = max(1, PIECE // (first.numel() // first.size(axis)))
    for parts in zip(*(tensor.split(rows, axis) for tensor in tensors), strict=True):
        yield from _pieces(*parts)
