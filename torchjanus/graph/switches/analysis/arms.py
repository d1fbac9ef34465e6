"""The ways that iterations of a loop were seen to go, and what they have in common: which variables they hand on.

A tensor that an iteration takes says only which variables may have been meant. What several iterations have in common
is what was meant, as far as it makes a difference; where it might, the loop is not told before more iterations have
been seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchjanus.graph.loops.analysis.host_recurrences import NotMergeable
from torchjanus.graph.switches.analysis.effects import is_shown
from torchjanus.graph.switches.analysis.index_predicates import Question
from torchjanus.graph.switches.analysis.iterations import OUTSIDE, Indexed, Iteration, Source, subject_of
from torchjanus.graph.switches.analysis.numbers import alike
from torchjanus.graph.switches.analysis.variable_states import is_slot

__all__ = ["Arm", "Resolved", "SwitchSites"]

MOST = 16  # ways of one loop


@dataclass(slots=True, eq=False)
class Arm:
    """What some iterations did alike."""

    seen: Iteration
    indices: set[int]  # in which iterations it was seen
    followed: bool  # whether other iterations were seen after it
    lengths: set[int]  # how many iterations there were in the runs in which it was seen

    @property
    def is_alone(self) -> bool:
        """Whether it was seen in one iteration only."""
        return len(self.indices) == 1

    @property
    def is_common(self) -> bool:
        """Whether it was seen in several iterations, for one alone may depend on which one it is, and before others,
        for those show what it has left."""
        return self.followed and not self.is_alone

    @property
    def takes(self) -> list[frozenset[Source]]:
        """What it might take. In the first iteration a variable is still what it was before the loop."""
        if self.indices != {0}:
            return self.seen.takes
        return [frozenset(one for one in found if one[0] == OUTSIDE) or found for found in self.seen.takes]

    def ends(self, name: Any) -> frozenset[Source]:
        """What a variable might be in the end of an iteration that went this arm."""
        found = self.seen.ends.get(name, frozenset({("blank", name)} if is_shown(name) else ()))
        return frozenset({("name", name)}) if self.indices == {0} and ("name", name) in found else found

    def is_as(self, other: Iteration) -> bool:
        return self.seen.tokens == other.tokens

    def refine(self, other: Iteration, length: int) -> None:
        """One more iteration that went this arm, in a run of so many."""
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
            raise NotMergeable
        if not all(mine.takes):
            raise NotMergeable


@dataclass(frozen=True, slots=True)
class Resolved:
    """The ways with all that they take: variables that are ``carried`` on, and what is the same for all iterations or
    is each iteration's own (``fixed``). ``takes``: of each arm, for each that it takes, where it comes from. ``ends``:
    of each way, for each carried variable, where what it is in the end comes from."""

    arms: tuple[Arm, ...]
    carried: tuple[Any, ...]
    fixed: tuple[Source, ...]
    takes: tuple[tuple[Source, ...], ...]
    ends: tuple[tuple[Source, ...], ...]

    def is_made(self, place: int) -> bool:
        """Whether each iteration makes this variable anew, and none takes what it was."""
        source = ("name", self.carried[place])
        made = all(ends[place][0] != "name" for ends in self.ends)
        return made and not any(source in some for some in (*self.takes, *self.ends))

    @property
    def key(self) -> Any:
        """Equal for what is told alike."""
        return (tuple(map(id, self.arms)), self.carried, self.fixed, self.takes, self.ends)


@dataclass(slots=True)
class SwitchSites:
    """What is known of one loop."""

    arms: list[Arm] = field(default_factory=list)
    facts: dict[Any, Any] = field(default_factory=dict)  # what iterations find in the heap, by what they speak of
    indexed: dict[Any, Indexed] = field(default_factory=dict)
    compared: dict[Any, Any] = field(default_factory=dict)  # numbers of the host
    built: dict[Any, Any] = field(default_factory=dict)  # the arms as functions, by what they are made of
    places: dict[Any, Any] = field(default_factory=dict)  # where iterations have written numbers
    after: dict[Any, frozenset[Source]] = field(default_factory=dict)  # what the program may mean after the loop
    left: dict[Any, Any] | None = None  # what all iterations have left: see ``check_states``

    def fits(self, iterations: Sequence[Iteration], left: dict[Any, Any]) -> bool:
        """Whether only tensors decide between these iterations and the arms that are known, and all leave the same.
        ``left``: what these have left."""
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
        """Take in the iterations of a run. Returns whether there are new ways. Raises NotMergeable."""
        grown, self.left = False, left
        for one in iterations:
            known = next((arm for arm in self.arms if arm.is_as(one)), None)
            if known is not None:
                known.refine(one, len(iterations))
            else:
                if len(self.arms) == MOST or not all(_part(arm.seen, one) for arm in self.arms):
                    raise NotMergeable
                self.arms.append(Arm(one, {one.iteration}, not one.last, {len(iterations)}))
                grown = True
            for fact in one.facts:
                self.facts[subject_of(fact)] = fact
            self.indexed.update(one.indexed)
            self.compared.update(one.compared)
        return grown

    def arms_of(self, iterations: Sequence[Iteration]) -> list[Arm]:
        """Which way each iteration went."""
        return [next(arm for arm in self.arms if arm.is_as(one)) for one in iterations]

    def proven(self, counted: bool) -> list[Arm]:
        """The ways that are known well enough, or with limits (see ``switch_limits``) if those have shown in runs of
        several lengths. ``counted``: whether it is known how long they are, or the same for all."""
        return [
            arm
            for arm in self.arms
            if self.leaves_all(arm)
            and (arm.is_common or ((len(arm.lengths) > 1 or not counted) and self._is_by_number(arm)))
        ]

    def leaves_all(self, arm: Arm) -> bool:
        """Whether it is known that this arm leaves all that iterations leave in containers and objects: iterations that
        come first show that, and of tensors and numbers those that make them anew."""
        if 0 in arm.indices:
            return True
        made = {"tensor": arm.seen.ends, "number": arm.seen.number_ends}
        return all(
            kind in made and (not is_slot(name) or ("name", name) not in made[kind].get(name, {("name", name)}))
            for name, (kind, *_) in (self.left or {}).items()
            if kind != "grows"
        )

    def _is_by_number(self, arm: Arm) -> bool:
        """Whether it was the number of the iteration that led there, and not to a way that is known well."""
        partings = ((arm.seen.events, _parting(arm.seen, other.seen)) for other in self.arms if other.is_common)
        return any(at is not None and isinstance(events[at], Question) for events, at in partings)

    def meant(self, key: Any, candidates: frozenset[Source]) -> frozenset[Source]:
        """What the program may mean at this place after the loop, after what was seen of it before."""
        known = self.after.get(key)
        found = self.after[key] = candidates if known is None else known & candidates
        return found


def _part(one: Iteration, other: Iteration) -> bool:
    """Whether a tensor decides between two arms."""
    return _parting(one, other) is not None


def _parting(one: Iteration, other: Iteration) -> int | None:
    """Which event it is that decides between two arms."""
    for position, (a, b) in enumerate(zip(one.tokens, other.tokens, strict=False)):
        if a != b:
            return position if position in one.asked and position in other.asked and a[:-1] == b[:-1] else None
    return None


class Resolving:
    """Settles what is meant, for the ways of one loop. ``initial``: what the variables are before it."""

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
        """The variables that always hold the same, by a number."""
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
        """What a variable is after an iteration that went each of the arms."""
        return tuple(
            frozenset(self._form(one, classes) for one in arm.ends(name) or (("none", name),)) for arm in self.arms
        )

    def _form(self, source: Source, classes: Mapping[Any, Any]) -> Any:
        if source[0] == "name" and source[1] in self.rebound:
            return ("class", classes[source[1]])
        return source

    def choose(self, candidates: Iterable[Source], ended: bool = False) -> Source:
        """The one that is meant, as far as it matters; ``ended``: after an iteration, not before it. Raises
        NotMergeable where that is not known yet."""
        classes = self._ends if ended else self._classes
        found = sorted(candidates, key=repr)
        moving = [one for one in found if one[0] == "name" and one[1] in self.rebound]
        others = [one for one in found if one not in moving]
        there = [one for one in moving if one[1] in self.initial]
        if there and len({self._ends[one[1]] for one in moving}) == 1:
            moving = (
                there  # the others are the same after the first iteration, and before it there is nothing to be taken
            )
        if moving and not others and len({classes[one[1]] for one in moving}) == 1:
            return moving[0]
        if moving or not others:
            raise NotMergeable
        own = [one for one in others if one[0] not in ("name", OUTSIDE)]
        if own:
            if len(others) > 1:
                raise NotMergeable
            return own[0]
        outside = [one for one in others if one[0] == OUTSIDE]
        return (outside or others)[0]

    def resolved(self, wanted: Iterable[Any]) -> Resolved:
        """``wanted``: the variables that are asked for after the loop. Raises NotMergeable."""
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
        return Resolved(
            self.arms,
            order,
            tuple(one for one in fixed if not self._moves(one)),
            takes,
            tuple(tuple(ends[name][number] for name in order) for number in range(len(self.arms))),
        )

    def roots(self, name: Any) -> set[Any]:
        """What a variable may hold after the iterations, of which there is one at least: by way what iterations make,
        by name what was there before and an iteration may hand on; "given" for what is not the loop's own."""
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
