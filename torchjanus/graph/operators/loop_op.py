"""The two operators that stand for a loop in a graph: its iterations forward, and its iterations backward (JANUS
4.2.1).

They name what to run by a key and say what they give in a text, so that a compiler in another process, which knows
nothing of the loop, can see the shapes. Who runs the iterations is registered here by whoever can.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch

from torchjanus.core.errors import InternalFault

__all__ = [
    "BACKWARD",
    "FORWARD",
    "FORWARD_RANDOM",
    "TAGS",
    "UNTIL",
    "UNTIL_BACKWARD",
    "UNTIL_RANDOM",
    "Given",
    "LoopRunner",
    "Size",
    "TerminatedLoopRunner",
    "are_own",
    "claim_keys",
    "compiled_key",
    "define",
    "describe",
    "is_loop",
    "is_until",
    "keys_in",
    "known_iterations",
    "new_key",
    "own_keys",
    "register",
    "reserve_keys",
    "runners_of",
    "shapes_of",
]


class LoopRunner(Protocol):
    """Runs a loop's iterations. Both return new tensors only, which share no memory with each other or what they take.
    ``sizes``: those that change from call to call, by the numbers of ``Size``."""

    def forward(
        self,
        count: int,
        carried: Sequence[torch.Tensor],
        stacked: Sequence[torch.Tensor],
        invariants: Sequence[torch.Tensor],
        sizes: Sequence[int] = (),
    ) -> list[torch.Tensor]:
        """The carried values after the last iteration, then all iterations' outputs, each stacked."""
        ...

    def backward(
        self,
        count: int,
        present: str,
        tangents: Sequence[torch.Tensor],
        kept: Sequence[torch.Tensor],
        sizes: Sequence[int] = (),
    ) -> list[torch.Tensor]:
        """The gradients. ``present`` says of each differentiable output whether it has a tangent."""
        ...


class TerminatedLoopRunner(LoopRunner, Protocol):
    """Runs iterations until a tensor ends them, too."""

    def until(
        self,
        go: bool,
        limit: int,
        ready: Sequence[torch.Tensor],
        carried: Sequence[torch.Tensor],
        stacked: Sequence[torch.Tensor],
        invariants: Sequence[torch.Tensor],
        sizes: Sequence[int] = (),
    ) -> list[torch.Tensor]:
        """Iterations as long as the last output is ``go``, ``limit`` at most unless that is -1, and none unless all of
        ``ready`` are true. The carried values after the last iteration, that iteration's outputs, how many there were.
        Raises IndexError where an iteration is without a row, as eager does."""
        ...

    def until_backward(
        self,
        count: int,
        present: str,
        tangents: Sequence[torch.Tensor],
        carried: Sequence[torch.Tensor],
        stacked: Sequence[torch.Tensor],
        invariants: Sequence[torch.Tensor],
        sizes: Sequence[int] = (),
    ) -> list[torch.Tensor]:
        """The gradients of so many iterations, which are made once more for it: what they leave depends on their
        number, and so is not handed from operator to operator. Of what is stacked they are zeros in rows that no
        iteration took."""
        ...


@dataclass(frozen=True, slots=True)
class Size:
    """A size that changes from call to call: its place among those that an operator is handed."""

    index: int

    def __str__(self) -> str:
        return f"s{self.index}"


CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Given:
    """What one tensor that an operator gives is like; ``stacked``: with the iterations as its first dimension."""

    dtype: torch.dtype
    size: tuple[Any, ...]  # numbers, and Sizes
    stacked: bool
    device: torch.device = CPU

    def sized(self, sizes: Sequence[int]) -> Given:
        """The same with these sizes in place of those that change."""
        return replace(self, size=tuple(sizes[s.index] if isinstance(s, Size) else s for s in self.size))

    def zeros(self) -> torch.Tensor:
        """Zeros like it."""
        return torch.zeros(self.size, dtype=self.dtype, device=self.device)

    def empty(self, rows: int) -> torch.Tensor:
        """Memory for so many rows of it."""
        return torch.empty((rows, *self.size), dtype=self.dtype, device=self.device)

    def __str__(self) -> str:
        # No quotes and no backslashes: Inductor writes it into C++ as it is.
        text = f"{self.dtype}|{'n' if self.stacked else '1'}|{','.join(map(str, self.size))}"
        return text if self.device == CPU else f"{text}|{self.device}"


_next = 0  # goes up only
_RESERVED = 8192  # for the loops of one program: twice as many as can be
_KEYED: WeakValueDictionary[int, Any] = WeakValueDictionary()
_DTYPES = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}


def new_key() -> int:
    """A key for the iterations of one more loop."""
    global _next
    _next += 2
    return _next - 2


def reserve_keys() -> int:
    """The first of many keys that nobody will have but one program's loops, which another process makes."""
    first = _next
    claim_keys(first)
    return first


def claim_keys(first: int) -> bool:
    """Reserve just those keys that begin with this one, for loops which have them already; whether they are free. A
    program that is run again has its keys in the same order."""
    global _next
    if first < _next:
        return False
    _next = first + _RESERVED
    return True


@contextmanager
def own_keys(first: int | None = None) -> Iterator[int]:
    """Loops that are made in here have reserved keys; gives the first. ``first``: somebody has reserved these."""
    global _next
    first = _next if first is None else first
    _next = max(_next, first)
    yield first
    _next = max(_next, first + _RESERVED)


def keys_in(graph: torch.fx.GraphModule) -> Iterator[tuple[torch.fx.Node, int]]:
    """The nodes of a graph that name something by a key, each with it."""
    for node in graph.graph.nodes:
        if getattr(node.target, "namespace", "") == "torchjanus" and node.target._schema.arguments[0].name == "key":
            yield node, node.args[0]


