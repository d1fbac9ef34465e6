"""The fused kernels of optimizers (``fused=True``) as operators that return the new contents, and as such in place.

Most of torch's own have no fake implementation, and none can be made functional. The kernels are the same, so their
results are bitwise eager's. The operators take what they write as one list, the gradients as the second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchjanus.graph.operators.loop_op import TAGS, define

__all__ = ["FUSED_UPDATES"]

# By name, which of its lists of tensors a kernel writes. Those of the gradients are written only where they are scaled,
# and such calls are refused.
_WRITTEN = {"adagrad": (0, 2), "adam": (0, 2, 3, 4), "adamw": (0, 2, 3, 4), "sgd": (0, 2)}
_OF_SCALERS = ("grad_scale", "found_inf")


def _update(name: str, writes: Sequence[int]) -> Callable[..., None]:
    """Define both operators of a kernel; return the replacement for torch's function."""
    kernel = getattr(torch.ops.aten, f"_fused_{name}_").default
    arguments = [one for one in kernel._schema.arguments if one.name not in _OF_SCALERS]
    lists = [one.name for one in arguments if not one.kwarg_only]
    reads = [at for at in range(len(lists)) if at not in writes]
    more = [f"Tensor[] {lists[at]}" for at in reads] + ["*"]
    more += [f"{one.type} {one.name}" for one in arguments if one.kwarg_only]

    def in_place(written: Sequence[torch.Tensor], /, *given: Sequence[torch.Tensor], **numbers: Any) -> None:
        count = len(given[0])  # lists that an optimizer does not use are empty, and stand at the end
        own = {at: written[count * place : count * (place + 1)] for place, at in enumerate(writes)}
        own |= dict(zip(reads, given, strict=True))
        kernel(*(own[at] for at in range(len(lists))), **numbers)

    def out_of_place(written: Sequence[torch.Tensor], /, *given: Sequence[torch.Tensor], **numbers: Any) -> Any:
        made = [part.clone() for part in written]
        in_place(made, *given, **numbers)
        return made

    def shapes(written: Sequence[torch.Tensor], /, *given: Sequence[torch.Tensor], **numbers: Any) -> Any:
        return [torch.empty_like(part) for part in written]

    schema = ", ".join(more)
    define(f"fused_{name}_", f"(Tensor(a!)[] written, {schema}) -> ()", in_place, lambda *_, **__: None, TAGS)
    operator = define(f"fused_{name}", f"(Tensor[] written, {schema}) -> Tensor[]", out_of_place, shapes, TAGS)

    def update(*given: Sequence[torch.Tensor], **named: Any) -> None:
        numbers = {key: value for key, value in named.items() if key not in _OF_SCALERS}
        written = [part for at in writes for part in given[at]]
        with torch.no_grad():
            made = operator(written, *(given[at] for at in reads), **numbers)
            for old, new in zip(written, made, strict=True):
                old.copy_(new)

    return update


# Torch's function -> its replacement in a graph.
FUSED_UPDATES: dict[Any, Callable[..., None]] = {
    getattr(torch, f"_fused_{name}_"): _update(name, writes) for name, writes in _WRITTEN.items()
}
