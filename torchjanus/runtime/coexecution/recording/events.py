"""One call of a step as torch saw it: its calls of torch's functions in order, and the tensors it took from outside.

Plain data; knows neither how it is recorded nor how it is served.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import torch

from torchjanus.core.errors import NOWHERE, Place
from torchjanus.core.trees import leaves_of_kind, map_leaves
from torchjanus.graph.ir.program import Ref
from torchjanus.runtime.coexecution.recording.arrays import Shown
from torchjanus.trace.layout import ResultLayout
from torchjanus.trace.modes import Modes

__all__ = [
    "ARITHMETIC",
    "Event",
    "External",
    "Kind",
    "Meta",
    "Provenance",
    "Trace",
    "exact",
    "exact_tree",
    "here",
    "is_constant",
    "meta_of",
]


ARITHMETIC = frozenset(
    """add sub mul div rsub true_divide add_ sub_ mul_ div_ __add__ __radd__ __iadd__ __sub__ __rsub__ __isub__ __mul__
    __rmul__ __imul__ __truediv__ __rtruediv__ __itruediv__ __rdiv__""".split()
)


class Kind(Enum):
    """What a call of torch is to co-execution."""

    OPERATOR = "operator"  # a node of the graph
    QUERY = "query"  # what a tensor is: the answer is the same whenever the path is
    STATE = "state"  # a switch of torch's own state: always really made
    FETCH = "fetch"  # Python reads contents: the graph has to have run so far
    HOST = "host"  # makes a tensor from Python data, or one whose size depends on contents: always really made


class Provenance(Enum):
    """Where a tensor that the step did not compute comes from."""

    FOUND = "found"  # an argument of a call of torch, met for the first time
    GRADIENT = "gradient"  # the ``.grad`` that a leaf had when it was met
    HOST = "host"  # the result of a HOST event


@dataclass(frozen=True, slots=True)
class Meta:
    """A tensor's metadata: all but its contents. It is constant on a path."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    is_leaf: bool


def meta_of(tensor: torch.Tensor) -> Meta:
    """Return the tensor's metadata."""
    return Meta(
        tuple(tensor.size()), tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad, tensor.is_leaf
    )


@dataclass(frozen=True, slots=True)
class Event:
    """One call. ``args``, ``kwargs`` and ``result`` are trees in which tensors are Refs, by number. ``outs``: the
    tensors of the result; ``made``: the metadata of the new ones among them; ``layouts``: theirs. ``shown``: for a
    FETCH whose result shares memory with the tensor, the layout of that. ``draws``: it advanced a random generator."""

    kind: Kind
    func: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    outs: tuple[Ref, ...]
    modes: Modes
    place: Place
    made: dict[int, Meta] = field(default_factory=dict)
    layouts: tuple[ResultLayout, ...] = ()
    shown: Shown | None = None
    draws: bool = False
    container: type | None = None  # the class of the result, where it is one of torch's own named tuples

    @property
    def token(self) -> tuple[Any, ...]:
        """What is equal wherever this event is the same: all but its numbers, and what a FETCH gave."""
        result = None if self.kind is Kind.FETCH else exact_tree(self.result)
        given = self.form((self.args, self.kwargs), lambda ref: ref.index)
        made = tuple(self.made.items())
        return self.kind, self.func, given, result, self.outs, self.modes, made, self.draws, self.container

    def is_number(self, leaf: Any) -> bool:
        """Whether an argument is a number that may vary: a float, or an integer that is computed with."""
        return type(leaf) is float or (type(leaf) is int and self.is_arithmetic)

    @property
    def is_arithmetic(self) -> bool:
        """Whether an integer among the arguments is an operand, and shapes nothing."""
        return self.kind is Kind.OPERATOR and self.name.rpartition(".")[2] in ARITHMETIC

    @property
    def numbers(self) -> list[float | int]:
        """The numbers among the arguments that may vary, in order."""
        found: list[float | int] = []
        map_leaves((self.args, self.kwargs), lambda leaf: found.append(leaf) if self.is_number(leaf) else None)
        return found

    def with_numbers(self, values: Iterable[float | int]) -> Event:
        """Return the event with these numbers."""
        rest = iter(values)
        args, kwargs = map_leaves((self.args, self.kwargs), lambda leaf: next(rest) if self.is_number(leaf) else leaf)
        return replace(self, args=args, kwargs=kwargs)

    def form(self, tree: Any, number_of: Callable[[Ref], int]) -> Any:
        """Return a hashable form of a tree, without the numbers that may vary, and with other numbers of tensors."""

        def leaf(value: Any) -> Any:
            if type(value) is Ref:
                return Ref, number_of(value)
            return type(value) if self.is_number(value) else exact(value)

        return _form(tree, leaf)

    @property
    def inputs(self) -> list[int]:
        """The numbers of the tensors among the arguments."""
        return [ref.index for ref in leaves_of_kind((self.args, self.kwargs), Ref)]


