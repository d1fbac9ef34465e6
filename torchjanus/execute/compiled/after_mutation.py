"""Makes Inductor's scheduler run readers of a mutated buffer after the mutation.

Inductor runs ``bernoulli`` (and some scatters) in place: a node that reads the buffer afterwards depends on the
buffer's new name. When the C++ back end fuses nodes with different ranges, it extracts the reads of one node again, and
gets the old name (``SchedulerNode.recompute_size_and_body``, PyTorch 2.13). The node may then run before the mutation
and read uninitialised memory, as in a step with dropout between convolutions. The reads are not extracted again if the
node has other dependencies, so such nodes get one.
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
        """Return what represents the pass in the keys of Inductor's caches."""
        return "torchjanus keeps readers behind changes, 1"


def options(patches: dict[str, Any]) -> dict[str, Any]:
    """Return the options of standalone_compile: these settings of Inductor, and the pass, unless this PyTorch could not
    save an artifact made with a pass."""
    base = getattr(custom_graph_pass, "CustomSchedulerPass", None)
    if base is not None:
        patches = {**patches, "_pre_fusion_custom_pass": type("KeepBehind", (_KeepBehind, base), {})()}
    return {"config_patches": patches}
