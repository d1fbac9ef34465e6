"""To which tensors gradients flow from what one watched call returns and appends, and to what its own calls return.

What is of use of a call is a set of numbers, of the tensors that it returns, and of ``("list", place)`` for the lists
of the step to which it and the calls within append. Knows nothing of cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchjanus.graph.ir.program import Node, Ref
from torchjanus.graph.recursion.variants.nodes import CUTTING, is_call, refs_of
from torchjanus.graph.recursion.variants.predicates import DECIDED

__all__ = ["Gradients", "Used", "lists_in"]

Used = frozenset[Any]


def lists_in(used: Used) -> Used:
    """The lists among what is of use: those are of use to all calls, whoever made them."""
    return frozenset(one for one in used if type(one) is tuple)


class Gradients:
    """``differentiated``: where the shared tensors are found to which gradients flow from all that the call returns
    and appends; ``dropped``: from which of its calls they are kept then, for what those return is detached, or of no
    use; ``partly``: of which of its calls only some of the tensors are of use, and which."""

    def __init__(
        self,
        nodes: Sequence[Node],
        shared: Mapping[int, Any],
        results: Sequence[Ref],
        appended: Sequence[tuple[int, Ref]],
        quiet: bool,
    ) -> None:
        """``shared``: where each shared tensor is found; ``appended``: to which list each of the tensors is appended;
        ``quiet``: no gradients are recorded at all, so there is nothing to be told."""
        self._nodes, self._shared, self._results, self._quiet = nodes, shared, results, quiet
        self._appended = appended
        self._calls = [node for node in nodes if is_call(node)]
        self._known: dict[Used, tuple[frozenset[Any], tuple[Used, ...]]] = {}
        self.whole = frozenset((*range(len(results)), *(("list", place) for place, _ in appended)))
        self.differentiated, counts = self.flow(self.whole)
        some = enumerate(frozenset(one for one in used if type(one) is int) for used in counts)
        by_call = dict(some)
        self.dropped = frozenset() if quiet else frozenset(n for n, used in by_call.items() if not used)
        outs = [len(call.outs) for call in self._calls]
        self.partly = {} if quiet else {n: used for n, used in by_call.items() if 0 < len(used) < outs[n]}

    def same_for(self, used: Iterable[Any]) -> bool:
        """Whether gradients flow to the same tensors, and through the same of what its calls return, if only this is of
        use."""
        some = frozenset(used) & self.whole
        if self._quiet or some == self.whole:
            return True
        (tokens, calls), (others, more) = self.flow(some), self.flow(self.whole)
        return tokens == others and [one - lists_in(one) for one in calls] == [one - lists_in(one) for one in more]

    @property
    def uniform(self) -> bool:
        """Whether that is so of whatever is of use."""
        return all(self.same_for({which}) for which in self.whole if type(which) is int) and (
            not self._appended or bool(self._results) or self.same_for(())
        )

    def flow(self, used: Used) -> tuple[frozenset[Any], tuple[Used, ...]]:
        """The shared tensors to which gradients flow if this is of use, and what of each of its calls is of use
        then."""
        found = self._known.get(used)
        if found is None:
            found = self._known[used] = self._flow(used)
        return found

    def _flow(self, used: Used) -> tuple[frozenset[Any], tuple[Used, ...]]:
        lists = lists_in(used)
        found = {ref.index for which, ref in enumerate(self._results) if which in used}
        found.update(ref.index for place, ref in self._appended if ("list", place) in lists)
        reached: list[Used] = []
        for node in reversed(self._nodes):
            some = [which for which, ref in enumerate(node.outs) if ref.index in found]
            if is_call(node):
                whole = self._quiet and bool(used)
                reached.append(frozenset((*(range(len(node.outs)) if whole else some), *lists)))
            silent = not node.modes.grad and not is_call(node)
            cut = not self._quiet and (silent or node.func in CUTTING)
            if some and not cut:
                taken = list(refs_of(node))
                # What decides has no gradient.
                found.update(ref.index for ref in (taken[1:] if node.func in DECIDED else taken))
        tokens = frozenset(token for index, token in self._shared.items() if index in found)
        return tokens, tuple(reversed(reached))
