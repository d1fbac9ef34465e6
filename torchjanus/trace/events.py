"""The recorded trace of one watched run: its events in program order, as plain data.

An event is a fact that the run relied on, an operation, an effect, or a decision. Each has a ``token``. Two runs took
the same path if their tokens are equal (JANUS, section 4.1: profiles of several iterations are compared).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torchjanus.core.access_path import AccessPath
from torchjanus.core.errors import NOWHERE, Place, Refusal
from torchjanus.core.kinds import isinstance
from torchjanus.core.remarks import Remarks
from torchjanus.trace.actions import ContainerMutation, Extern, HeapWrite, HostLoop, Op
from torchjanus.trace.facts import (
    EmptinessTest,
    HeapRead,
    HostComputation,
    IdentityTest,
    InstanceTest,
    KeyLookup,
    KeySetRead,
    NumberPredicate,
    Specialization,
    TensorPredicate,
)
from torchjanus.trace.loops.outline import Outline
from torchjanus.trace.loops.records import Loop, LoopInstance, LoopRecord, LoopSnapshots, UntracedComputation
from torchjanus.trace.recipes import Recipe, TensorOf, parts_of

__all__ = ["ALL", "ANYTHING", "Decision", "Event", "FunctionEntry", "FunctionExit", "LoopEnd", "Trace"]


ALL = ("all",)  # keys of a container
ANYTHING = ("anything",)  # among what a program has looked at


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """A branch took one arm: ``outcome`` is the value of its condition."""

    outcome: bool
    place: Place = NOWHERE

    @property
    def token(self) -> Any:
        return ("decision", self.place.line, self.outcome)

    def __str__(self) -> str:
        return f"branch {self.outcome}"


@dataclass(frozen=True, slots=True, eq=False)
class LoopEnd:
    """A loop ended after ``count`` iterations."""

    count: int
    place: Place = NOWHERE

    @property
    def token(self) -> Any:
        return ("trips", self.place.line, self.count)

    def __str__(self) -> str:
        return f"loop   {self.count} iterations"


@dataclass(frozen=True, slots=True, eq=False)
class FunctionEntry:
    """A Python function was entered."""

    name: str
    place: Place = NOWHERE

    @property
    def token(self) -> Any:
        return ("entered", self.name)

    def __str__(self) -> str:
        return f"call   {self.name}"


@dataclass(frozen=True, slots=True, eq=False)
class FunctionExit:
    """The function entered last returned or raised."""

    name: str
    place: Place = NOWHERE

    @property
    def token(self) -> Any:
        return ("left", self.name)

    def __str__(self) -> str:
        return f"return {self.name}"


HostFact = (  # what the host can check
    HeapRead
    | KeyLookup
    | EmptinessTest
    | KeySetRead
    | IdentityTest
    | InstanceTest
    | NumberPredicate
    | Specialization
    | HostComputation
)
Fact = HostFact | TensorPredicate
Effectful = HeapWrite | ContainerMutation | Extern
Event = Fact | Op | Effectful | HostLoop | Decision | LoopEnd | FunctionEntry | FunctionExit


@dataclass(slots=True, eq=False)
class Trace:
    """One watched run.

    ``result`` is the recipe of the returned value. ``recipes`` maps the id of an event to the recipes of the values
    that escape by it. ``alive`` holds references to all objects whose ids occur in tokens, so that no id is reused.
    """

    events: list[Event] = field(default_factory=list)
    tensors: list[Any] = field(default_factory=list)  # by number; only inputs stay after the run
    access_paths: dict[int, AccessPath] = field(default_factory=dict)  # tensor number -> its access path
    owners: dict[int, AccessPath] = field(default_factory=dict)  # id(object) -> its access path
    result: Any = None
    recipes: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    fetched: dict[Any, Any] = field(default_factory=dict)  # token of a fetch -> its value in this run
    refusals: list[Refusal] = field(default_factory=list)
    alive: list[Any] = field(default_factory=list)
    ambient: Any = None  # torch's modes when the run began, and the filters of warnings if it has warned
    loop_instances: list[LoopInstance] = field(default_factory=list)  # loops that may have another trip count
    # Code objects that were entered recursively -> their parameters that were the same object in all calls.
    recursive: dict[Any, frozenset[str]] = field(default_factory=dict)
    loops: list[Loop] = field(default_factory=list)
    # The next four describe the trace of a recursive call.
    variant: Any = None  # the variant it took: its number if it was recognised
    flows: Any = None  # the tensors to which gradients flow from its results (see graph.recursion.variants.gradients)
    context: dict[Any, Any] = field(default_factory=dict)  # what it relied on that is not an argument
    variants: frozenset[int] | None = None  # if it was recognised and not watched: its variant and those of inner calls
    loop_records: list[LoopRecord] = field(default_factory=list)  # of all loops over iterables
    changed: dict[int, frozenset[Any]] = field(
        default_factory=dict
    )  # predicate event -> variables that the region sets
    plain: list[UntracedComputation] = field(default_factory=list)  # computations with untraced numbers
    leasts: tuple[int, ...] = ()  # of a folded run: the minimum trip counts of loops that tensors end
    measured: int = -1  # the number of events when the run last took the length of a container that it had made
    # (number of events, place, length): where a length of a container that the run made was used.
    counted: list[tuple[int, Place, int]] = field(default_factory=list)
    given: list[UntracedComputation] = field(
        default_factory=list
    )  # untraced numbers passed to native code that returns no number
    peeked: list[tuple[int, int]] = field(default_factory=list)  # (event, id of a container that was inspected there)
    # (event, location as in ``HeapWrite.where``): reads of the run's own writes; ALL for the whole container.
    reread: list[tuple[int, Any]] = field(default_factory=list)
    built: dict[int, int] = field(default_factory=dict)  # id of a new object that escapes -> its Build number
    pins: dict[Any, int] = field(default_factory=dict)  # token of an expression -> how often it was specialised on
    remarks: Remarks = field(default_factory=Remarks, compare=False)  # what is not optimised, for all forms of the run
    failures: int = 0  # operations that raised, caught or not
    looked_at: set[Any] = field(default_factory=set)  # tokens of what the program has inspected, or ANYTHING
    appends: set[tuple[int, bool]] = field(default_factory=set)  # of a recursive call: (list, whether with gradients)
    frames: list[LoopSnapshots] = field(default_factory=list)  # variables at each iteration, of loops over iterables
    kinds: dict[int, tuple[Any, ...]] = field(default_factory=dict)  # sizes, strides, dtype, device, requires_grad
    memory: list[int] = field(default_factory=list)  # by tensor number: equal for tensors that share memory
    outline: Outline | None = field(default=None, compare=False)  # of a run as it was recorded, if asked for

    def all_recipes(self) -> tuple[Any, ...]:
        """Return the recipes of the returned value and of all values that escape by events."""
        given = ((self.result,), *self.recipes.values())
        return tuple(recipe for some in given for recipe in some if recipe is not None)

    def recipe_parts(self) -> Iterator[Recipe]:
        """Yield all recipes in what ``all_recipes`` returns."""
        return (part for recipe in self.all_recipes() for part in parts_of(recipe))

    def leaving(self) -> frozenset[int]:
        """Return the tensors that the call made and that leave it."""
        return frozenset(part.ref.number for part in self.recipe_parts() if isinstance(part, TensorOf))

    def tokens(self) -> tuple[Any, ...]:
        """Return what identifies the path: the tokens of all events, recipes and the result."""
        out = tuple(r.token for recipes in self.recipes.values() for r in recipes)
        return (
            self.ambient,
            *(event.token for event in self.events),
            *out,
            self.result.token if self.result is not None else None,
        )

    def callers(self, place: Place) -> tuple[Place, ...]:
        """Return the places of the calls within which the run came to ``place``, the innermost first."""
        calls: list[Place] = []
        for event in self.events:
            if isinstance(event, FunctionEntry):
                calls.append(event.place)
            elif isinstance(event, FunctionExit):
                del calls[-1:]
            elif event.place == place:
                return tuple(reversed(calls))
        return ()

    def lines(self) -> Iterator[str]:
        """Yield the trace as text: one line an event, indented by call depth, with the user's file and line."""
        depth = 0
        for event in self.events:
            if isinstance(event, FunctionExit):
                depth -= 1
            yield f"{event.place!s:<40} {'  ' * depth}{event}"
            if isinstance(event, FunctionEntry):
                depth += 1

    def __str__(self) -> str:
        return "\n".join(self.lines())
