"""What a watched run did, in order: framework calls, reads, writes, decisions, calls. Plain data that prints itself.

Every event has a ``token``: two runs took the same path when their tokens agree. Numbers read from the heap and the
identity of objects are left out of it, since generalising decides what to make of their difference.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from torchjanus.errors import NOWHERE, Place, Refusal
from torchjanus.origin import Origin, token_of
from torchjanus.trace.effects import WORLD, Effects
from torchjanus.trace.values import Apply, Expr, Traced

__all__ = [
    "ANYTHING",
    "WITHIN",
    "Absent",
    "Asserted",
    "Decision",
    "Each",
    "Entered",
    "Event",
    "Extern",
    "Filled",
    "Found",
    "Frames",
    "Held",
    "Instance",
    "Invoked",
    "InvokedEach",
    "Keys",
    "Left",
    "Loop",
    "Mutation",
    "Op",
    "Pinned",
    "Plain",
    "Rounds",
    "Same",
    "Several",
    "Stored",
    "TensorRef",
    "Trace",
    "Trips",
    "Turns",
    "Until",
    "name_of",
    "symbol_token",
]


ANYTHING = ("anything",)  # among what a program has looked at


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor of the run by its number, in the order in which the run met them."""

    number: int

    def __repr__(self) -> str:
        return f"%{self.number}"


def symbol_token(value: Any) -> Any:
    """The token of an argument structure whose leaves are TensorRefs, expressions and constants."""
    if isinstance(value, TensorRef):
        return ("tensor", value.number)
    if isinstance(value, Expr):
        return value.token
    if isinstance(value, tuple | list):
        return (type(value).__name__, *(symbol_token(v) for v in value))
    if isinstance(value, dict):
        return ("dict", *((token_of(k), symbol_token(v)) for k, v in value.items()))
    if isinstance(value, slice):
        return ("slice", symbol_token(value.start), symbol_token(value.stop), symbol_token(value.step))
    return token_of(value)


def _key_token(key: Any) -> Any:
    return key.expr.token if isinstance(key, Traced) else token_of(key)


def _if_chosen(chosen: bool) -> tuple[str, ...]:
    return ("chosen",) if chosen else ()


def _text(value: Any) -> str:
    if isinstance(value, Traced):
        return str(value.expr)
    if isinstance(value, tuple | list):
        return "(" + ", ".join(_text(v) for v in value) + ")"
    if isinstance(value, TensorRef | Expr):
        return str(value)
    text = repr(value) if isinstance(value, int | float | str | type(None)) else f"<{type(value).__name__}>"
    return text if len(text) <= 40 else text[:37] + "..."


def _without_sizes(detail: tuple[Any, ...]) -> tuple[Any, ...]:
    """What is known of a tensor but for its sizes: generalising decides what to make of those."""
    cls, dtype, shape, strides, *others = detail
    return (cls, dtype, len(shape), strides if isinstance(strides, str) else None, *others)


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A read that saw the heap as it was before the call, or what an extern call gave.

    ``kind``: number (texts that extern calls gave, too), constant, tensor, pinned, object, or foreign: an object that
    only foreign code understands.
    """

    origin: Origin
    value: Any
    kind: str
    detail: Any = None  # tensors: their metadata; objects: their type
    kept: bool = False  # its owner never puts another object there
    place: Place = NOWHERE

    @property
    def token(self) -> Any:
        match self.kind:
            case "number":
                what: Any = type(self.value).__name__
            case "constant" | "pinned":
                what = token_of(self.value)
            case "tensor":
                what = _without_sizes(self.detail)
            case _:
                what = self.detail
        return ("found", self.origin.token, self.kind, what)

    def __str__(self) -> str:
        shown = self.detail if self.kind == "tensor" else _text(self.value)
        return f"read   {self.origin} -> {shown}"


@dataclass(frozen=True, slots=True, eq=False)
class Absent:
    """``key`` was not (``present`` False) or was in the container at ``base`` before the call."""

    base: Origin
    key: Any
    present: bool = False
    place: Place = NOWHERE

    @property
    def token(self) -> Any:
        return ("absent", self.base.token, _key_token(self.key), self.present)

    def __str__(self) -> str:
        key = _text(self.key)
        return f"read   {key} {'in' if self.present else 'not in'} {self.base}"


@dataclass(frozen=True, slots=True, eq=False)
class Filled:
    """Whether the container at ``origin`` had any elements."""

    origin: Origin
    filled: bool
    place: Place = NOWHERE

    @property
    def token(self) -> Any:
        return ("filled", self.origin.token, self.filled)

    def __str__(self) -> str:
        return f"read   {self.origin} is {'not ' if self.filled else ''}empty"


@dataclass(frozen=True, slots=True, eq=False)
class Keys:
    """The keys of a dictionary (or the elements of a set), in iteration order."""

    origin: Origin
    keys: tuple[Any, ...]
    place: Place = NOWHERE

    @property
    def token(self) -> Any:
        return ("keys", self.origin.token, *(token_of(k) for k in self.keys))

    def __str__(self) -> str:
        return f"read   keys of {self.origin}: {_text(self.keys)}"


@dataclass(frozen=True, slots=True, eq=False)
class Same:
    """Whether two paths led to one object."""

    first: Origin
    second: Origin
    same: bool
    place: Place = NOWHERE

    @property
    def token(self) -> Any:
        return ("same", self.first.token, self.second.token, self.same)

    def __str__(self) -> str:
        return f"assume {self.first} is {'' if self.same else 'not '}{self.second}"


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """A recursive call asked whether what it found is of one of these classes, or of one derived from them."""

    origin: Origin
    classes: type | tuple[type, ...]
    outcome: bool
    place: Place = NOWHERE

    @property
    def token(self) -> Any:
        return ("instance", self.origin.token, token_of(self.classes), self.outcome)

    def __str__(self) -> str:
        return f"assume {self.origin} is {'' if self.outcome else 'not '}of {_text(self.classes)}"


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A condition on traced numbers came out as ``outcome``."""

    expr: Expr
    outcome: bool
    place: Place = NOWHERE

    @property
    def token(self) -> Any:
        return ("held", self.expr.token, self.outcome)

    def __str__(self) -> str:
        return f"assume {self.expr} is {self.outcome}"


