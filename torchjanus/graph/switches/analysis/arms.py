"""Records the arms of a loop's iterations and resolves which variables are loop-carried.

A tensor that an iteration uses only shows which variables may be meant. The candidates of all iterations that took the
same arm are intersected. Where an ambiguity that matters remains, the loop is not merged until more iterations have
been watched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.switches.analysis.effects import is_shown
from torchjanus.graph.switches.analysis.index_predicates import IndexPredicate
from torchjanus.graph.switches.analysis.iterations import OUTSIDE, IndexedRead, Iteration, Source, subject_of
from torchjanus.graph.switches.analysis.numbers import alike
from torchjanus.graph.switches.analysis.variable_states import is_slot

__all__ = ["Arm", "ResolvedArms", "SwitchSites"]

MOST = 16  # arms of one loop


@dataclass(slots=True, eq=False)
class Arm:
    """The common form of iterations that did the same."""

    seen: Iteration
    indices: set[int]  # indices of the iterations that took it
    followed: bool  # whether an iteration came after it in some run
    lengths: set[int]  # trip counts of the runs in which it was seen

    @property
    def is_alone(self) -> bool:
        """Whether it was seen at one iteration index only."""
        return len(self.indices) == 1

    @property
    def is_common(self) -> bool:
        """Whether it was seen at several iteration indices and before others.

        An arm of one index may depend on that index, and only a following iteration shows what the arm has left."""
        return self.followed and not self.is_alone

    @property
    def takes(self) -> list[frozenset[Source]]:
        """The possible sources of each operand. At index 0 a variable still holds its value from before the loop."""
        if self.indices != {0}:
            return self.seen.takes
        return [frozenset(one for one in found if one[0] == OUTSIDE) or found for found in self.seen.takes]

    def ends(self, name: Any) -> frozenset[Source]:
        """Return the possible sources of a variable's value after an iteration of this arm."""
        found = self.seen.ends.get(name, frozenset({("blank", name)} if is_shown(name) else ()))
        return frozenset({("name", name)}) if self.indices == {0} and ("name", name) in found else found

    def is_as(self, other: Iteration) -> bool:
        return self.seen.tokens == other.tokens

    def refine(self, other: Iteration, length: int) -> None:
        """Merge one more iteration of this arm, from a run of ``length`` iterations. Raises NotMergeable."""
        self.indices.add(other.iteration)
        self.lengths.add(length)
        self.followed |= not other.last
        mine = self.seen
        mine.takes = [one & two for one, two in zip(mine.takes, other.takes, strict=True)]
        mine.ends = {name: known & other.ends[name] for name, known in mine.ends.items() if name in other.ends}
        for key, found in other.counts.items():
            mine.counts[key] = mine.counts.get(key, found) & found
        both = mine.number_ends.keys() & other.number_ends.keys()
        mine.number_ends = {name: mine.number_ends[name] & other.number_ends[name] for name in both}
        mine.plain |= other.plain
        if mine.items != other.items:
            raise NotMergeable("branch-effects", "only some iterations append to a list")
        if not all(mine.takes):
            raise NotMergeable("branch-carried", "an iteration takes something that no other has taken in the same way")


@dataclass(frozen=True, slots=True)
class ResolvedArms:
    """The arms with all sources resolved.

    ``carried``: the loop-carried variables. ``fixed``: the sources that are loop-invariant or scanned inputs.
    ``takes``: for each arm, the source of each operand. ``ends``: for each arm, the source of each carried variable's
    final value."""

    arms: tuple[Arm, ...]
    carried: tuple[Any, ...]
    fixed: tuple[Source, ...]
    takes: tuple[tuple[Source, ...], ...]
    ends: tuple[tuple[Source, ...], ...]

    def is_made(self, place: int) -> bool:
        """Whether each iteration sets this variable and none reads its previous value."""
        source = ("name", self.carried[place])
        made = all(ends[place][0] != "name" for ends in self.ends)
        return made and not any(source in some for some in (*self.takes, *self.ends))

    @property
    def key(self) -> Any:
        """The key of a merged form: equal keys mean equal programs."""
        return (tuple(map(id, self.arms)), self.carried, self.fixed, self.takes, self.ends)


