"""The ways through recursive functions that have been seen, and the recursion that they make together.

Knows what buffers cells share and what rows look like; nothing of trees or of how cells are run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from torchjanus.errors import NOWHERE, Refusal, Refused
from torchjanus.graph.recursion import Buffer, Cell, Column, Recursion
from torchjanus.graph.ways import Part, Way, given_tensors
from torchjanus.origin import Origin
from torchjanus.trace.events import Invoked, Trace

__all__ = ["Assembled", "Repertoire", "assemble"]

MAX_WAYS = 64


class Repertoire:
    """The ways that have been seen, by callee. ``version`` rises with each new one."""

    def __init__(self) -> None:
        self.ways: dict[Any, list[Way]] = {}
        self.version = 0
        self._known: dict[Any, Way] = {}

    def learn(self, trace: Trace) -> None:
        """Take in the recursive calls of one watched run. Raises Refused."""
        waiting = [event for event in trace.events if isinstance(event, Invoked)]
        while waiting:
            event = waiting.pop()
            key = (event.callee, event.call.tokens(), given_tensors(event), event.made)
            way = self._known.get(key)
            if way is None:
                if len(self._known) >= MAX_WAYS:
                    what = f"{MAX_WAYS} ways through {event.name} have been seen, and there are more"
                    raise Refused(Refusal(event.place, what, "A body is made for each.", "Let nodes differ less."))
                way = Way(len(self._known), event)
                self._known[key] = way
                self.ways.setdefault(event.callee, []).append(way)
                self.version += 1
            event.call.way = way
            waiting.extend(inner for inner in event.call.events if isinstance(inner, Invoked))

    def reached(self, callees: Sequence[Any]) -> list[Way]:
        """The ways of these functions, and of those that they call."""
        found: dict[int, Way] = {}
        waiting = list(callees)
        asked = set(waiting)
        while waiting:
            for way in self.ways.get(waiting.pop(0), ()):
                found[way.number] = way
                for site in way.sites:
                    if site.event.callee not in asked:
                        asked.add(site.event.callee)
                        waiting.append(site.event.callee)
        return list(found.values())


@dataclass(slots=True)
class Assembled:
    """A recursion, and how it came about. ``cells``: the way and the part that each is; ``buffers``: the number of each
    by its key; ``shared``: where the step finds the tensors that all calls share."""

    recursion: Recursion
    ways: list[Way]
    cells: list[tuple[Way, Part]]
    buffers: dict[Any, int]
    shared: list[Origin]
    results: list[Any] = field(default_factory=list)  # the keys of the buffers whose rows the step takes


def assemble(
    ways: Sequence[Way],
    shared: dict[Any, torch.Tensor],
    seeds: Sequence[tuple[Any, torch.Tensor]],
    roots: Sequence[Any],
) -> Assembled:
    """Put ways together. ``shared``: examples of all tensors the step offers, by the token of their origin; ``seeds``:
    the keys of the arguments that the step passes, with an example of a row; ``roots``: the keys of the results that
    it takes. Raises Refused."""
    cells = [(way, part) for way in ways for part in way.parts if part.gives]
    origins = {origin.token: origin for _, part in cells for _, origin in part.shared}
    for token, origin in origins.items():
        if token not in shared:
            raise Refused(Refusal(NOWHERE, f"the step does not hold {origin}", "Recursive calls use it.", ""))
    order = list(origins)
    keys = dict.fromkeys(key for _, part in cells for _, key in (*part.takes, *part.gives))
    keys.update(dict.fromkeys([*(key for key, _ in seeds), *roots]))
    numbers = {key: number for number, key in enumerate(keys)}
    functions = [_function(way, part, order) for way, part in cells]
    examples = [shared[token] for token in order]
    buffers = _buffers(cells, functions, numbers, examples, seeds)
    made = tuple(
        Cell(
            f"{way.name} ({way.place}), stage {part.stage}",
            function,
            tuple(numbers[key] for _, key in part.takes),
            tuple(_column(way, kind, number) for kind, number in part.columns),
            tuple(numbers[key] for _, key in part.gives),
        )
        for (way, part), function in zip(cells, functions, strict=True)
    )
    recursion = Recursion(
        made, buffers, tuple(examples), tuple(numbers[key] for key, _ in seeds), tuple(numbers[key] for key in roots)
    )
    return Assembled(recursion, list(ways), cells, numbers, [origins[token] for token in order], list(roots))


def _function(way: Way, part: Part, order: list[Any]) -> Callable[..., Sequence[torch.Tensor]]:
    places = [(ref.index, order.index(origin.token)) for ref, origin in part.shared]

    def function(shared: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        return way.compute(part, {index: shared[place] for index, place in places}, given)

    return function


def _column(way: Way, kind: str, number: int) -> Column:
    if kind == "tensor":
        example = way.plan.program.inputs[number].example
        if example.requires_grad:
            what = f"nodes hold a tensor that requires gradients ({way.plan.origins[number]})"
            raise Refused(Refusal(way.place, what, "Only shared tensors and those passed on have gradients.", ""))
        return Column(tuple(example.size()), example.dtype)
    return Column((), torch.float64 if way.plan.program.slots[number].type is float else torch.int64)


def _buffers(
    cells: Sequence[tuple[Way, Part]],
    functions: Sequence[Callable[..., Sequence[torch.Tensor]]],
    numbers: dict[Any, int],
    shared: Sequence[torch.Tensor],
    seeds: Sequence[tuple[Any, torch.Tensor]],
) -> tuple[Buffer, ...]:
    """What rows look like: cells are run on fakes, until nothing new comes of it."""
    known: dict[Any, Buffer] = {}
    for key, example in seeds:
        _settle(known, key, example, None)
    changed = True
    with _disable_current_modes(), FakeTensorMode(allow_non_fake_inputs=True), torch.enable_grad():
        fakes = [_blank(tuple(t.size()), t.dtype, t.device, t.requires_grad) for t in shared]
        while changed:
            changed = False
            for (way, part), function in zip(cells, functions, strict=True):
                if any(key not in known for _, key in part.takes):
                    continue
                rows = [_blank(b.shape, b.dtype, b.device, b.differentiable) for b in (known[k] for _, k in part.takes)]
                device = torch.device("cpu")
                columns = [_column(way, kind, number) for kind, number in part.columns]
                given = [*rows, *(_blank(c.shape, c.dtype, device, False) for c in columns)]
                try:
                    gives = function(fakes, given)
                except Refused:
                    raise
                except Exception as error:
                    what = f"{way.name} cannot be computed for many calls at a time"
                    why = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
                    raise Refused(Refusal(way.place, what, why, "")) from error
                for (_, key), value in zip(part.gives, gives, strict=True):
                    changed = _settle(known, key, value, way) or changed
    missing = [key for key in numbers if key not in known]
    if missing:
        raise Refused(Refusal(NOWHERE, "a recursion has no end that was seen", "Nothing returns.", ""))
    return tuple(known[key] for key in numbers)


def _settle(known: dict[Any, Buffer], key: Any, value: torch.Tensor, way: Way | None) -> bool:
    """A row like this goes into the buffer. Returns whether that was not known. Raises Refused."""
    made = Buffer(tuple(value.size()), value.dtype, value.device, value.requires_grad)
    before = known.get(key)
    if before is not None:
        if (before.shape, before.dtype, before.device) != (made.shape, made.dtype, made.device):
            what = f"recursive calls pass on tensors of sizes {list(before.shape)} and {list(made.shape)}"
            place = NOWHERE if way is None else way.place
            raise Refused(Refusal(place, what, "Many are one tensor, a row each.", "Let them be of one size."))
        made = replace(made, differentiable=before.differentiable or made.differentiable)
    known[key] = made
    return made != before


def _blank(size: Sequence[int], dtype: torch.dtype, device: torch.device, grad: bool) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device=device).requires_grad_(grad)
