"""Finds the least sizes for which a graph is valid that was traced without guards on sizes 0 and 1.

For sizes 0 and 1 torch behaves differently in places: ``squeeze`` drops a dimension, ``reshape`` returns a view. So the
program is traced again with each of these sizes 1, and with each 0. Results must have the sizes that the graph assumes,
and share memory as they do there.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any

import torch

from torchjanus.core.errors import JanusError
from torchjanus.graph.aten.symbolic_sizes import Symbolic
from torchjanus.graph.ir.program import Program
from torchjanus.graph.tracing.node_tracing import is_own
from torchjanus.graph.tracing.trace_program import Traced, made_at
from torchjanus.trace.values import Apply, Expr

__all__ = ["conditions_of_few"]

_DIVIDING = (operator.floordiv, operator.mod, operator.truediv)


def conditions_of_few(
    program: Program, numbers: Sequence[float | int], held: Container[int], traced: Traced, others: Iterable[Any]
) -> Iterator[Expr]:
    """Yield the conditions on sizes that may be 0 or 1. ``others``: other expressions of sizes on the host."""
    few = traced.symbolic.few
    least = 2 if few else 0
    traced_apart = any(is_own(node.func) for node in program.nodes)
    while least and not traced_apart and _alike(program, numbers, held, traced, least - 1):
        least -= 1
    if few and not least and any(map(_divides, others)):
        least = 1
    for number in few if least else ():
        yield Apply(operator.ge, (program.dimensions[number].expr, least))


def _alike(program: Program, numbers: Sequence[float | int], held: Container[int], traced: Traced, size: int) -> bool:
    """Whether the program does the same where these sizes are ``size``."""
    sizes = [size if dimension.few else dimension.hint for dimension in program.dimensions]
    try:
        made = made_at(program, numbers, held, sizes)
    except (JanusError, RuntimeError):  # it fails, or cannot be traced
        return False
    if not all(_is_number(traced.symbolic, node.meta.get("val"), sizes) for node in traced.graph.graph.nodes):
        return False
    found = [tuple(one.size()) for one in made]
    try:
        wanted = [tuple(int(traced.symbolic.at(part, sizes)) for part in one.size()) for one in traced.made]
    except TypeError:  # a size that does not follow from the inputs' sizes
        return False
    return found == wanted and _shared(made) == _shared(traced.made)


def _is_number(symbolic: Symbolic, value: Any, sizes: Sequence[int]) -> bool:
    """Whether a number that the graph computes of sizes is finite for these sizes: it may divide by them."""
    if not isinstance(value, torch.SymInt | torch.SymFloat):
        return True
    try:
        return bool(symbolic.at(value, sizes).is_finite)
    except ArithmeticError:
        return False


def _shared(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Return, for each tensor, the number of the first one in the same memory."""
    known: dict[int, int] = {}
    memories = (int(_bare(tensor).untyped_storage()._cdata) for tensor in tensors)
    return [known.setdefault(memory, number) for number, memory in enumerate(memories)]


def _bare(tensor: torch.Tensor) -> torch.Tensor:
    """Return the innermost tensor within wrappers of torch.func, which have no memory of their own."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def _divides(value: Any) -> bool:
    """Whether an expression contains a division, possibly by 0."""
    return isinstance(value, Apply) and (value.func in _DIVIDING or any(map(_divides, value.args)))
