"""Gradient reachability: to which tensors and inner calls gradients flow from a watched call's results and appended
values.

The values in use of a call are a set: the indices of results, and ``("list", place)`` for each list of the step to
which it or an inner call appends. Independent of cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchjanus.graph.ir.program import Node, Ref
from torchjanus.graph.recursion.variants.nodes import CUTTING, is_call
from torchjanus.graph.recursion.variants.predicates import DECIDED

__all__ = ["Gradients", "Used", "lists_in"]

Used = frozenset[Any]


def lists_in(used: Used) -> Used:
    """Return the lists among the values in use. They are in use for all calls that append to them."""
    return frozenset(one for one in used if type(one) is tuple)


class Gradients:
    """The gradient reachability of one variant. ``differentiated``: tokens of the shared tensors to which gradients
    flow from all results and appended values; ``dropped``: the inner calls that gradients then do not reach, since
    their results are detached or not used; ``partly``: the inner calls of which only some results are in use, with
    these."""

    def __init__(
        self,
        nodes: Sequence[Node],
        shared: Mapping[int, Any],
        results: Sequence[Ref],
        appended: Sequence[tuple[int, Ref]],
        quiet: bool,
    ) -> None:
        """``shared``: tokens of the shared tensors; ``appended``: (list, tensor) pairs; ``quiet``: the call records no
        gradients at all, so its variant distinguishes nothing."""
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
        """Whether gradients flow to the same tensors and inner results if only these values are in use."""
        some = frozenset(used) & self.whole
        if self._quiet or some == self.whole:
            return True
        (tokens, calls), (others, more) = self.flow(some), self.flow(self.whole)
        return tokens == others and [one - lists_in(one) for one in calls] == [one - lists_in(one) for one in more]

    @property
    def uniform(self) -> bool:
        """Whether ``same_for`` holds for any values in use."""
        return all(self.same_for({which}) for which in self.whole if type(which) is int) and (
            not self._appended or bool(self._results) or self.same_for(())
        )

    def flow(self, used: Used) -> tuple[frozenset[Any], tuple[Used, ...]]:
        """Return the tokens of the shared tensors that gradients reach, and each inner call's values in use."""
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
                taken = node.inputs
                # The predicate has no gradient.
                found.update(ref.index for ref in (taken[1:] if node.func in DECIDED else taken))
        tokens = frozenset(token for index, token in self._shared.items() if index in found)
        return tokens, tuple(reversed(reached))
