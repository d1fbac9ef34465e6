"""What a watched run did, in order: what it relied on, what it did, and which variant it took. Plain data.

Every event has a ``token``: two runs took the same path when their tokens agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torchjanus.core.access_path import AccessPath
from torchjanus.core.errors import NOWHERE, Place, Refusal
from torchjanus.core.kinds import isinstance
from torchjanus.trace.actions import Each, Extern, Mutation, Op, Stored
from torchjanus.trace.facts import Absent, Asserted, Computed, Filled, Found, Held, Instance, Keys, Pinned, Same
from torchjanus.trace.loop_records import Frames, Loop, LoopInstance, LoopRecord, Plain

__all__ = ["ALL", "ANYTHING", "Decision", "Entered", "Event", "Left", "Trace", "Trips"]


ALL = ("all",)  # keys of a container
ANYTHING = ("anything",)  # among what a program has looked at


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """A branch went one variant."""

    outcome: bool
    place: Place = NOWHERE

    @property
    def token(self) -> Any:
        return ("decision", self.place.line, self.outcome)

    def __str__(self) -> str:
        return f"branch {self.outcome}"


@dataclass(frozen=True, slots=True, eq=False)
class Trips:
    """A loop came to its end after ``count`` iterations."""

    count: int
    place: Place = NOWHERE

    @property
    def token(self) -> Any:
        return ("trips", self.place.line, self.count)

    def __str__(self) -> str:
        return f"loop   {self.count} iterations"


@dataclass(frozen=True, slots=True, eq=False)
class Entered:
    """A Python function was entered."""

    name: str
    place: Place = NOWHERE

    @property
    def token(self) -> Any:
        return ("entered", self.name)

    def __str__(self) -> str:
        return f"call   {self.name}"


@dataclass(frozen=True, slots=True, eq=False)
class Left:
    """The function entered last was left."""

    name: str
    place: Place = NOWHERE

    @property
    def token(self) -> Any:
        return ("left", self.name)

    def __str__(self) -> str:
        return f"return {self.name}"


Fact = Found | Absent | Filled | Keys | Same | Instance | Held | Pinned | Computed | Asserted
Effectful = Stored | Mutation | Extern
Event = Fact | Op | Effectful | Each | Decision | Trips | Entered | Left


@dataclass(slots=True, eq=False)
class Trace:
    """One watched run. ``result`` is the returned value's recipe and ``recipes`` those of the values that events let
    out, by the event's id; ``alive`` keeps every object whose identity the tokens speak of."""

    events: list[Event] = field(default_factory=list)
    tensors: list[Any] = field(default_factory=list)  # by number; only inputs stay after the run
    access_paths: dict[int, AccessPath] = field(default_factory=dict)  # tensor number -> where it was found
    owners: dict[int, AccessPath] = field(default_factory=dict)  # id(object) -> where it was found
    result: Any = None
    recipes: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    fetched: dict[Any, Any] = field(default_factory=dict)  # what each fetch gave, by its token
    refusals: list[Refusal] = field(default_factory=list)
    alive: list[Any] = field(default_factory=list)
    ambient: Any = None  # torch's modes when the run began
    iterations: list[LoopInstance] = field(
        default_factory=list
    )  # of loops that could be run for another number of iterations
    recursive: dict[Any, frozenset[str]] = field(default_factory=dict)  # code that was entered within itself, and which
    # of its parameters were the same object in all calls
    loops: list[Loop] = field(default_factory=list)
    variant: Any = None  # of a recursive call: which of the known variants it took: its number if that was recognised
    flows: Any = None  # of one: to which tensors gradients flow from its results (see graph.way_gradients)
    around: dict[Any, Any] = field(default_factory=dict)  # of one: what it relied on that no call is given
    variants: frozenset[int] | None = (
        None  # of one that was recognised, and not watched: those that it and its calls took
    )
    loop_records: list[LoopRecord] = field(default_factory=list)  # of all loops over something
    changed: dict[int, frozenset[Any]] = field(default_factory=dict)  # variables, by the event that asked a tensor
    plain: list[Plain] = field(default_factory=list)  # what the program computed with plain numbers
    leasts: tuple[int, ...] = ()  # of a run that was cut down: the fewest iterations of loops that tensors end
    measured: int = -1  # how many events there were when it last asked how much a container of its own holds
    counted: list[tuple[int, Place, int]] = field(default_factory=list)  # by how many events, and where, something was
    # made of how much a container of its own holds, and how much that was
    given: list[Plain] = field(default_factory=list)  # plain numbers that native code was given, for what is no number
    peeked: list[tuple[int, int]] = field(default_factory=list)  # before which event the program looked into which
    # container
    reread: list[tuple[int, Any]] = field(default_factory=list)  # before which event it read which place (see
    # ``Stored.where``) that it had written itself, or asked whether something is there, or what all is (ALL)
    built: dict[int, int] = field(default_factory=dict)  # the numbers of new objects that leave the call, by their id
    pins: dict[Any, int] = field(default_factory=dict)  # how often each expression was pinned, by its token
    failures: int = 0  # how many operations raised, whatever became of it
    looked_at: set[Any] = field(default_factory=set)  # the tokens of what the program has looked at, or ANYTHING
    appends: set[tuple[int, bool]] = field(default_factory=set)  # of a recursive call: to which lists it appends, and
    # whether that has gradients
    frames: list[Frames] = field(default_factory=list)  # of loops over something
    kinds: dict[int, tuple[Any, ...]] = field(default_factory=dict)  # sizes, strides, dtype, device, requires_grad
    memory: list[int] = field(default_factory=list)  # by tensor's number: equal where they lie in the same memory

    def all_recipes(self) -> tuple[Any, ...]:
        """How to make what the call returns, and what its events are given."""
        given = ((self.result,), *self.recipes.values())
        return tuple(recipe for some in given for recipe in some if recipe is not None)

    def tokens(self) -> tuple[Any, ...]:
        """The run's path."""
        out = tuple(r.token for recipes in self.recipes.values() for r in recipes)
        return (
            self.ambient,
            *(event.token for event in self.events),
            *out,
            self.result.token if self.result is not None else None,
        )

    def lines(self) -> Iterator[str]:
        """The trace as text, one line an event, indented by call, each with the user's file and line."""
        depth = 0
        for event in self.events:
            if isinstance(event, Left):
                depth -= 1
            yield f"{event.place!s:<40} {'  ' * depth}{event}"
            if isinstance(event, Entered):
                depth += 1

    def __str__(self) -> str:
        return "\n".join(self.lines())
