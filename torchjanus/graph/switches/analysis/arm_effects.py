"""Computes, for each iteration of a switched loop, the effects it has and the numbers it carries to the next one.

Which arm an iteration took is known to the host only after the graph has run. Each iteration's effects are therefore
written for all arms, each under the condition that the iteration took that arm; a loop-carried number is selected by
the arm taken. This module works on settled arms and on the result tensors of the new run; it does not write events.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.loops.analysis.host_recurrences import entering
from torchjanus.graph.switches.analysis.arms import Arm
from torchjanus.graph.switches.analysis.carried_numbers import CarriedNumbers, Tree, build, chosen, names_in, parts_of
from torchjanus.graph.switches.analysis.effects import ArmEffect
from torchjanus.graph.switches.analysis.index_predicates import IndexPredicate
from torchjanus.graph.switches.analysis.iterations import Iteration
from torchjanus.graph.switches.analysis.lists import FilledList
from torchjanus.graph.switches.analysis.numbers import NumberStates, is_safe
from torchjanus.trace.actions import Extern
from torchjanus.trace.recipes import ConditionalItem, Constant, Number, Recipe, TensorAt
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Apply, Expr, Fetch

__all__ = ["ArmEffects"]


class ArmEffects:
    """The effects and loop-carried numbers of one loop's iterations. Raises NotMergeable where they are not settled."""

    def __init__(
        self,
        arms: Sequence[Arm],
        taken: Sequence[Arm],
        iterations: Sequence[Iteration],
        held: NumberStates,
        lists: Mapping[Any, FilledList],
    ) -> None:
        self.arms, self.held = arms, held
        self.lists = lists
        self.filled: dict[int, list[Recipe]] = {one.number: [] for one in lists.values()}  # appended items
        self.iterations = list(iterations)  # those of this run
        self.taken = [next(n for n, arm in enumerate(arms) if arm is one) for one in taken]
        seen = [arm.seen for arm in arms]
        counts = [_shared(one, seen) for one in seen]
        counts = [_plainly(some) if arm.is_alone else some for arm, some in zip(arms, counts, strict=True)]
        self.counting = CarriedNumbers([one.number_ends for one in seen], counts, held.states[0])
        for number, one in enumerate(seen):
            for key in one.plain:
                if not self.counting.is_constant(number, counts[number].get(key, ())):
                    raise NotMergeable("branch-numbers", "a plain number of an arm follows no formula")
        self.questions = [
            {
                position: self._question(number, event.form)
                for position, event in enumerate(one.events)
                if isinstance(event, IndexPredicate)
            }
            for number, one in enumerate(seen)
        ]
        for number, other in itertools.combinations(range(len(seen)), 2):
            self._check_common(number, other, _parting(seen[number], seen[other]))
        self.effects = [[self._settled(number, effect) for effect in one.effects] for number, one in enumerate(seen)]
        first = [_key(effect) for effect in self.effects[0]]
        self.same = all([_key(effect) for effect in some] == first for some in self.effects)
        if any(one.items.keys() != lists.keys() for one in seen):
            raise NotMergeable("branch-effects", "only some arms append to a list")
        self.items = {
            name: [
                None if (form := one.items[name]) is None else self.counting.settle_form(number, form)
                for number, one in enumerate(seen)
            ]
            for name in lists
        }
        self.numbers: dict[Any, tuple[Tree, ...]] = {}  # live variables -> one tree per arm
        self.values: dict[Any, Any] = {}  # their values before the current iteration
        self.fetched: dict[Any, Any] = {}
        self.offsets: set[int] = set()  # offsets of induction values: value minus iteration index

    def _check_common(self, one: int, other: int, parting: int) -> None:
        """Check that the predicates before the point where two arms diverge are equal. Raises NotMergeable."""
        mine, others = self.questions[one], self.questions[other]
        if any(tree != others.get(position) for position, tree in mine.items() if position <= parting):
            raise NotMergeable("branch-arms-differ", "arms ask different questions before they part")

    def _question(self, arm: int, form: Any) -> Tree:
        """Return the settled tree of a predicate of the iteration index. Raises NotMergeable."""
        tree = self.counting.settle_form(arm, form)
        if any(part[0] not in "ctm" for part in parts_of(tree)):
            raise NotMergeable("branch-numbers", "a loop-carried number decides")
        return tree

    def _settled(self, arm: int, effect: ArmEffect) -> tuple[ArmEffect, tuple[Any, ...]]:
        values = tuple(
            ("number", self.counting.settle_form(arm, value[1])) if value[0] == "number" else value
            for value in effect.values
        )
        return effect, values

    def want(self, names: Iterable[Any]) -> None:
        """Compute the closure of the loop-carried numbers that ``names``, the effects and the appended items need."""
        trees = [value[1] for some in self.effects for _, values in some for value in values if value[0] == "number"]
        trees += [tree for some in self.items.values() for tree in some if tree is not None]
        self.numbers = self.counting.closed([*names, *(name for tree in trees for name in names_in(tree))])
        self.values = {name: self.held.states[0].get(name) for name in self.numbers}
        if None in self.values.values():
            raise NotMergeable("branch-numbers", "a number that is used after the loop is not there before it")
        self.offsets = {
            part[1]
            for tree in (*trees, *(t for ts in self.numbers.values() for t in ts))
            for part in parts_of(tree)
            if part[0] == "t"
        }

    def variable(self, tensor: Any) -> bool:
        """Whether ``tensor`` is a variable for a result that an iteration shows."""
        return any(tensor in arm.seen.ends for arm in self.arms)

    def next_effects(
        self, iteration: int, merged: int, arm: int, results: Mapping[Any, int], after: int
    ) -> Iterator[tuple[Any, tuple[Recipe, ...]]]:
        """Yield the effects of the next iteration, each with its recipes.

        ``merged``: the index that the iteration has in the new run; ``arm``: the tensor with the index of the arm
        taken; ``results``: the tensors of the variables; ``after``: the number of operations that precede the effects.
        """
        flag = Fetch(arm, after, int)
        self.fetched[flag.token] = self.taken[iteration]
        known = self.iterations[iteration].shown

        def fetch(tree: Tree) -> Fetch:
            made = Fetch(results[tree[1]], after, tree[2], tree[3])
            default = tree[2](0) if tree[2] in (int, float, bool) else None
            self.fetched.setdefault(made.token, known.get(tree, default))
            return made

        before, following = self.values, {}
        for name, trees in self.numbers.items():
            options = [build(tree, merged, before.__getitem__, fetch) for tree in trees]
            following[name] = chosen(flag, options)

        def held(name: Any) -> Any:
            one, other = before[name], following[name]
            return Apply(entering, (one, other)) if isinstance(other, Expr) else one

        def recipe(value: Any) -> Recipe:
            if value[0] == "kept":
                return value[1]  # type: ignore[no-any-return]
            if value[0] == "at":
                return TensorAt(TensorRef(results[value[1]]), after)
            made = build(value[1], merged, held, fetch)
            if not self.same and not is_safe(made):
                raise NotMergeable("branch-effects", "an arm writes what may raise in another arm")
            return Number(made) if isinstance(made, Expr) else Constant(made)

        for number, some in enumerate(self.effects[:1] if self.same else self.effects):
            for effect, values in some:
                event = replace(effect.event, chosen=not self.same)
                if isinstance(event, Extern):
                    event = replace(event, after=after)
                condition = () if self.same else (Number(Apply(operator.eq, (flag, number))),)
                yield event, (*map(recipe, values), *condition)
        for name, appended in self.items.items():
            self.filled[self.lists[name].number] += self._item(appended, flag, lambda t: build(t, merged, held, fetch))
        self.values = following

    def _item(self, trees: Sequence[Tree | None], flag: Fetch, value: Callable[[Tree], Any]) -> Iterator[Recipe]:
        """Yield the recipe of what an iteration appends to a list, if any arm appends."""
        some = next((tree for tree in trees if tree is not None), None)
        if some is None:
            return
        made = chosen(flag, [value(some if tree is None else tree) for tree in trees])
        when = chosen(flag, [tree is not None for tree in trees])
        if when is not True and not is_safe(made):
            raise NotMergeable("branch-effects", "an arm appends what may raise in another arm")
        item = Number(made) if isinstance(made, Expr) else Constant(made)
        yield item if when is True else ConditionalItem(item, Number(when))


