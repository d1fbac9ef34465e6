"""The work that is captured: a whole step as calls of ATen, or as an artifact of Inductor. Host numbers are data.

Decides which graphs cannot be captured. Knows no device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchjanus.core.errors import Refused, refused
from torchjanus.execute.compiled.inductor import Inductor, packer
from torchjanus.execute.regions.loop import loops_of
from torchjanus.execute.regions.switch import switches_of
from torchjanus.execute.replay import Replay
from torchjanus.execute.running.base import Executable, Numbers
from torchjanus.execute.running.gate import below_autograd
from torchjanus.execute.running.printing import ReplaySource
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.graph.lowering.for_inductor import prepare
from torchjanus.graph.operators.loop_op import is_loop
from torchjanus.ops.aten import operator_of

__all__ = ["Body", "aten_body", "inductor_body"]

# What reads its tensors on the host, beyond what tags say.
_READS = frozenset({"_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "bincount", "histc"})
_OWN = frozenset({"kept_cross_entropy"})  # operators of torchjanus that are calls of ATen only


@dataclass(frozen=True, slots=True)
class Body:
    """``call(*inputs, *pack(slots), *constants)`` returns the fresh values, without the ``copies`` of others (see
    Prepared), and the flags; it updates the inputs, where all flags hold. ``otherwise`` runs what is not captured."""

    name: str
    call: Callable[..., Sequence[torch.Tensor]]
    pack: Callable[[Numbers], list[torch.Tensor]]
    constants: tuple[torch.Tensor, ...]
    copies: tuple[tuple[int, int], ...]
    place: torch.device  # of the packed numbers that ``call`` takes
    otherwise: Executable


def aten_body(lowered: Lowered) -> Body:
    """Return the step as calls of ATen. Raises Refused where it cannot be captured."""
    _check(lowered)
    prepared = prepare(lowered, compiled=False)
    count = sum(node.op == "placeholder" for node in prepared.graph.graph.nodes)
    source = ReplaySource(prepared.graph, count)
    compute = source.compute(source.generate())

    def call(*given: torch.Tensor) -> list[torch.Tensor]:
        with below_autograd():
            return compute(given, ())  # type: ignore[no-any-return]

    pack = packer(replace(prepared, device=torch.device("cpu")))
    otherwise = Replay.of(lowered)
    return Body("cudagraph", call, pack, prepared.constants, prepared.copies, prepared.device, otherwise)


def inductor_body(artifact: Inductor) -> Body:
    """Return the step as an artifact. Raises Refused where it cannot be captured."""
    _check(artifact.lowered)
    if artifact.asks:
        raise _refused("the host looks at indices before the artifact runs")
    taken = artifact.call, artifact.pack, artifact.constants, artifact.copies, artifact.place
    return Body("inductor and cudagraph", *taken, artifact)


def _check(lowered: Lowered) -> None:
    """Raise Refused where the graph, or the body of a loop in it, has an operation that cannot be captured."""
    if any(True for _ in switches_of(lowered.program)):
        raise _refused("a tensor decides between arms on the host")
    for node in _nodes(lowered):
        if why := _why_not(node):
            raise _refused(f"{node.target} {why}")


def _nodes(lowered: Lowered) -> Iterator[torch.fx.Node]:
    yield from lowered.graph.graph.nodes
    for partition in loops_of(lowered.program):
        for direction in (partition.forward, partition.backward):
            if direction is not None:
                yield from direction.graph.graph.nodes


def _why_not(node: torch.fx.Node) -> str:
    """Return why an operation cannot be captured; "" if it can."""
    target: Any = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return ""
    known, tags = operator_of(target), target.tags
    unsafe = getattr(torch.Tag, "cudagraph_unsafe", None)
    if target.namespace == "torchjanus" and not is_loop(target) and target._opname not in _OWN:
        return "is decided on the host"
    if torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags or known.name in _READS:
        return "waits for the device"
    if unsafe in tags or known.gives_nothing:
        return "looks at its tensors on the host"
    if known.name in ("index", "index_put") and any(_is_mask(part) for part in pytree.tree_leaves(node.args[1])):
        return "counts the elements of a mask on the host"
    return ""


def _is_mask(part: Any) -> bool:
    value = part.meta.get("val") if isinstance(part, torch.fx.Node) else None
    return isinstance(value, torch.Tensor) and value.dtype in (torch.bool, torch.uint8)


def _refused(why: str) -> Refused:
    what = f"the step cannot be captured: {why}"
    return refused("graph-not-captured", what, "A CUDA graph runs without the host.", "Replay is used.")