@dataclass(slots=True)
class SwitchSites:
    """What all watched runs have shown of one loop."""

    arms: list[Arm] = field(default_factory=list)
    facts: dict[Any, Any] = field(default_factory=dict)  # facts that iterations found in the heap, by subject
    indexed: dict[Any, IndexedRead] = field(default_factory=dict)
    compared: dict[Any, Any] = field(default_factory=dict)  # numbers of the host that predicates compare
    built: dict[Any, Any] = field(default_factory=dict)  # the arms as functions, by their content
    places: dict[Any, Any] = field(default_factory=dict)  # where iterations have written numbers
    after: dict[Any, frozenset[Source]] = field(default_factory=dict)  # candidates of uses after the loop
    left: dict[Any, Any] | None = None  # objects and containers that all iterations leave: see ``check_states``

    def fits(self, iterations: Sequence[Iteration], left: dict[Any, Any]) -> bool:
        """Whether the iterations differ from the known arms only by tensor predicates, and leave what those leave.

        ``left``: what the iterations leave (see ``check_states``)."""
        if self.left not in (None, left):
            return False
        for one in iterations:
            known = next((arm for arm in self.arms if arm.is_as(one)), None)
            if known is None and not all(_part(arm.seen, one) for arm in self.arms):
                return False
            if known is None:
                continue
            if not all(a & b for a, b in zip(known.seen.takes, one.takes, strict=True)):
                return False
            if not alike(known.seen.counts, one.counts):
                return False
        return True

    def learn(self, iterations: Sequence[Iteration], left: dict[Any, Any]) -> bool:
        """Merge the iterations of a run. Return whether there are new arms. Raises NotMergeable."""
        grown, self.left = False, left
        for one in iterations:
            known = next((arm for arm in self.arms if arm.is_as(one)), None)
            if known is not None:
                known.refine(one, len(iterations))
            else:
                if len(self.arms) == MOST or not all(_part(arm.seen, one) for arm in self.arms):
                    raise NotMergeable("branch-too-many-arms")
                self.arms.append(Arm(one, {one.iteration}, not one.last, {len(iterations)}))
                grown = True
            for fact in one.facts:
                self.facts[subject_of(fact)] = fact
            self.indexed.update(one.indexed)
            self.compared.update(one.compared)
        return grown

    def arms_of(self, iterations: Sequence[Iteration]) -> list[Arm]:
        """Return the arm that each iteration took."""
        return [next(arm for arm in self.arms if arm.is_as(one)) for one in iterations]

    def proven(self, counted: bool) -> list[Arm]:
        """Return the arms with enough evidence, and those that may be used within limits (see ``evidence``).

        The latter need runs of several trip counts. ``counted``: whether the trip count may differ between runs."""
        return [
            arm
            for arm in self.arms
            if self.leaves_all(arm)
            and (arm.is_common or ((len(arm.lengths) > 1 or not counted) and self._is_by_number(arm)))
        ]

    def leaves_all(self, arm: Arm) -> bool:
        """Whether the arm is known to leave all that iterations leave in containers and objects.

        An iteration at index 0 shows that directly; so does an arm that sets the tensor or number itself."""
        if 0 in arm.indices:
            return True
        made = {"tensor": arm.seen.ends, "number": arm.seen.number_ends}
        return all(
            kind in made and (not is_slot(name) or ("name", name) not in made[kind].get(name, {("name", name)}))
            for name, (kind, *_) in (self.left or {}).items()
            if kind not in ("grows", "unbound")
        )

    def _is_by_number(self, arm: Arm) -> bool:
        """Whether an index predicate separates this arm from an arm with enough evidence."""
        partings = ((arm.seen.events, _parting(arm.seen, other.seen)) for other in self.arms if other.is_common)
        return any(at is not None and isinstance(events[at], IndexPredicate) for events, at in partings)

    def meant(self, key: Any, candidates: frozenset[Source]) -> frozenset[Source]:
        """Narrow the candidates of a use after the loop by those of earlier runs and return the rest."""
        known = self.after.get(key)
        found = self.after[key] = candidates if known is None else known & candidates
        return found


def _part(one: Iteration, other: Iteration) -> bool:
    """Whether two arms diverge at a tensor predicate."""
    return _parting(one, other) is not None


def _parting(one: Iteration, other: Iteration) -> int | None:
    """Return the position of the predicate at which two arms diverge; None if they differ elsewhere."""
    for position, (a, b) in enumerate(zip(one.tokens, other.tokens, strict=False)):
        if a != b:
            return position if position in one.asked and position in other.asked and a[:-1] == b[:-1] else None
    return None


