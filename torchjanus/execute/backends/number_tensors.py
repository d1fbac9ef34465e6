"""Python's numbers as tensors of no dimensions: functions of numbers on them, such that the result is Python's.

Whole numbers are int64, and real ones float64, as far as that goes; what raises for some numbers is Unsupported.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchjanus.core.errors import Unsupported
from torchjanus.core.kinds import isinstance

__all__ = ["DTYPES", "computed", "element", "given_to_torch", "selected"]

DTYPES = {"int": torch.int64, "float": torch.float64, "bool": torch.bool}

_COMPARING = {operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge}
_ARITHMETIC: dict[Any, Callable[..., Any]] = {
    operator.add: torch.add, operator.sub: torch.sub, operator.mul: torch.mul, operator.neg: torch.neg,
    operator.pos: torch.clone, abs: torch.abs, min: lambda a, b: torch.where(b < a, b, a),
    max: lambda a, b: torch.where(b > a, b, a),
}  # fmt: skip
# Defined for numbers other than zero on the right only.
_DIVIDING: dict[Any, Callable[..., Any]] = {
    operator.truediv: torch.div, operator.floordiv: torch.floor_divide, operator.mod: torch.remainder,
}  # fmt: skip
_BITS: dict[Any, Callable[..., Any]] = {
    operator.and_: torch.bitwise_and, operator.or_: torch.bitwise_or, operator.xor: torch.bitwise_xor,
}  # fmt: skip
# Functions of torch, by name, that treat a tensor without dimensions, of the right dtype, as they treat a number.
_ELEMENTWISE = frozenset(
    """add sub mul div true_divide truediv pow eq ne lt le gt ge remainder mod floordiv floor_divide minimum maximum
    __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __pow__ __eq__ __ne__ __lt__ __le__
    __gt__ __ge__ where""".split()
)


def computed(function: Any, args: Sequence[Any], kind: str) -> Tensor:
    """Return the number of class ``kind`` that a function gives. Raises Unsupported."""
    if not all(isinstance(one, Tensor | int | float) for one in args):
        raise _unknown(function)
    made: Any = None
    if function in _COMPARING:
        made = function(*_like_numbers(args))
    elif function in _ARITHMETIC:
        made = _folded(_ARITHMETIC[function], _like_numbers(args, kind))
    elif function in _DIVIDING and not isinstance(args[1], Tensor) and args[1] != 0:
        made = _DIVIDING[function](*_like_numbers(args, "float" if function is operator.truediv else kind))
    elif function in _BITS:
        made = _BITS[function](*(_of(one, kind) for one in args))
    elif function is operator.not_:
        made = ~_of(args[0], "bool")
    elif function is operator.pow and not isinstance(args[1], Tensor) and type(args[1]) is int and args[1] >= 0:
        made = torch.pow(_of(args[0], kind), args[1])
    elif function in (bool, int, float) and len(args) == 1:
        if function is int and isinstance(args[0], Tensor) and args[0].is_floating_point():
            raise _unknown(function)  # raises for what is not finite
        made = _of(args[0], function.__name__)
    elif getattr(function, "__name__", "") == "_count" and not isinstance(args[2], Tensor):
        start, stop, step = args
        first, last = _like_numbers((start, stop), "int")
        length = last - first if step > 0 else first - last
        made = torch.clamp(torch.floor_divide(length + abs(step) - 1, abs(step)), min=0)
    if made is None:
        raise _unknown(function)
    return _of(made, kind)


def _folded(function: Any, args: Sequence[Tensor]) -> Tensor:
    if len(args) == 1:
        return function(args[0])  # type: ignore[no-any-return]
    made = args[0]
    for one in args[1:]:
        made = function(made, one)
    return made


def _unknown(function: Any) -> Unsupported:
    return Unsupported(f"an exported graph has no {getattr(function, '__name__', function)}() of numbers like these")


def _of(value: Any, kind: str) -> Tensor:
    if not isinstance(value, Tensor):
        return torch.full((), value, dtype=DTYPES[kind])
    return value != 0 if kind == "bool" and value.dtype is not torch.bool else value.to(DTYPES[kind])


def _like_numbers(args: Sequence[Any], kind: str = "int") -> list[Tensor]:
    """Numbers of one class, as Python makes them before it computes: of truths whole numbers, of both kinds reals."""
    real = kind == "float" or any(
        one.is_floating_point() if isinstance(one, Tensor) else type(one) is float for one in args
    )
    return [_of(one, "float" if real else "int") for one in args]


def given_to_torch(function: Any, number: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """Return a number as an operand of an operator on tensors: of a dtype for which the result is that of a Python
    number. Raises Unsupported."""
    if getattr(function, "__name__", "") not in _ELEMENTWISE:
        raise Unsupported(
            f"an exported graph has no {getattr(function, '__name__', function)}() of a number that is not known"
        )
    if number.is_floating_point():
        real = [one.dtype for one in tensors if one.is_floating_point() or one.is_complex()]
        return number.to(real[0] if real else torch.get_default_dtype())
    if number.dtype is torch.int64:
        whole = [one.dtype for one in tensors if one.dtype is not torch.bool]
        return number.to(whole[0]) if whole else number
    return number


def selected(function: Any, args: Sequence[Any], numbers: Sequence[int]) -> Tensor | None:
    """Return an element at an index that is not known; None for other operations."""
    if getattr(function, "__name__", "") != "select" or list(numbers) != [2] or len(args) != 3:
        return None
    return _at(*args)


def _at(tensor: Tensor, dim: int, index: Tensor) -> Tensor:
    at = torch.where(index < 0, index + tensor.shape[dim], index)
    return torch.index_select(tensor, dim, at.reshape(1)).squeeze(dim)


def element(tensor: Tensor, index: tuple[Any, ...], numbers: Sequence[int]) -> Tensor:
    """Return ``tensor[index]`` where the parts of the index at ``numbers`` are not known. Raises Unsupported."""
    known = tuple(slice(None) if number in numbers else part for number, part in enumerate(index))
    if any(isinstance(part, Tensor) or not isinstance(part, int | slice | None | type(...)) for part in known):
        raise Unsupported("an exported graph has no element at numbers that are not known and at tensors")
    made = tensor[known]
    taken = sum(part is not None and part is not ... for part in known)
    dims: list[int] = []
    dim = 0
    for number, part in enumerate(known):
        if number in numbers:
            dims.append(dim)
        if part is ...:
            dim += tensor.ndim - taken
        elif part is None or isinstance(part, slice):
            dim += 1
    for number, dim in reversed(list(zip(numbers, dims, strict=True))):
        made = _at(made, dim, index[number])
    return made