def are_own(keys: Iterable[int], first: int) -> bool:
    """Whether these are all among the keys that are reserved with that one."""
    return all(first <= key < first + _RESERVED for key in keys)


def compiled_key(key: int) -> int:
    """The key of the same iterations, run by a compiler's code."""
    return key + 1


def register(key: int, iterations: LoopRunner) -> None:
    """From now on ``key`` stands for these iterations, as long as they live."""
    _KEYED[key] = iterations


def known_iterations(key: int) -> LoopRunner | None:
    """Who runs the iterations that ``key`` stands for, if anybody does."""
    return _KEYED.get(key)


def runners_of(key: int) -> LoopRunner:
    """Who runs the iterations that ``key`` stands for."""
    found = _KEYED.get(key)
    if found is None:
        raise InternalFault(f"nobody runs the iterations of loop {key}")
    return found  # type: ignore[no-any-return]


def describe(given: Sequence[Given]) -> str:
    """The text by which an operator says what it gives."""
    return ";".join(map(str, given))


def is_loop(target: object) -> bool:
    """Whether a node's target is one of the operators for loops of known trip counts."""
    return target in (FORWARD, FORWARD_RANDOM, BACKWARD)


def is_until(target: object) -> bool:
    """Whether a node's target is one of the operators for iterations forward until a tensor ends them."""
    return target in (UNTIL, UNTIL_RANDOM)


def shapes_of(text: str, count: Any, known: Sequence[Any] = ()) -> list[torch.Tensor]:
    """Tensors like those that the text describes. ``count``: how many rows those have that are stacked, all of them or
    one after the other."""
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


def _forward(
    key: int, gives: str, count: int, carried: Any, stacked: Any, invariants: Any, sizes: Any
) -> list[torch.Tensor]:
    return runners_of(key).forward(count, carried, stacked, invariants, sizes)


def _backward(
    key: int, gives: str, count: int, present: str, tangents: Any, kept: Any, sizes: Any
) -> list[torch.Tensor]:
    return runners_of(key).backward(count, present, tangents, kept, sizes)


def _forward_shapes(
    key: int, gives: str, count: int, carried: Any, stacked: Any, invariants: Any, sizes: Any
) -> list[torch.Tensor]:
    return shapes_of(gives, count, sizes)


def _backward_shapes(
    key: int, gives: str, count: int, present: str, tangents: Any, kept: Any, sizes: Any
) -> list[torch.Tensor]:
    return shapes_of(gives, count, sizes)


_UNTIL = (
    "(int key, str gives, bool go, SymInt limit, Tensor[] ready, Tensor[] carried, Tensor[] stacked,"
    " Tensor[] invariants, SymInt[] sizes) -> Tensor[]"
)
_UNTIL_BACKWARD = (
    "(int key, str gives, str present, Tensor count, Tensor[] tangents, Tensor[] carried, Tensor[] stacked,"
    " Tensor[] invariants, SymInt[] rows, SymInt[] sizes) -> Tensor[]"
)


def _until_iterations(key: int) -> TerminatedLoopRunner:
    return runners_of(key)  # type: ignore[return-value]


def _until(
    key: int, gives: str, go: bool, limit: int, ready: Any, carried: Any, stacked: Any, invariants: Any, sizes: Any
) -> list[torch.Tensor]:
    return _until_iterations(key).until(go, limit, ready, carried, stacked, invariants, sizes)


def _until_backward(
    key: int,
    gives: str,
    present: str,
    count: torch.Tensor,
    tangents: Any,
    carried: Any,
    stacked: Any,
    invariants: Any,
    rows: Any,
    sizes: Any,
) -> list[torch.Tensor]:
    return _until_iterations(key).until_backward(int(count), present, tangents, carried, stacked, invariants, sizes)


def _until_shapes(
    key: int, gives: str, go: bool, limit: Any, ready: Any, carried: Any, stacked: Any, invariants: Any, sizes: Any
) -> list[torch.Tensor]:
    return [*shapes_of(gives, 1, sizes), torch.empty((), dtype=torch.int64, device=CPU)]


def _until_backward_shapes(
    key: int,
    gives: str,
    present: str,
    count: Any,
    tangents: Any,
    carried: Any,
    stacked: Any,
    invariants: Any,
    rows: Any,
    sizes: Any,
) -> list[torch.Tensor]:
    return shapes_of(gives, list(rows), sizes)


def define(name: str, schema: str, run: Any, shapes: Any, tags: tuple[torch.Tag, ...]) -> torch._ops.OpOverload:
    """An operator of ours."""
    _library.define(name + schema, tags=tags)
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"torchjanus::{name}", shapes, lib=_library)
    return getattr(torch.ops.torchjanus, name).default  # type: ignore[no-any-return]


FORWARD = define("loop", _FORWARD, _forward, _forward_shapes, TAGS)
# The same with iterations that draw random numbers: such a node is never dropped, merged or moved.
FORWARD_RANDOM = define("loop_random", _FORWARD, _forward, _forward_shapes, (*TAGS, torch.Tag.nondeterministic_seeded))
BACKWARD = define("loop_backward", _BACKWARD, _backward, _backward_shapes, TAGS)
UNTIL = define("until", _UNTIL, _until, _until_shapes, TAGS)
UNTIL_RANDOM = define("until_random", _UNTIL, _until, _until_shapes, (*TAGS, torch.Tag.nondeterministic_seeded))
UNTIL_BACKWARD = define("until_backward", _UNTIL_BACKWARD, _until_backward, _until_backward_shapes, TAGS)
