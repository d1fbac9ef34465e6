"""What is compiled where several processes train together: also parts of a graph before its last cut, by one process
for all.

There a graph is cut at each collective, and most of its work comes before the last. Does not know how graphs are run.
"""

from __future__ import annotations

import torch

from torchjanus.execute.compiled.inductor import Inductor
from torchjanus.execute.cuda_graph.device import device_of
from torchjanus.execute.processes.background import submit
from torchjanus.execute.processes.orders import order_of
from torchjanus.graph.aten.middle_segments import Middle, middles_of, private_nodes
from torchjanus.graph.aten.segments import Tail
from torchjanus.graph.ir.lowered import Lowered

__all__ = ["compiled_once", "is_one_of_several", "middles_to_compile", "which_are_compiled"]


def is_one_of_several() -> bool:
    """Whether this process has a process group with others."""
    known = torch.distributed.is_available() and torch.distributed.is_initialized()
    return known and torch.distributed.get_world_size() > 1


def middles_to_compile(lowered: Lowered, tail: Tail, executor: str) -> list[Middle]:
    """Return what is compiled before the last cut: with "auto" what only sums over all processes depend on, so that
    ranks may choose for themselves; with "inductor" all of it."""
    if executor not in ("auto", "inductor") or lowered.saves is not None or device_of(lowered.graph.graph) is not None:
        return []
    return middles_of(lowered, tail, private_nodes(lowered) if executor == "auto" else None)


def compiled_once(lowered: Lowered) -> Inductor:
    """Compile in this call; or load what another rank has compiled. Raises Refused where Inductor cannot take it."""
    if not is_one_of_several():
        return Inductor(lowered)
    ticket = submit(order_of(lowered).start_once)
    ticket.wait()
    if ticket.failure is not None:
        raise ticket.failure
    made: Inductor = ticket.candidate
    return made


def which_are_compiled(parts: int, middles: int, executor: str) -> str:
    """Return a sentence for the report: which of the ``parts`` of a graph are compiled. ``middles``: how many of those
    before its last cut."""
    last = executor != "replay"
    which = f"{middles} before the last one" if middles else ""
    which += f"{' and ' if which else 'only '}the last one" if last else ""
    said = f"{which} {'are' if middles + last > 1 else 'is'} compiled" if which else "none is compiled"
    return f"runs in {parts} parts, with extern calls in between: {said}"
