"""Keeps readers of a changed buffer behind the change, in Inductor's scheduler.

Inductor draws ``bernoulli`` (and does some scatters) in place: a node that reads the buffer afterwards depends on the
buffer's new name. Where the C++ back end fuses nodes whose ranges differ, it extracts the reads of one anew, and takes
the old name again, unless the node has dependencies beside those that it extracts
(``SchedulerNode.recompute_size_and_body``, PyTorch 2.13): the node may then be put before the change, and reads what
was never written. A step with dropout between convolutions ran into that. So such nodes get one dependency more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch._inductor import custom_graph_pass
from torch._inductor.dependencies import StarDep

if TYPE_CHECKING:
    from torch._inductor.scheduler import BaseSchedulerNode

__all__ = ["options"]


class _KeepBehind:
    """A pass over Inductor's nodes, before it fuses any."""

    def __call__(self, nodes: list[BaseSchedulerNode]) -> list[BaseSchedulerNode]:
        changers = {
            output.get_name()
            for node in nodes
            if node.is_extern()
            for output in node.get_outputs()
            if output.get_mutations()
        }
        for node in nodes:
            if node.is_extern():
                continue
            for name in sorted(changers & {dependency.name for dependency in node.read_writes.reads}):
                node.add_fake_dep(StarDep(name))
        return nodes

    def uuid(self) -> str:
        """What stands for the pass in the keys of Inductor's caches."""
        return "torchjanus keeps readers behind changes, 1"


def options(patches: dict[str, Any]) -> dict[str, Any]:
    """What standalone_compile is told: these settings of Inductor, and that it keeps the order; that is left out where
    this PyTorch could not save what was made with a pass."""
    base = getattr(custom_graph_pass, "CustomSchedulerPass", None)
    if base is not None:
        patches = {**patches, "_pre_fusion_custom_pass": type("KeepBehind", (_KeepBehind, base), {})()}
    return {"config_patches": patches}