class ArmResolution:
    """Resolves sources to variables for the arms of one loop. ``initial``: the values of variables before the loop."""

    def __init__(self, arms: Sequence[Arm], initial: Mapping[Any, Any]) -> None:
        self.arms = tuple(arms)
        self.initial = initial
        names = set(initial).union(*(arm.seen.ends for arm in arms))
        self.rebound = {
            name for name in names if any(("name", name) not in arm.seen.ends.get(name, ()) for arm in self.arms)
        }
        self._classes = self._equal()
        self._ends = {name: self._forms(name, self._classes) for name in self.rebound}

    def _equal(self) -> dict[Any, Any]:
        """Partition the rebound variables into classes that always hold the same value (partition refinement)."""
        order = sorted(self.rebound, key=repr)
        classes = {name: self.initial.get(name, ("none", name)) for name in order}
        while True:
            forms = {name: (classes[name], self._forms(name, classes)) for name in order}
            numbers: dict[Any, int] = {}
            found = {name: numbers.setdefault(forms[name], len(numbers)) for name in order}
            if len(set(found.values())) == len(set(classes.values())):
                return found
            classes = found

    def _forms(self, name: Any, classes: Mapping[Any, Any]) -> Any:
        """Return, per arm, the canonical sources of a variable's value after an iteration of that arm."""
        return tuple(
            frozenset(self._form(one, classes) for one in arm.ends(name) or (("none", name),)) for arm in self.arms
        )

    def _form(self, source: Source, classes: Mapping[Any, Any]) -> Any:
        if source[0] == "name" and source[1] in self.rebound:
            return ("class", classes[source[1]])
        return source

    def choose(self, candidates: Iterable[Source], ended: bool = False) -> Source:
        """Return the source that is meant, where the remaining candidates are equivalent.

        ``ended``: the use is after an iteration rather than before it. Raises NotMergeable while it is ambiguous."""
        classes = self._ends if ended else self._classes
        found = sorted(candidates, key=repr)
        moving = [one for one in found if one[0] == "name" and one[1] in self.rebound]
        others = [one for one in found if one not in moving]
        there = [one for one in moving if one[1] in self.initial]
        if there and len({self._ends[one[1]] for one in moving}) == 1:
            moving = there  # the others equal it after the first iteration and do not exist before
        if moving and not others and len({classes[one[1]] for one in moving}) == 1:
            return moving[0]
        if moving or not others:
            raise NotMergeable("branch-carried", "it is not known which of several values an iteration takes")
        own = [one for one in others if one[0] not in ("name", OUTSIDE)]
        if own:
            if len(others) > 1:
                raise NotMergeable("branch-carried", "it is not known which of several results an iteration takes")
            return own[0]
        outside = [one for one in others if one[0] == OUTSIDE]
        return (outside or others)[0]

    def resolved(self, wanted: Iterable[Any]) -> ResolvedArms:
        """Resolve all sources. ``wanted``: the variables that are used after the loop. Raises NotMergeable."""
        takes = tuple(tuple(map(self.choose, arm.takes)) for arm in self.arms)
        carried: dict[Any, None] = dict.fromkeys(wanted)
        carried.update((one[1], None) for some in takes for one in some if self._moves(one))
        pending, ends = list(carried), dict[Any, tuple[Source, ...]]()
        while pending:
            name = pending.pop()
            ends[name] = tuple(self.choose(arm.ends(name)) for arm in self.arms)
            for one in ends[name]:
                if self._moves(one) and one[1] not in carried:
                    carried[one[1]] = None
                    pending.append(one[1])
        order = tuple(sorted(carried, key=repr))
        fixed = {one: None for some in (*takes, *ends.values()) for one in some if one[0] != "own"}
        return ResolvedArms(
            self.arms,
            order,
            tuple(one for one in fixed if not self._moves(one)),
            takes,
            tuple(tuple(ends[name][number] for name in order) for number in range(len(self.arms))),
        )

    def roots(self, name: Any) -> set[Any]:
        """Return what a variable may hold after at least one iteration: the memory an iteration made, as (arm, order);
        a value from before the loop, as ("initial", value); "given" for what the loop does not own."""
        found, pending, met = set[Any](), [name], {name}
        while pending:
            one = pending.pop()
            for number, arm in enumerate(self.arms):
                source = self.choose(arm.ends(one))
                if source[0] == "own":
                    memory = arm.seen.memory[source[1]]
                    found.add("given" if memory < 0 else (number, memory))
                elif not self._moves(source):
                    found.add("given")
                else:
                    found.add(("initial", self.initial.get(source[1])))
                    if source[1] not in met:
                        met.add(source[1])
                        pending.append(source[1])
        return found

    def _moves(self, source: Source) -> bool:
        return source[0] == "name" and source[1] in self.rebound
