"""The operators that represent a loop in a graph: its iterations forward and backward (JANUS 4.2.1).

They refer to the iterations by a key and describe their results in a text, so that a compiler in another process, which
does not have the loop, can derive the shapes. Runners of iterations are registered here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

import torch

from torchjanus.core.errors import InternalFault

__all__ = [
    "BACKWARD", "FORWARD", "FORWARD_RANDOM", "TAGS", "UNTIL", "UNTIL_BACKWARD", "UNTIL_RANDOM", "LoopInputs",
    "LoopRunner", "Size", "Tangents", "TensorSignature", "TerminatedLoopRunner", "are_own", "at_places", "claim_keys",
    "compiled_key", "define", "is_loop", "is_until", "keys_in", "known_runner", "new_key", "own_keys", "register",
    "reserve_keys", "runner_for", "runners_of", "shapes_of", "signature_text", "unused_keys",
]  # fmt: skip


class LoopInputs(NamedTuple):
    """What a loop's iterations take: the carried values before the first one, the tensors of which each iteration takes
    a row, and what all of them take."""

    carried: Sequence[torch.Tensor]
    stacked: Sequence[torch.Tensor]
    invariants: Sequence[torch.Tensor]

    def of(self, kind: str) -> Sequence[torch.Tensor]:
        """Return those of a kind: "carried", "stacked" or "invariant"."""
        return self[("carried", "stacked", "invariant").index(kind)]


class Tangents(NamedTuple):
    """What backward iterations take. ``present``: for each differentiable output, "1" if it has a tangent, else "0"."""

    present: str
    tangents: Sequence[torch.Tensor]

    @classmethod
    def of(cls, outputs: Sequence[int], given: Sequence[torch.Tensor | None]) -> Tangents:
        """Return those of these outputs. ``given``: of each output its tangent, None if it has none."""
        found = [given[index] for index in outputs]
        present = "".join("0" if tangent is None else "1" for tangent in found)
        return cls(present, [tangent for tangent in found if tangent is not None])


def at_places(size: int, places: Iterable[int], values: Iterable[Any]) -> list[Any]:
    """Return ``size`` values: these at these places, None elsewhere."""
    found = dict(zip(places, values, strict=True))
    return [found.get(place) for place in range(size)]


class LoopRunner(Protocol):
    """Runs a loop's iterations. Results are new tensors that share no memory with each other or with the operands.

    ``sizes``: the dynamic sizes, by the index of ``Size``."""

    def forward(self, count: int, given: LoopInputs, sizes: Sequence[int] = ()) -> list[torch.Tensor]:
        """Return the carried values after the last iteration, then each output of the iterations, stacked."""
        ...

    def backward(
        self, count: int, flows: Tangents, kept: Sequence[torch.Tensor], sizes: Sequence[int] = ()
    ) -> list[torch.Tensor]:
        """Return the gradients."""
        ...


class TerminatedLoopRunner(LoopRunner, Protocol):
    """Also runs iterations until a tensor ends the loop."""

    def until(
        self, go: bool, limit: int, ready: Sequence[torch.Tensor], given: LoopInputs, sizes: Sequence[int] = ()
    ) -> list[torch.Tensor]:
        """Iterate while the last output is ``go``, at most ``limit`` times (-1: any), and only if ``ready`` are true.

        Return the carried values after the last iteration, that iteration's outputs, and the trip count. Raises
        IndexError where an iteration has no row, as eager does."""
        ...

    def until_backward(
        self, count: int, flows: Tangents, given: LoopInputs, sizes: Sequence[int] = ()
    ) -> list[torch.Tensor]:
        """Return the gradients of ``count`` iterations, which are computed again: the size of saved values would depend
        on the trip count. Gradients of stacked tensors are zero in rows that no iteration read."""
        ...


@dataclass(frozen=True, slots=True)
class Size:
    """A dynamic size: an index into the sizes that an operator takes."""

    index: int

    def __str__(self) -> str:
        return f"s{self.index}"


CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class TensorSignature:
    """The description of a result; ``stacked``: its first dimension is the iterations."""

    dtype: torch.dtype
    size: tuple[Any, ...]  # ints and Sizes
    stacked: bool
    device: torch.device = CPU

    def sized(self, sizes: Sequence[int]) -> TensorSignature:
        """Return the description with these values as sizes."""
        return replace(self, size=tuple(sizes[s.index] if isinstance(s, Size) else s for s in self.size))

    def zeros(self) -> torch.Tensor:
        """Return zeros of this description."""
        return torch.zeros(self.size, dtype=self.dtype, device=self.device)

    def empty(self, rows: int) -> torch.Tensor:
        """Return an uninitialised tensor of ``rows`` rows of this description."""
        return torch.empty((rows, *self.size), dtype=self.dtype, device=self.device)

    def __str__(self) -> str:
        # No quotes and no backslashes: Inductor copies it into C++ text.
        text = f"{self.dtype}|{'n' if self.stacked else '1'}|{','.join(map(str, self.size))}"
        return text if self.device == CPU else f"{text}|{self.device}"


_next = 0  # only increases
_RESERVED = 8192  # for the loops of one program: twice the greatest number
_UNUSED = 1 << 48  # far more than a process ever assigns
_KEYED: WeakValueDictionary[int, Any] = WeakValueDictionary()
_DTYPES = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}


def new_key() -> int:
    """Return an unused key for the iterations of a loop."""
    global _next
    _next += 2
    return _next - 2


def reserve_keys() -> int:
    """Reserve keys for one program's loops, which another process makes; return the first."""
    first = _next
    claim_keys(first)
    return first


