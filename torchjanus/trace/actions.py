"""Actions in a trace: calls of torch, of recursive functions and of the host, and writes. Plain data."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torchjanus.core.access_path import AccessPath, Step, token_of
from torchjanus.core.errors import NOWHERE, Place
from torchjanus.core.kinds import getattr, isinstance
from torchjanus.core.trees import leaves_of_kind
from torchjanus.trace.effects import WORLD, Effects
from torchjanus.trace.terms import TensorRef, if_chosen, key_token, symbol_token, text_of
from torchjanus.trace.values import Expr

__all__ = [
    "WITHIN", "BatchedExtern", "ContainerMutation", "Extern", "HeapWrite", "HostLoop", "InvokeEachOp", "InvokeOp", "Op",
    "name_of", "place_of",
]  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One call of the torch API. ``args`` and ``kwargs`` hold TensorRefs, expressions and constants.

    ``func`` is a function, or a mark at which code that autograd calls begins or ends. ``opened``: it read all of a
    list from before the call. ``layouts``: the strides of its results, if recorded.
    """

    func: Any
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outs: tuple[TensorRef, ...]
    modes: Any
    place: Place = NOWHERE
    draws: bool = False  # it consumed random numbers
    checks: bool = False  # it may raise on some values: an index out of range, a singular matrix
    opened: bool = False
    layouts: tuple[Any, ...] = field(default=(), kw_only=True)

    @property
    def inputs(self) -> tuple[TensorRef, ...]:
        """The tensors among the arguments, each as often as it occurs."""
        return tuple(leaves_of_kind((self.args, self.kwargs), TensorRef))

    @property
    def token(self) -> Any:
        outs = tuple(o.number for o in self.outs)
        return ("op", self.name, symbol_token(self.args), symbol_token(self.kwargs), outs, self.modes)

    def __str__(self) -> str:
        words = [text_of(a) for a in self.args] + [f"{k}={text_of(v)}" for k, v in self.kwargs.items()]
        outs = ", ".join(map(str, self.outs))
        return f"op     {outs + ' = ' if outs else ''}{self.name}({', '.join(words)})"


WITHIN = "within"  # in ``callee``: precedes the enclosing variables that distinguish closures of one code object


