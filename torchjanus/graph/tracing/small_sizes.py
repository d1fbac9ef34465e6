"""From which size on a graph is right that was traced without asking whether some sizes are 0 or 1.

Where such a size is 0 or 1, torch does other things here and there: ``squeeze`` drops a dimension, ``reshape`` gives a
view. So the program is traced once more with each of these sizes 1, and with each 0: what its operations give must have
the sizes that the graph takes it to have, and share memory as it does there. Knows nothing of what is done about it.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any

import torch

from torchjanus.core.errors import JanusError
from torchjanus.graph.aten.symbolic_sizes import Symbolic
from torchjanus.graph.ir.program import Program
from torchjanus.graph.tracing.trace_program import Traced, is_own, made_at
from torchjanus.trace.values import Apply, Expr

__all__ = ["conditions_of_few"]

_DIVIDING = (operator.floordiv, operator.mod, operator.truediv)


def conditions_of_few(
    program: Program, numbers: Sequence[float | int], held: Container[int], traced: Traced, others: Iterable[Any]
) -> Iterator[Expr]:
    """What must hold of the sizes that may be 0 or 1. ``others``: what else the host computes of sizes."""
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
    """Whether the program does the same where those sizes are this."""
    sizes = [size if dimension.few else dimension.hint for dimension in program.dimensions]
    try:
        made = made_at(program, numbers, held, sizes)
    except (JanusError, RuntimeError):  # it cannot be done, or not be traced
        return False
    if not all(_is_number(traced.symbolic, node.meta.get("val"), sizes) for node in traced.graph.graph.nodes):
        return False
    found = [tuple(one.size()) for one in made]
    try:
        wanted = [tuple(int(traced.symbolic.at(part, sizes)) for part in one.size()) for one in traced.made]
    except TypeError:  # a size that does not follow from those of inputs
        return False
    return found == wanted and _shared(made) == _shared(traced.made)


def _is_number(symbolic: Symbolic, value: Any, sizes: Sequence[int]) -> bool:
    """Whether a number that the graph computes of sizes is one where they are these: it may divide by them."""
    if not isinstance(value, torch.SymInt | torch.SymFloat):
        return True
    try:
        return bool(symbolic.at(value, sizes).is_finite)
    except ArithmeticError:
        return False


def _shared(tensors: Iterable[torch.Tensor]) -> list[int]:
    """For each tensor the first one that lies in the same memory."""
    known: dict[int, int] = {}
    memories = (int(_bare(tensor).untyped_storage()._cdata) for tensor in tensors)
    return [known.setdefault(memory, number) for number, memory in enumerate(memories)]


def _bare(tensor: torch.Tensor) -> torch.Tensor:
    """What is inside of a tensor that a transform of torch.func has wrapped, which has no memory of its own."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def _divides(value: Any) -> bool:
    """Whether it is a quotient, which might be one by 0."""
    return isinstance(value, Apply) and (value.func in _DIVIDING or any(map(_divides, value.args)))