@dataclass(frozen=True, slots=True, eq=False)
class Pinned:
    """A traced number went where only its value counts (an index, a size, code that is not watched)."""

    expr: Expr
    value: Any
    place: Place = NOWHERE
    why: str = ""

    @property
    def token(self) -> Any:
        return ("pinned", self.expr.token, token_of(self.value))

    def __str__(self) -> str:
        return f"assume {self.expr} == {self.value!r} ({self.why})"


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """Python computed a number or a text, which might have raised. A graph computes it again, used or not."""

    expr: Expr
    place: Place = NOWHERE

    @property
    def token(self) -> Any:
        return ("computed", self.expr.token)

    def __str__(self) -> str:
        return f"assume {self.expr} does not raise"


@dataclass(frozen=True, slots=True, eq=False)
class Asserted:
    """``bool(tensor)`` after ``after`` framework calls."""

    ref: TensorRef
    outcome: bool
    after: int
    place: Place = NOWHERE

    @property
    def token(self) -> Any:
        return ("asserted", self.ref.number, self.outcome)

    def __str__(self) -> str:
        return f"assert bool({self.ref}) is {self.outcome}"


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One call of the torch API. args and kwargs hold TensorRefs, expressions and constants.

    ``func`` is a function, or a mark: where code that autograd calls begins or ends.
    """

    func: Any
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outs: tuple[TensorRef, ...]
    modes: Any
    place: Place = NOWHERE
    draws: bool = False  # it drew random numbers
    checks: bool = False  # it raises on some values: an index out of range, a matrix that cannot be decomposed

    @property
    def token(self) -> Any:
        outs = tuple(o.number for o in self.outs)
        return ("op", self.name, symbol_token(self.args), symbol_token(self.kwargs), outs, self.modes)

    def __str__(self) -> str:
        words = [_text(a) for a in self.args] + [f"{k}={_text(v)}" for k, v in self.kwargs.items()]
        outs = ", ".join(map(str, self.outs))
        return f"op     {outs + ' = ' if outs else ''}{self.name}({', '.join(words)})"


WITHIN = "within"  # begins what tells functions of one code apart in ``callee``: the variables that they share


@dataclass(frozen=True, slots=True, eq=False)
class Invoked(Op):
    """A call of a recursive function, which is watched as a run of its own: ``call`` is the trace of that.

    ``args`` are the tensors that it was given, ``outs`` those that it returned. ``callee`` says which function it is,
    with all that is the same in every call of it; ``given`` are the recipes of what changes from call to call, by
    parameter; ``made`` is what the result looks like. ``kwargs`` names, for the step itself, the tensors that all calls
    share, and those of its own that they find at ``own``. ``grown``: of each list of the step to which calls append,
    its number and what they have appended; ``counted``: of those that stand for a number that calls count, the recipe
    of what that was before the first of them.
    """

    callee: Any = None
    given: tuple[tuple[str, Any], ...] = ()
    made: Any = None
    call: Any = None  # a Trace
    grown: tuple[tuple[int, tuple[TensorRef, ...]], ...] = ()
    counted: tuple[tuple[int, Any], ...] = ()
    own: tuple[Origin, ...] = ()

    @property
    def token(self) -> Any:
        given = tuple((name, recipe.token) for name, recipe in self.given)
        outs = tuple(o.number for o in self.outs)
        grown = tuple((number, *(ref.number for ref in refs)) for number, refs in self.grown)
        own = tuple(ref.number for ref in self.kwargs.get("own", ()))
        counted = tuple((number, recipe.token) for number, recipe in self.counted)
        return ("invoked", self.callee, given, outs, self.made, self.modes, grown, counted, own)

    def __str__(self) -> str:
        outs = ", ".join(map(str, self.outs))
        return f"invoke {outs + ' = ' if outs else ''}{self.name}({', '.join(name for name, _ in self.given)})"


@dataclass(frozen=True, slots=True, eq=False)
class InvokedEach(Invoked):
    """A call for each element of lists: those that are given for the parameters ``over``. ``rounds``: the calls;
    ``call`` is the trace of the first; ``even``: the lists have to be of one length."""

    over: tuple[str, ...] = ()
    rounds: tuple[Invoked, ...] = ()
    even: bool = False

    @property
    def token(self) -> Any:
        return (Invoked.token.fget(self), self.over, self.even)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """A write to an existing object: an item, an attribute (field), a cell; or a deletion.

    ``chosen``, of writes and calls: the last of its recipes says whether it is made at all."""

    how: str  # item, field, cell, delete-item, delete-field
    base: Origin
    key: Any
    value: Any  # the live value, with its expression if it has one
    place: Place = NOWHERE
    chosen: bool = False

    @property
    def token(self) -> Any:
        return ("stored", self.how, self.base.token, _key_token(self.key), *_if_chosen(self.chosen))

    def __str__(self) -> str:
        return (
            f"write  {self.base}[{_text(self.key)}] = {_text(self.value)}"
            if "delete" not in self.how
            else (f"delete {self.base}[{_text(self.key)}]")
        )


@dataclass(frozen=True, slots=True, eq=False)
class Mutation:
    """A mutating method of an existing container, e.g. ``losses.append(x)``."""

    base: Origin
    method: str
    args: tuple[Any, ...]
    owner: type = list  # the class written in C whose method it is
    place: Place = NOWHERE
    chosen: bool = False

    @property
    def token(self) -> Any:
        what = (self.base.token, self.owner.__name__, self.method, len(self.args))
        return ("mutation", *what, *_if_chosen(self.chosen))

    def __str__(self) -> str:
        return f"write  {self.base}.{self.method}{_text(self.args)}"


@dataclass(frozen=True, slots=True, eq=False)
class Extern:
    """A call that only the host can make, exactly once: print, random, NumPy, files, unknown native code.

    ``number``: the how-manieth of the run. ``after``: framework calls before it. ``stale``: why it cannot be made
    before the commit, if so. ``draws``: it depends on torch's generator, or changes it.
    """

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    place: Place = NOWHERE
    number: int = 0
    after: int = 0
    effects: Effects = WORLD
    stale: str = ""
    draws: bool = False
    chosen: bool = False

    @property
    def token(self) -> Any:
        return ("extern", token_of(self.func), len(self.args), tuple(self.kwargs), *_if_chosen(self.chosen))

    def __str__(self) -> str:
        return f"extern {name_of(self.func)}{_text(self.args)}"


@dataclass(frozen=True, slots=True, eq=False)
class Several(Extern):
    """One after the other as many calls as ``count`` says, all alike: what they gave is a list. Those of ``number`` and
    the numbers behind it; no extern call comes after them."""

    count: Expr | None = None

    @property
    def token(self) -> Any:
        return ("several", Extern.token.fget(self), None if self.count is None else self.count.token)  # type: ignore[attr-defined]

    def __str__(self) -> str:
        return f"{self.count} times: {Extern.__str__(self)}"


def name_of(func: Any) -> str:
    """How a person would write the function: ``random.random``, ``.read``."""
    name = getattr(func, "__qualname__", None) or getattr(func, "__name__", None) or type(func).__qualname__
    module = getattr(func, "__module__", None)
    plain = not isinstance(module, str) or module in ("builtins", "torchjanus.journal") or name.startswith(".")
    return str(name) if plain else f"{module}.{name}"


@dataclass(frozen=True, slots=True, eq=False)
class Each:
    """What each of ``count`` rounds of a loop writes and calls, in order, as the first one does it. Numbers of extern
    calls are those of the first round."""

    count: Expr
    events: tuple[Stored | Mutation | Extern, ...]
    place: Place = NOWHERE

    @property
    def token(self) -> Any:
        return ("each", self.count.token, *(event.token for event in self.events))

    @property
    def externs(self) -> int:
        """How many extern calls one round makes."""
        return sum(isinstance(event, Extern) for event in self.events)

    def __str__(self) -> str:
        return f"{self.count} times: {'; '.join(map(str, self.events))}"


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """A branch went one way."""

    outcome: bool
    place: Place = NOWHERE

    @property
    def token(self) -> Any:
        return ("decision", self.place.line, self.outcome)

    def __str__(self) -> str:
        return f"branch {self.outcome}"


@dataclass(frozen=True, slots=True, eq=False)
class Trips:
    """A loop came to its end after ``count`` rounds."""

    count: int
    place: Place = NOWHERE

    @property
    def token(self) -> Any:
        return ("trips", self.place.line, self.count)

    def __str__(self) -> str:
        return f"loop   {self.count} rounds"


@dataclass(frozen=True, slots=True)
class Until:
    """A loop goes on as long as a tensor decides ``go``, ``limit`` rounds at most (None: any number)."""

    go: bool
    limit: int | None


@dataclass(frozen=True, slots=True)
class Rounds:
    """A loop that came to its end: before which events its rounds began, before which its last one ended, and how many
    there would be: a number, or as many as a tensor decides.

    Nothing in its rounds was computed by Python from plain numbers, so that no round could tell which one it was; but
    for ``counters``: plain integers that go up by the same step in each round, given by the first round's and the step;
    and for what is ``reckoned`` in the same way in each of them, and decides nothing.
    """

    starts: tuple[int, ...]
    end: int
    count: Expr | Until
    counters: tuple[tuple[int, int], ...] = ()
    skipped: int = 0  # rounds before the first of these, which ``count`` does not count
    begins: int = 0  # the number by which the loop's first round goes: of ``range(1, n)`` it is 1
    back: bool = False  # its numbers go down to 0
    asked: tuple[Expr, ...] = ()  # what has to be true for the rounds to be told as they are
    reckoned: Any = None  # what else was computed with plain numbers, as forms: see ``trace.reckoning``
    least: int = 1  # of fewer rounds something from before the loop would be left where more leave what they have made

    @property
    def first(self) -> int:
        """The number by which the first of these goes."""
        return self.begins + self.skipped

    def counted(self) -> list[int]:
        """What the counters are in the last round."""
        counters = self.counters[self.back :]  # to 0 they go always
        return [first + step * (len(self.starts) - 1) for first, step in counters]

    def without_first(self) -> Rounds:
        """All rounds but the first: where that one does something else, it may be since it begins with a number."""
        assert not isinstance(self.count, Until)
        count = Apply(operator.sub, (self.count, 1))
        counters = tuple((first + step, step) for first, step in self.counters)
        return replace(self, starts=self.starts[1:], count=count, counters=counters, skipped=self.skipped + 1)


@dataclass(frozen=True, slots=True)
class Plain:
    """Before the event with number ``position`` the program's own code computed with these integers, among other
    things; ``total``: of two of them the sum. ``told``: all that it was computed of, where nothing else decides what
    comes out; equal for equal computations, None where that is not known."""

    position: int
    operands: tuple[int, ...]
    total: int | None = None
    told: Any = None
    reals: tuple[float, ...] = ()  # and with these
    where: tuple[int, int] = (0, 0)  # line and column


@dataclass(slots=True)
class Turns:
    """A ``for`` that was begun: before which events its rounds began, and what it went over, if that was a range.
    ``end``: its ``Trips``, None where it was left before its end. ``plain``: how much was computed with plain numbers
    before it; ``own``: whether it went over something that the run had made, and no library did; ``origin``: where else
    that was found; ``given``: what was not found anywhere of what each round was given."""

    starts: list[int]
    over: range | None
    plain: int
    end: int | None = None
    own: bool = False
    origin: Origin | None = None
    given: list[tuple[Any, ...]] = field(default_factory=list)


@dataclass(slots=True)
class Frames:
    """A ``for`` that came to its end, and what the program's variables were before each round and after the last: by
    name ``("tensor", number)``, or what can be compared with what it is another time. Or an ``if`` in which a tensor
    decided (``region``), as a loop of one round.

    ``count``: how many rounds there would be, if that is known; ``counters``: see ``Rounds``; ``plains``: how much had
    been computed with plain numbers before each round and after the last, ``given``: how much native code was given."""

    starts: tuple[int, ...]
    end: int
    states: tuple[dict[Any, Any], ...]
    count: Expr | None
    counters: tuple[tuple[int, int], ...]
    place: Place = NOWHERE
    plains: tuple[int, ...] = ()
    given: tuple[int, ...] = ()
    counting: bool = False  # whether its rounds have computed with plain numbers, and not all of them the same
    region: bool = False
    begun: tuple[Any, ...] = ()  # variables that began with the number 0, and are told as if it were a tensor

    @property
    def begins(self) -> int:
        """The number by which the first round goes, if the rounds of the loop have numbers."""
        return self.counters[0][0] if self.counters and self.counters[0][1] == 1 else 0


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


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of a recursive call, by where its rounds began and ended among the events."""

    place: Place
    starts: tuple[int, ...]
    end: int


