"""What a watched run has done: calls of torch, of recursive functions and of the host, and writes. Plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torchjanus.core.access_path import AccessPath, Step, token_of
from torchjanus.core.errors import NOWHERE, Place
from torchjanus.core.kinds import getattr, isinstance
from torchjanus.trace.effects import WORLD, Effects
from torchjanus.trace.terms import TensorRef, if_chosen, key_token, symbol_token, text_of
from torchjanus.trace.values import Expr

__all__ = [
    "WITHIN",
    "Each",
    "Extern",
    "Invoked",
    "InvokedEach",
    "Mutation",
    "Op",
    "Several",
    "Stored",
    "name_of",
    "place_of",
]


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One call of the torch API. args and kwargs hold TensorRefs, expressions and constants.

    ``func`` is a function, or a mark: where code that autograd calls begins or ends. ``opened``: it was given a list
    from before the call, and read that from end to end. ``lying``: how its results lay in memory, if anybody looked.
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
    opened: bool = False
    lying: tuple[Any, ...] = field(default=(), kw_only=True)

    @property
    def token(self) -> Any:
        outs = tuple(o.number for o in self.outs)
        return ("op", self.name, symbol_token(self.args), symbol_token(self.kwargs), outs, self.modes)

    def __str__(self) -> str:
        words = [text_of(a) for a in self.args] + [f"{k}={text_of(v)}" for k, v in self.kwargs.items()]
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
    own: tuple[AccessPath, ...] = ()

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
    """A call for each element of lists: those that are given for the parameters ``over``. ``iterations``: the calls;
    ``call`` is the trace of the first; ``even``: the lists have to be of one length."""

    over: tuple[str, ...] = ()
    iterations: tuple[Invoked, ...] = ()
    even: bool = False

    @property
    def token(self) -> Any:
        return (Invoked.token.fget(self), self.over, self.even)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """A write to an existing object: an item, an attribute (field), a cell; or a deletion.

    ``chosen``, of writes and calls: the last of its recipes says whether it is made at all."""

    how: str  # item, field, cell, delete-item, delete-field
    base: AccessPath
    key: Any
    value: Any  # the live value, with its expression if it has one
    place: Place = NOWHERE
    chosen: bool = False
    new: bool = False  # nothing was there before

    @property
    def where(self) -> Any:
        """What tells the place."""
        return (self.base.token, key_token(self.key))

    @property
    def token(self) -> Any:
        return ("stored", self.how, self.base.token, key_token(self.key), *if_chosen(self.chosen))

    def __str__(self) -> str:
        return (
            f"write  {self.base}[{text_of(self.key)}] = {text_of(self.value)}"
            if "delete" not in self.how
            else (f"delete {self.base}[{text_of(self.key)}]")
        )


@dataclass(frozen=True, slots=True, eq=False)
class Mutation:
    """A mutating method of an existing container, e.g. ``losses.append(x)``."""

    base: AccessPath
    method: str
    args: tuple[Any, ...]
    owner: type = list  # the class written in C whose method it is
    place: Place = NOWHERE
    chosen: bool = False

    @property
    def token(self) -> Any:
        what = (self.base.token, self.owner.__name__, self.method, len(self.args))
        return ("mutation", *what, *if_chosen(self.chosen))

    def __str__(self) -> str:
        return f"write  {self.base}.{self.method}{text_of(self.args)}"


@dataclass(frozen=True, slots=True, eq=False)
class Extern:
    """A call that only the host can make, exactly once: print, random, NumPy, files, unknown native code.

    ``number``: the index of the run. ``after``: framework calls before it. ``stale``: why it cannot be made
    before the commit, if so. ``draws``: it depends on torch's generator, or changes it. ``late``: it may change memory
    that the framework calls before it read, and must not be made before those; ``overwrites``: memory that anything of
    the run has looked at before, which another attempt has to find as it was. ``changes``: what the program has read
    before the call, and the call may have changed: an attempt that is made again must not find it changed.
    ``handled``: the program might handle its error, so it is made where it stands.
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
    late: bool = False
    overwrites: bool = False
    changes: str = ""
    handled: bool = False

    @property
    def token(self) -> Any:
        return ("extern", token_of(self.func), len(self.args), tuple(self.kwargs), *if_chosen(self.chosen))

    def __str__(self) -> str:
        return f"extern {name_of(self.func)}{text_of(self.args)}"


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


def place_of(event: Stored) -> AccessPath:
    """Where a run would find what it has written."""
    return event.base.then(Step.FIELD, event.key) if event.how == "field" else event.base.item(event.key)


def name_of(func: Any) -> str:
    """How a person would write the function: ``random.random``, ``.read``."""
    name = getattr(func, "__qualname__", None) or getattr(func, "__name__", None) or type(func).__qualname__
    module = getattr(func, "__module__", None)
    plain = not isinstance(module, str) or module in ("builtins", "torchjanus.host.journal") or name.startswith(".")
    return str(name) if plain else f"{module}.{name}"


@dataclass(frozen=True, slots=True, eq=False)
class Each:
    """What each of ``count`` iterations of a loop writes and calls, in order, as the first one does it. Numbers of
    extern calls are those of the first iteration."""

    count: Expr
    events: tuple[Stored | Mutation | Extern, ...]
    place: Place = NOWHERE

    @property
    def token(self) -> Any:
        return ("each", self.count.token, *(event.token for event in self.events))

    @property
    def externs(self) -> int:
        """How many extern calls one iteration makes."""
        return sum(isinstance(event, Extern) for event in self.events)

    def __str__(self) -> str:
        return f"{self.count} times: {'; '.join(map(str, self.events))}"