@dataclass(frozen=True, slots=True)
class External:
    """A tensor from outside. ``first``: the event that it is met at; ``owner``: the leaf of which it is the gradient;
    ``argument``: it is one of the step's arguments. ``shared``: its memory may belong to an array as well."""

    number: int
    provenance: Provenance
    meta: Meta
    first: int
    owner: int = -1
    argument: bool = False
    shared: bool = False
    parameter: bool = False

    @property
    def token(self) -> tuple[Any, ...]:
        """What is equal in all traces of a path."""
        return (
            self.number,
            self.provenance,
            self.meta,
            self.first,
            self.owner,
            self.argument,
            self.shared,
            self.parameter,
        )


@dataclass(slots=True)
class Trace:
    """One whole call. ``tensors``: by number, of those that live on; ``escapes``: the numbers of computed tensors that
    are alive after it; ``bound``: of those whose memory an array showed, and that lives on in another tensor.
    ``nodes``: by number, the names of the autograd nodes of those that live on."""

    events: list[Event]
    externals: dict[int, External]
    tensors: dict[int, torch.Tensor]
    escapes: tuple[int, ...] = ()
    bound: tuple[int, ...] = ()
    modules: frozenset[str | None] = frozenset()  # whose code ran
    sections: tuple[Any, ...] = ()  # its composite calls, see ``composites.Section``
    nodes: dict[int, str] = field(default_factory=dict)

    @property
    def token(self) -> tuple[Any, ...]:
        """What identifies its path: all but the numbers, and the tensors from outside as objects."""
        return tuple(event.token for event in self.events), tuple(one.token for one in self.externals.values())


def is_constant(value: Any) -> bool:
    """Whether it may stand in a path as it is."""
    return value is None or value is Ellipsis or type(value) in _CONSTANTS


_CONSTANTS = (
    bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None)
)  # fmt: skip


def exact(value: Any) -> Any:
    """Return a hashable form of a constant, equal for two exactly if they have the same type and bits."""
    return (type(value), repr(value)) if type(value) in (float, complex) else (type(value), value)


def exact_tree(tree: Any) -> Any:
    """Return a hashable form of a tree."""
    return _form(tree, exact)


def _form(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    if type(tree) in (tuple, list, torch.Size):
        return (type(tree), *(_form(part, leaf) for part in tree))
    if type(tree) is dict:
        return (dict, *((key, _form(part, leaf)) for key, part in tree.items()))
    if type(tree) is slice:
        return (slice, *(_form(part, leaf) for part in (tree.start, tree.stop, tree.step)))
    return leaf(tree)


def here() -> Place:
    """Return the line of the program that is being run."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        place = Place(frame.f_code.co_filename, frame.f_lineno, function=frame.f_code.co_name)
        if not place.is_library and not place.file.startswith("<"):
            return place
        frame = frame.f_back
    return NOWHERE