@dataclass(frozen=True, slots=True, eq=False)
class InvokeOp(Op):
    """A call of a recursive function, recorded as a trace of its own in ``call`` (JANUS, section 4.2.1: InvokeOp).

    ``args``: tensor arguments. ``outs``: tensors that it returns. ``callee``: identifies the function and everything
    that is the same in all its calls. ``given``: the recipes of varying arguments, by parameter. ``made``: the
    structure of the result. ``kwargs``: for a call by the step, the tensors that all calls share, and the step's own
    tensors that they read at the access paths ``own``. ``grown``: per output list of the step its number and the
    appended tensors. ``counted``: per accumulated number the recipe of its value before the first call.
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
class InvokeEachOp(InvokeOp):
    """One call per element of the lists that are passed for the parameters ``over``. ``iterations``: the calls;
    ``call``: the trace of the first; ``even``: the lists must have one length."""

    over: tuple[str, ...] = ()
    iterations: tuple[InvokeOp, ...] = ()
    even: bool = False

    @property
    def token(self) -> Any:
        return (InvokeOp.token.fget(self), self.over, self.even)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True, eq=False)
class HeapWrite:
    """A heap write: an item, an attribute (field) or a cell of an object from before the call is set or deleted.

    ``chosen``, of writes and calls: the last of the event's recipes decides whether it is made."""

    how: str  # item, field, cell, delete-item, delete-field
    base: AccessPath
    key: Any
    value: Any  # the live value, with its expression if it has one
    place: Place = NOWHERE
    chosen: bool = False
    new: bool = False  # nothing was there before

    @property
    def where(self) -> Any:
        """What identifies the location."""
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
class ContainerMutation:
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
    """An extern call: only the host can make it, exactly once (print, random, NumPy, files, unknown native code).

    ``number``: its index in the run. ``after``: the number of framework calls before it. ``stale``: why it cannot be
    made before the commit, "" if it can. ``draws``: it uses torch's generator. ``late``: it may change memory that
    earlier framework calls read, and must follow them. ``overwrites``: it may change memory that the run has read; a
    repeated attempt needs the old contents. ``changes``: what the program read before, and the call may have changed.
    ``handled``: the program may handle its error, so it is made in place. ``blind``: code of the program's that it runs
    is known to look at nothing that the step has written before it. ``caller``: makes the call from the program's line.
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
    blind: bool = False
    caller: Any = None

    @property
    def token(self) -> Any:
        return ("extern", token_of(self.func), len(self.args), tuple(self.kwargs), *if_chosen(self.chosen))

    def __str__(self) -> str:
        return f"extern {name_of(self.func)}{text_of(self.args)}"


@dataclass(frozen=True, slots=True, eq=False)
class BatchedExtern(Extern):
    """``count`` equal extern calls in a row; the result is the list of their results. They have the numbers from
    ``number`` on, and are the last extern calls of the run."""

    count: Expr | None = None

    @property
    def token(self) -> Any:
        return ("several", Extern.token.fget(self), None if self.count is None else self.count.token)  # type: ignore[attr-defined]

    def __str__(self) -> str:
        return f"{self.count} times: {Extern.__str__(self)}"


def place_of(event: HeapWrite) -> AccessPath:
    """Return the access path of the location that is written."""
    return event.base.then(Step.FIELD, event.key) if event.how == "field" else event.base.item(event.key)


# Functions of torchjanus that stand in for others in reports.
_STANDS_FOR = {
    "torchjanus.semantics.external.extern_calls.take": "next",
    **{f"torchjanus.core.kinds.{name}": name for name in ("getattr", "hasattr", "isinstance")},
}


def name_of(func: Any) -> str:
    """Return the function's name as a person would write it: ``random.random``, ``.read``."""
    name = getattr(func, "__qualname__", None) or getattr(func, "__name__", None) or type(func).__qualname__
    module = getattr(func, "__module__", None)
    plain = not isinstance(module, str) or module in ("builtins", "torchjanus.host.journal") or name.startswith(".")
    full = str(name) if plain else _public(func, str(module), name) or f"{module}.{name}"
    return _STANDS_FOR.get(full, full)


def _public(func: Any, module: str, name: str) -> str | None:
    """Return the name that programs use for a native function which says another one of itself
    (``torch._VariableFunctionsClass.from_numpy``, ``_operator.getitem``); None if there is none."""
    if not isinstance(func, types.BuiltinFunctionType):
        return None
    last = name.rpartition(".")[2]
    return next((f"{one}.{last}" for one in (module.removeprefix("_"), module) if _holds(one, last, func)), None)


def _holds(module: str, name: str, func: Any) -> bool:
    found = sys.modules.get(module)
    return (
        isinstance(found, types.ModuleType) and types.ModuleType.__getattribute__(found, "__dict__").get(name) is func
    )


@dataclass(frozen=True, slots=True, eq=False)
class HostLoop:
    """A host loop at commit: the writes and extern calls of each of ``count`` iterations, in order, in the form of the
    first iteration. Extern calls have the numbers of the first iteration."""

    count: Expr
    events: tuple[HeapWrite | ContainerMutation | Extern, ...]
    place: Place = NOWHERE

    @property
    def token(self) -> Any:
        return ("each", self.count.token, *(event.token for event in self.events))

    @property
    def externs(self) -> int:
        """The number of extern calls of one iteration."""
        return sum(isinstance(event, Extern) for event in self.events)

    def __str__(self) -> str:
        return f"{self.count} times: {'; '.join(map(str, self.events))}"