Fact = Found | Absent | Filled | Keys | Same | Instance | Held | Pinned | Computed | Asserted
Effectful = Stored | Mutation | Extern
Event = Fact | Op | Effectful | Each | Decision | Trips | Entered | Left


@dataclass(slots=True, eq=False)
class Trace:
    """One watched run. ``result`` is the returned value's recipe and ``recipes`` those of the values that events let
    out, by the event's id; ``alive`` keeps every object whose identity the tokens speak of."""

    events: list[Event] = field(default_factory=list)
    tensors: list[Any] = field(default_factory=list)  # by number; only inputs stay after the run
    origins: dict[int, Origin] = field(default_factory=dict)  # tensor number -> where it was found
    owners: dict[int, Origin] = field(default_factory=dict)  # id(object) -> where it was found
    result: Any = None
    recipes: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    fetched: dict[Any, Any] = field(default_factory=dict)  # what each fetch gave, by its token
    refusals: list[Refusal] = field(default_factory=list)
    alive: list[Any] = field(default_factory=list)
    ambient: Any = None  # torch's modes when the run began
    rounds: list[Rounds] = field(default_factory=list)  # of loops that could be run for another number of rounds
    recursive: dict[Any, frozenset[str]] = field(default_factory=dict)  # code that was entered within itself, and which
    # of its parameters were the same object in all calls
    loops: list[Loop] = field(default_factory=list)
    way: Any = None  # of a recursive call: which of the known ways it took: its number if that was recognised
    flows: Any = None  # of one: to which tensors gradients flow from its results (see graph.way_gradients)
    around: dict[Any, Any] = field(default_factory=dict)  # of one: what it relied on that no call is given
    ways: frozenset[int] | None = None  # of one that was recognised, and not watched: those that it and its calls took
    turns: list[Turns] = field(default_factory=list)  # of all loops over something
    changed: dict[int, frozenset[Any]] = field(default_factory=dict)  # variables, by the event that asked a tensor
    plain: list[Plain] = field(default_factory=list)  # what the program computed with plain numbers
    leasts: tuple[int, ...] = ()  # of a run that was cut down: the fewest rounds of loops that tensors end
    measured: int = -1  # how many events there were when it last asked how much a container of its own holds
    counted: list[tuple[int, Place, int]] = field(default_factory=list)  # by how many events, and where, something was
    # made of how much a container of its own holds, and how much that was
    given: list[Plain] = field(default_factory=list)  # plain numbers that native code was given, for what is no number
    peeked: list[tuple[int, int]] = field(default_factory=list)  # before which event the program looked into which
    # container
    built: dict[int, int] = field(default_factory=dict)  # the numbers of new objects that leave the call, by their id
    pins: dict[Any, int] = field(default_factory=dict)  # how often each expression was pinned, by its token
    failures: int = 0  # how many operations raised, whatever became of it
    looked_at: set[Any] = field(default_factory=set)  # the tokens of what the program has looked at, or ANYTHING
    appends: set[tuple[int, bool]] = field(default_factory=set)  # of a recursive call: to which lists it appends, and
    # whether that has gradients
    frames: list[Frames] = field(default_factory=list)  # of loops over something
    kinds: dict[int, tuple[Any, ...]] = field(default_factory=dict)  # sizes, strides, dtype, device, requires_grad
    memory: list[int] = field(default_factory=list)  # by tensor's number: equal where they lie in the same memory

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