def claim_keys(first: int) -> bool:
    """Reserve the keys from ``first`` on, for loops that have them already; return whether they are free.

    A program that is run again assigns its keys in the same order."""
    global _next
    if first < _next:
        return False
    _next = first + _RESERVED
    return True


@contextmanager
def own_keys(first: int | None = None) -> Iterator[int]:
    """A context in which loops get reserved keys; yields the first. ``first``: keys that have been reserved before."""
    global _next
    first = _next if first is None else first
    _next = max(_next, first)
    yield first
    _next = max(_next, first + _RESERVED)


@contextmanager
def unused_keys() -> Iterator[int]:
    """A context in which loops get keys that no other loop has, in any process; yields the first. Afterwards keys are
    assigned as if there had been no loops; so nothing may keep these."""
    global _next
    before = _next
    try:
        yield _UNUSED
    finally:
        _next = before


def keys_in(graph: torch.fx.GraphModule) -> Iterator[tuple[torch.fx.Node, int]]:
    """Yield the nodes of a graph that refer to something by a key, each with its key."""
    for node in graph.graph.nodes:
        if getattr(node.target, "namespace", "") == "torchjanus" and node.target._schema.arguments[0].name == "key":
            yield node, node.args[0]


def are_own(keys: Iterable[int], first: int) -> bool:
    """Whether all keys are within the reservation that begins with ``first``."""
    return all(first <= key < first + _RESERVED for key in keys)


def compiled_key(key: int) -> int:
    """Return the key under which compiled code runs the same iterations."""
    return key + 1


def register(key: int, iterations: LoopRunner) -> None:
    """Let ``key`` refer to these iterations, while they live."""
    _KEYED[key] = iterations


def known_runner(key: int) -> LoopRunner | None:
    """Return the runner of the iterations with this key; None if there is none."""
    return _KEYED.get(key)


def runners_of(key: int) -> LoopRunner:
    """Return the runner of the iterations with this key. Raises InternalFault if there is none."""
    found = _KEYED.get(key)
    if found is None:
        raise InternalFault(f"no runner is registered for loop {key}")
    return found  # type: ignore[no-any-return]


def runner_for(key: int, make: Callable[[], Any]) -> Any:
    """Return the runner of the iterations with this key; if there is none, it is made."""
    found = known_runner(key)
    if found is None:
        found = make()
        register(key, found)
    return found


def signature_text(given: Sequence[TensorSignature]) -> str:
    """Return the text that describes an operator's results."""
    return ";".join(map(str, given))


def is_loop(target: object) -> bool:
    """Whether a node's target is an operator for loops with a known trip count."""
    return target in (FORWARD, FORWARD_RANDOM, BACKWARD)


def is_until(target: object) -> bool:
    """Whether a node's target is a forward operator for loops that a tensor ends."""
    return target in (UNTIL, UNTIL_RANDOM)


