"""What rounds in which tensors decide do to the world, way by way, and the numbers that they hand on, round by round.

The host knows which way each round went when the graph has run: a round's effects are told for all ways, each with the
condition that it was this one; a number is what the way that was taken made of it. Knows ways that are settled and
where in the new run their results are, not how that is written.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchjanus.graph.loops.analysis.host_recurrences import UnlikeRounds, entering
from torchjanus.graph.switches.analysis.arms import Way
from torchjanus.graph.switches.analysis.carried_numbers import Counting, Tree, build, chosen, names_in
from torchjanus.graph.switches.analysis.effects import Shown
from torchjanus.graph.switches.analysis.index_predicates import Question
from torchjanus.graph.switches.analysis.iterations import Round
from torchjanus.graph.switches.analysis.lists import FilledList
from torchjanus.graph.switches.analysis.numbers import Held, is_safe
from torchjanus.trace.actions import Extern
from torchjanus.trace.recipes import Constant, Number, Perhaps, Recipe, TensorAt
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Apply, Expr, Fetch

__all__ = ["Acting"]


class Acting:
    """The effects and numbers of one loop's rounds. Raises UnlikeRounds where they are not settled."""

    def __init__(
        self,
        ways: Sequence[Way],
        taken: Sequence[Way],
        rounds: Sequence[Round],
        held: Held,
        lists: Mapping[Any, FilledList],
    ) -> None:
        self.ways, self.held = ways, held
        self.lists = lists
        self.filled: dict[int, list[Recipe]] = {one.number: [] for one in lists.values()}  # by what rounds appended
        self.rounds = list(rounds)  # as they were in this run
        self.taken = [next(n for n, way in enumerate(ways) if way is one) for one in taken]
        seen = [way.seen for way in ways]
        counts = [_shared(one, seen) for one in seen]
        counts = [_plainly(some) if way.is_alone else some for way, some in zip(ways, counts, strict=True)]
        self.counting = Counting([one.number_ends for one in seen], counts, held.states[0])
        for number, one in enumerate(seen):
            for key in one.plain:
                if not self.counting.is_constant(number, counts[number].get(key, ())):
                    raise UnlikeRounds
        self.questions = [
            {
                position: self._question(number, event.form)
                for position, event in enumerate(one.events)
                if isinstance(event, Question)
            }
            for number, one in enumerate(seen)
        ]
        for number, other in itertools.combinations(range(len(seen)), 2):
            self._check_common(number, other, _parting(seen[number], seen[other]))
        self.effects = [[self._settled(number, effect) for effect in one.effects] for number, one in enumerate(seen)]
        first = [_key(effect) for effect in self.effects[0]]
        self.same = all([_key(effect) for effect in some] == first for some in self.effects)
        if any(one.items.keys() != lists.keys() for one in seen):
            raise UnlikeRounds
        self.items = {
            name: [
                None if (form := one.items[name]) is None else self.counting.settle_form(number, form)
                for number, one in enumerate(seen)
            ]
            for name in lists
        }
        self.numbers: dict[Any, tuple[Tree, ...]] = {}  # of variables that are wanted, what each way makes of them
        self.values: dict[Any, Any] = {}  # what they are now
        self.fetched: dict[Any, Any] = {}
        self.offsets: set[int] = set()  # by how much plain numbers are more than the number of the round

    def _check_common(self, one: int, other: int, parting: int) -> None:
        """Up to where two ways part their questions mean the same."""
        mine, others = self.questions[one], self.questions[other]
        if any(tree != others.get(position) for position, tree in mine.items() if position <= parting):
            raise UnlikeRounds

    def _question(self, way: int, form: Any) -> Tree:
        """What the number of the round is asked."""
        tree = self.counting.settle_form(way, form)
        if any(part[0] not in "ctm" for part in _parts(tree)):
            raise UnlikeRounds  # what rounds have handed on decides
        return tree

    def _settled(self, way: int, effect: Shown) -> tuple[Shown, tuple[Any, ...]]:
        values = tuple(
            ("number", self.counting.settle_form(way, value[1])) if value[0] == "number" else value
            for value in effect.values
        )
        return effect, values

    def want(self, names: Iterable[Any]) -> None:
        """These variables are asked for after the loop."""
        trees = [value[1] for some in self.effects for _, values in some for value in values if value[0] == "number"]
        trees += [tree for some in self.items.values() for tree in some if tree is not None]
        self.numbers = self.counting.closed([*names, *(name for tree in trees for name in names_in(tree))])
        self.values = {name: self.held.states[0].get(name) for name in self.numbers}
        if None in self.values.values():
            raise UnlikeRounds
        self.offsets = {
            one for tree in (*trees, *(t for ts in self.numbers.values() for t in ts)) for one in _turns(tree)
        }

    def variable(self, tensor: Any) -> bool:
        """Whether this stands for what a round shows."""
        return any(tensor in way.seen.ends for way in self.ways)

    def round(
        self, turn: int, told: int, way: int, results: Mapping[Any, int], after: int
    ) -> Iterator[tuple[Any, tuple[Recipe, ...]]]:
        """The effects of the next round, with their recipes. ``told``: by which number it is told; ``way``: the tensor
        that says which way it went; ``results``: those of the variables; ``after``: so many operations come before
        it."""
        flag = Fetch(way, after, int)
        self.fetched[flag.token] = self.taken[turn]
        known = self.rounds[turn].shown

        def fetch(tree: Tree) -> Fetch:
            made = Fetch(results[tree[1]], after, tree[2], tree[3])
            default = tree[2](0) if tree[2] in (int, float, bool) else None
            self.fetched.setdefault(made.token, known.get(tree, default))
            return made

        before, following = self.values, {}
        for name, trees in self.numbers.items():
            options = [build(tree, told, before.__getitem__, fetch) for tree in trees]
            following[name] = chosen(flag, options)

        def held(name: Any) -> Any:
            one, other = before[name], following[name]
            return Apply(entering, (one, other)) if isinstance(other, Expr) else one

        def recipe(value: Any) -> Recipe:
            if value[0] == "kept":
                return value[1]  # type: ignore[no-any-return]
            if value[0] == "at":
                return TensorAt(TensorRef(results[value[1]]), after)
            made = build(value[1], told, held, fetch)
            if not self.same and not is_safe(made):
                raise UnlikeRounds
            return Number(made) if isinstance(made, Expr) else Constant(made)

        for number, some in enumerate(self.effects[:1] if self.same else self.effects):
            for effect, values in some:
                event = replace(effect.event, chosen=not self.same)
                if isinstance(event, Extern):
                    event = replace(event, after=after)
                condition = () if self.same else (Number(Apply(operator.eq, (flag, number))),)
                yield event, (*map(recipe, values), *condition)
        for name, appended in self.items.items():
            self.filled[self.lists[name].number] += self._item(appended, flag, lambda t: build(t, told, held, fetch))
        self.values = following

    def _item(self, trees: Sequence[Tree | None], flag: Fetch, value: Callable[[Tree], Any]) -> Iterator[Recipe]:
        """What a round appends to a list."""
        some = next((tree for tree in trees if tree is not None), None)
        if some is None:
            return
        made = chosen(flag, [value(some if tree is None else tree) for tree in trees])
        when = chosen(flag, [tree is not None for tree in trees])
        if when is not True and not is_safe(made):
            raise UnlikeRounds
        item = Number(made) if isinstance(made, Expr) else Constant(made)
        yield item if when is True else Perhaps(item, Number(when))


