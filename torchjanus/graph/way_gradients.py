"""To which tensors gradients flow from what one watched call returns, and from which of its own calls they are kept.

Knows nothing of cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchjanus.graph.program import Node, Ref
from torchjanus.graph.way_nodes import CUTTING, is_call, refs_of
from torchjanus.graph.way_truths import DECIDED

__all__ = ["Gradients"]


class Gradients:
    """``differentiated``: where the shared tensors are found to which gradients flow from what the call returns;
    ``dropped``: from which of its calls they are kept, for what those return is detached, or of no use; ``partly``: of
    which of its calls only some of the tensors are of use, and which."""

    def __init__(
        self,
        nodes: Sequence[Node],
        shared: Mapping[int, Any],
        results: Sequence[Ref],
        others: Sequence[Ref],
        quiet: bool,
    ) -> None:
        """``shared``: where each shared tensor is found; ``others``: what has gradients whoever made the call;
        ``quiet``: no gradients are recorded at all, so there is nothing to be told."""
        self._nodes, self._shared, self._results, self._others, self._quiet = nodes, shared, results, others, quiet
        self._whole: dict[frozenset[int], bool] = {}
        self.differentiated, used = self._flow((*results, *others))
        calls = [node for node in nodes if is_call(node)]
        counts = {number: {which for call, which in used if call == number} for number in range(len(calls))}
        self.dropped = frozenset() if quiet else frozenset(n for n, some in counts.items() if not some)
        self.partly = {
            n: frozenset(some) for n, some in counts.items() if not quiet and 0 < len(some) < len(calls[n].outs)
        }

    def same_for(self, results: Iterable[int]) -> bool:
        """Whether gradients flow to the same tensors, and through the same of what its calls return, if only these of
        its own results have any."""
        key = frozenset(results)
        if self._quiet or len(key) == len(self._results):
            return True
        if key not in self._whole:
            some = [ref for which, ref in enumerate(self._results) if which in key]
            self._whole[key] = self._flow((*some, *self._others)) == self._flow((*self._results, *self._others))
        return self._whole[key]

    def _flow(self, refs: Iterable[Ref]) -> tuple[frozenset[Any], frozenset[tuple[int, int]]]:
        """The shared tensors to which gradients flow from these, and which tensors of which calls they reach."""
        found = {ref.index for ref in refs}
        calls = sum(map(is_call, self._nodes))
        reached: set[tuple[int, int]] = set()
        for node in reversed(self._nodes):
            used = [which for which, ref in enumerate(node.outs) if ref.index in found]
            if is_call(node):
                calls -= 1
                reached.update((calls, which) for which in used)
            silent = not node.modes.grad and not is_call(node)
            cut = not self._quiet and (silent or node.func in CUTTING)
            if used and not cut:
                taken = list(refs_of(node))
                # What decides has no gradient.
                found.update(ref.index for ref in (taken[1:] if node.func in DECIDED else taken))
        return frozenset(token for index, token in self._shared.items() if index in found), frozenset(reached)