def _parting(one: Iteration, other: Iteration) -> int:
    """Return the position of the first event in which two arms differ."""
    pairs = enumerate(zip(one.tokens, other.tokens, strict=False))
    return next((position for position, (a, b) in pairs if a != b), len(one.tokens))


def _shared(one: Iteration, others: Sequence[Iteration]) -> dict[Any, Any]:
    """Return the sources of an arm's number operands, narrowed by other arms up to where these diverge."""
    found = dict(one.counts)
    for other in others:
        parting = _parting(one, other)
        for key, candidates in other.counts.items():
            if key in found and type(key[0][1]) is int and key[0][1] <= parting:
                found[key] = found[key] & candidates
    return found


def _plainly(takes: Mapping[Any, Any]) -> dict[Any, Any]:
    """Drop the iteration index where a constant is a source, too; for an arm that one iteration took."""
    constant = {key: frozenset(one for one in found if one[0] != "index") for key, found in takes.items()}
    return {key: some if any(one[0] == "constant" for one in some) else takes[key] for key, some in constant.items()}


def _key(effect: tuple[ArmEffect, tuple[Any, ...]]) -> Any:
    shown, values = effect
    words = tuple(("kept", value[1].token) if value[0] == "kept" else value for value in values)
    return (shown.event.place, shown.event.token, words)
