"""Replays the matched prefix of a co-executed call that diverges: torch makes these calls for real, recorded by
autograd, and the placeholders that Python holds become their results.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, MutableSequence
from typing import Any

import torch

from torchjanus.core.trees import map_leaves
from torchjanus.graph.ir.program import Ref
from torchjanus.graph.tracing.ambient import Ambient
from torchjanus.runtime.coexecution.recording.arrays import copied, same_bits
from torchjanus.runtime.coexecution.recording.events import Event, Kind
from torchjanus.runtime.coexecution.recording.placeholders import Placeholder, fill

__all__ = ["replay", "tensors_in"]


def replay(
    events: Iterable[Event],
    values: MutableSequence[Any],
    private: MutableMapping[int, torch.Tensor],
    ambient: Ambient,
) -> None:
    """Make the calls of matched events. ``values``: the tensors by number; ``private``: the earlier contents of inputs
    that share memory with arrays, as they were when the call met them; ``ambient``: puts modes in force."""
    now = {n: copied(values[n]) for n in private}
    try:
        for event in events:
            for n in event.inputs:
                if n in private:
                    _write(values[n], private[n])
            _make(event, values, ambient)
    finally:
        with torch.no_grad():
            for n, contents in now.items():
                _write(values[n], contents)


def _make(event: Event, values: MutableSequence[Any], ambient: Ambient) -> None:
    def real(leaf: Any) -> Any:
        return values[leaf.index] if type(leaf) is Ref else leaf

    if event.kind is Kind.OPERATOR or (event.kind is Kind.HOST and event.draws):
        ambient.switch(event.modes)
        result = event.func(*map_leaves(event.args, real), **map_leaves(event.kwargs, real))
        if event.kind is Kind.OPERATOR:
            for ref, tensor in zip(event.outs, tensors_in(result), strict=True):
                held = values[ref.index]
                if type(held) is Placeholder:
                    fill(held, tensor)
                elif held is None:  # within a composite event: Python has not seen it
                    values[ref.index] = tensor


def _write(tensor: torch.Tensor, contents: torch.Tensor) -> None:
    if not same_bits(tensor, contents):
        tensor.data.copy_(contents)


def tensors_in(result: Any) -> list[torch.Tensor]:
    """Return the tensors in a tree, in order."""
    found: list[torch.Tensor] = []
    map_leaves(result, lambda leaf: found.append(leaf) if isinstance(leaf, torch.Tensor) else None)
    return found