def shapes_of(text: str, count: Any, known: Sequence[Any] = ()) -> list[torch.Tensor]:
    """Return empty tensors as described. ``count``: rows of the stacked ones, an int or a list of one int each."""
    rows = iter(count) if isinstance(count, list) else itertools.repeat(count)
    made = []
    for dtype, stacked, sizes, *device in (kind.split("|") for kind in text.split(";") if kind):
        size = [known[int(part[1:])] if part[0] == "s" else int(part) for part in sizes.split(",") if part]
        where = device[0] if device else CPU
        made.append(torch.empty([next(rows), *size] if stacked == "n" else size, dtype=_DTYPES[dtype], device=where))
    return made


_library = torch.library.Library("torchjanus", "FRAGMENT")
TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
_FORWARD = (
    "(int key, str gives, SymInt count, Tensor[] carried, Tensor[] stacked, Tensor[] invariants,"
    " SymInt[] sizes) -> Tensor[]"
)
_BACKWARD = (
    "(int key, str gives, SymInt count, str present, Tensor[] tangents, Tensor[] kept, SymInt[] sizes) -> Tensor[]"
)


def _forward(key: int, gives: str, count: int, *given: Any) -> list[torch.Tensor]:
    *lists, sizes = given
    return runners_of(key).forward(count, LoopInputs(*lists), sizes)


def _backward(
    key: int, gives: str, count: int, present: str, tangents: Any, kept: Any, sizes: Any
) -> list[torch.Tensor]:
    return runners_of(key).backward(count, Tangents(present, tangents), kept, sizes)


def _shapes(key: int, gives: str, count: int, *given: Any) -> list[torch.Tensor]:
    return shapes_of(gives, count, given[-1])


_UNTIL = (
    "(int key, str gives, bool go, SymInt limit, Tensor[] ready, Tensor[] carried, Tensor[] stacked,"
    " Tensor[] invariants, SymInt[] sizes) -> Tensor[]"
)
_UNTIL_BACKWARD = (
    "(int key, str gives, str present, Tensor count, Tensor[] tangents, Tensor[] carried, Tensor[] stacked,"
    " Tensor[] invariants, SymInt[] rows, SymInt[] sizes) -> Tensor[]"
)


def _terminated_runner(key: int) -> TerminatedLoopRunner:
    return runners_of(key)  # type: ignore[return-value]


def _until(key: int, gives: str, go: bool, limit: int, ready: Any, *given: Any) -> list[torch.Tensor]:
    *lists, sizes = given
    return _terminated_runner(key).until(go, limit, ready, LoopInputs(*lists), sizes)


def _until_backward(
    key: int, gives: str, present: str, count: torch.Tensor, tangents: Any, *given: Any
) -> list[torch.Tensor]:
    *lists, _, sizes = given
    flows = Tangents(present, tangents)
    return _terminated_runner(key).until_backward(int(count), flows, LoopInputs(*lists), sizes)


def _until_shapes(key: int, gives: str, *given: Any) -> list[torch.Tensor]:
    return [*shapes_of(gives, 1, given[-1]), torch.empty((), dtype=torch.int64, device=CPU)]


def _until_backward_shapes(key: int, gives: str, *given: Any) -> list[torch.Tensor]:
    *_, rows, sizes = given
    return shapes_of(gives, list(rows), sizes)


def define(name: str, schema: str, run: Any, shapes: Any, tags: tuple[torch.Tag, ...]) -> torch._ops.OpOverload:
    """Define an operator with its fake implementation; return its overload."""
    _library.define(name + schema, tags=tags)
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"torchjanus::{name}", shapes, lib=_library)
    return getattr(torch.ops.torchjanus, name).default  # type: ignore[no-any-return]


FORWARD = define("loop", _FORWARD, _forward, _shapes, TAGS)
# The same for iterations that draw random numbers: such a node is never dropped, merged or moved.
FORWARD_RANDOM = define("loop_random", _FORWARD, _forward, _shapes, (*TAGS, torch.Tag.nondeterministic_seeded))
BACKWARD = define("loop_backward", _BACKWARD, _backward, _shapes, TAGS)
UNTIL = define("until", _UNTIL, _until, _until_shapes, TAGS)
UNTIL_RANDOM = define("until_random", _UNTIL, _until, _until_shapes, (*TAGS, torch.Tag.nondeterministic_seeded))
UNTIL_BACKWARD = define("until_backward", _UNTIL_BACKWARD, _until_backward, _until_backward_shapes, TAGS)