def _parting(one: Round, other: Round) -> int:
    """At which event they are not the same any more."""
    pairs = enumerate(zip(one.tokens, other.tokens, strict=False))
    return next((position for position, (a, b) in pairs if a != b), len(one.tokens))


def _shared(one: Round, others: Sequence[Round]) -> dict[Any, Any]:
    """What a way takes, by what all ways have shown that go there: up to where they part, and ask the same, they do
    the same."""
    found = dict(one.counts)
    for other in others:
        parting = _parting(one, other)
        for key, candidates in other.counts.items():
            if key in found and type(key[0][1]) is int and key[0][1] <= parting:
                found[key] = found[key] & candidates
    return found


def _plainly(takes: Mapping[Any, Any]) -> dict[Any, Any]:
    """What a way takes that only one round goes: the number of that round may just as well be a constant."""
    constant = {key: frozenset(one for one in found if one[0] != "turn") for key, found in takes.items()}
    return {key: some if any(one[0] == "constant" for one in some) else takes[key] for key, some in constant.items()}


def _key(effect: tuple[Shown, tuple[Any, ...]]) -> Any:
    shown, values = effect
    words = tuple(("kept", value[1].token) if value[0] == "kept" else value for value in values)
    return (shown.event.place, shown.event.token, words)


def _parts(tree: Tree) -> Iterator[Tree]:
    yield tree
    if tree[0] == "m":
        for part in tree[2:]:
            yield from _parts(part)


def _turns(tree: Tree) -> Iterator[int]:
    if tree[0] == "t":
        yield tree[1]
    elif tree[0] == "m":
        for part in tree[2:]:
            yield from _turns(part)
