"""Runs one program eagerly and speculated, on equal arguments, and says what became of it.

All that a caller could see of a call is compared: what came back, what was raised, what the arguments and the state are
after it, how tensors lie and share memory, and the random generator. Knows nothing of where programs come from.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import torchjanus

__all__ = ["CALLS", "SEED", "WATCHED", "Case", "Looking", "Outcome", "copy_of", "difference", "outcomes"]

WATCHED = 2
CALLS = 4
CALLS_WITH_STATE = 8  # the first ones differ from the others: there is no momentum yet
SEED = 20


After = Callable[[Any, tuple[Any, ...]], Any]


@dataclass(frozen=True)
class Case:
    """One program: ``make()`` gives the step, what it is called with, and its state. ``stateful``: calls differ.
    ``after``: what the caller makes of a result and what the step was given."""

    name: str  # of an entry of the database
    way: str  # what is done with it
    number: int  # of its samples
    make: Callable[[], tuple[Callable[..., Any], tuple[Any, ...], Any]]
    stateful: bool = False
    after: After | None = None

    def __str__(self) -> str:
        return f"{self.name}, {self.way}, sample {self.number}"


@dataclass
class Outcome:
    """What became of a case. ``kind``: equal, differs, fault, or not comparable (and ``reported`` says why)."""

    case: Case
    kind: str
    reported: str = ""
    served: int = 0
    refused: str = ""

    def as_data(self) -> dict[str, Any]:
        case = self.case
        reported = {"kind": self.kind, "reported": self.reported, "served": self.served, "refused": self.refused}
        return {"name": case.name, "way": case.way, "sample": case.number, **reported}


def copy_of(value: Any, known: dict[int, Any] | None = None) -> Any:
    """A copy in which tensors lie as they did, gaps and overlaps included, and one tensor stays one."""
    known = {} if known is None else known
    if isinstance(value, torch.Tensor):
        if id(value) not in known:
            known[id(value)] = _copied(value)
        return known[id(value)]
    if isinstance(value, tuple):
        parts = [copy_of(part, known) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, list):
        return [copy_of(part, known) for part in value]
    if isinstance(value, dict):
        return {key: copy_of(part, known) for key, part in value.items()}
    return value


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
    if not plain or tensor.is_nested or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)
    with torch.no_grad():
        storage = tensor.untyped_storage().clone()
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        made.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
    return made.requires_grad_(tensor.requires_grad)


# -- what is seen of a call


@dataclass
class Looking:
    """Describes values. Tensors are distinguished by the memory and the objects that were met before."""

    memory: dict[int, int] = field(default_factory=dict)
    objects: dict[int, int] = field(default_factory=dict)
    alive: list[Any] = field(default_factory=list)

    def at(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, list | tuple):
            return [type(value).__name__, *map(self.at, value)]
        if isinstance(value, dict):
            return ["dict", *((str(key), self.at(part)) for key, part in value.items())]
        return f"{type(value).__name__} {value!r}" if isinstance(value, int | float | complex | str | None) else ""

    def _tensor(self, tensor: torch.Tensor) -> Any:
        self.alive.append(tensor)
        object_ = self.objects.setdefault(id(tensor), len(self.objects))
        facts = [type(tensor).__name__, tensor.dtype, tuple(tensor.shape) if not tensor.is_nested else "nested"]
        facts += [str(tensor.layout), tensor.requires_grad, f"object {object_}"]
        if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
            return [*facts, tensor.detach().clone()]
        steps = [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
        memory = self.memory.setdefault(tensor.untyped_storage()._cdata, len(self.memory))
        facts += [f"strides {steps if tensor.numel() else []}", f"memory {memory}" if tensor.numel() else ""]
        return [*facts, tensor.is_conj(), tensor.is_neg(), tensor.detach().resolve_conj().resolve_neg().clone()]


def _call(step: Callable[..., Any], given: tuple[Any, ...], state: Any, after: After | None) -> Any:
    """What can be seen of one call."""
    torch.default_generator.manual_seed(SEED)
    looking = Looking()
    looking.at(given)
    result: Any
    try:
        result = step(*given)
        if after is not None:
            result = [looking.at(result), after(result, given)]
    except Exception as error:
        result = (type(error).__name__, str(error))
    found = [looking.at(result), looking.at(given), torch.get_rng_state()]
    if state is not None:
        found.append(looking.at(state()))
    return found


def difference(one: Any, other: Any) -> str:
    """Where two descriptions differ first; empty where they do not."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return "" if _same(one, other) else f"{_words(one)} against eager's {_words(other)}"
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            return f"{len(one)} parts against eager's {len(other)}"
        return next(filter(None, map(difference, one, other)), "")
    return "" if one == other or repr(one) == repr(other) else f"{one} against eager's {other}"


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape or one.layout != other.layout:
        return False
    if one.layout != torch.strided or one.is_nested or one.is_quantized:
        return repr(one) == repr(other)
    first, second = (part.clone(memory_format=torch.contiguous_format).flatten() for part in (one, other))
    if not one.numel() or torch.equal(first.view(torch.uint8), second.view(torch.uint8)):
        return True
    if not (one.is_floating_point() or one.is_complex()):
        return False
    if one.is_complex():
        first, second = torch.view_as_real(first), torch.view_as_real(second)
    nan = first.isnan() & second.isnan()
    return bool((nan | ((first == second) & (first.signbit() == second.signbit()))).all())


def _words(tensor: torch.Tensor) -> str:
    return re.sub(r"\s+", " ", repr(tensor))[:80]


# -- the programs


def two(a: Any, b: Any) -> Any:
    return [a[0](a[1]), b[0](b[1])]


def three(a: Any, b: Any, c: Any) -> Any:
    return [a[0](a[1]), b[0](b[1]), c[0](c[1])]


def four(a: Any, b: Any, c: Any, d: Any) -> Any:
    return [a[0](a[1]), b[0](b[1]), c[0](c[1]), d[0](d[1])]


def five(a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
    return [a[0](a[1]), b[0](b[1]), c[0](c[1]), d[0](d[1]), e[0](e[1])]


def six(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> Any:
    return [a[0](a[1]), b[0](b[1]), c[0](c[1]), d[0](d[1]), e[0](e[1]), f[0](f[1])]


_TOGETHER = {2: two, 3: three, 4: four, 5: five, 6: six}
TOGETHER = max(_TOGETHER)
UNWRITTEN = ("empty", "new_empty")  # operators whose results hold what was there


def outcomes(cases: Sequence[Case]) -> Iterator[Outcome]:
    """What becomes of each. Those without state are run several at a time, and one by one where something is amiss."""
    alike: dict[str, list[Case]] = {}
    for case in cases:
        if case.stateful:
            yield _alone(case)
        else:
            alike.setdefault(case.name, []).append(case)
    for some in alike.values():
        ready = []
        for case in some:
            unsuited = _unsuited(case)
            if unsuited:
                yield Outcome(case, "not comparable", unsuited)
            else:
                ready.append(case)
        for start in range(0, len(ready), TOGETHER):
            yield from _together(ready[start : start + TOGETHER])


def _unsuited(case: Case) -> str:
    """Why eager cannot be compared with, if so."""
    if case.name.startswith(UNWRITTEN):
        return "gives memory that nobody has written"  # which eager repeats by chance
    try:
        seen = [_eager(case) for _ in range(2)]
    except Exception as error:
        return f"cannot be made: {type(error).__name__}"
    if difference(*seen):
        return "eager does not repeat itself"
    return ""


def _eager(case: Case) -> list[Any]:
    step, given, state = case.make()
    return [_call(step, copy_of(given), state, case.after) for _ in range(CALLS_WITH_STATE if case.stateful else 1)]


def _together(cases: list[Case]) -> Iterator[Outcome]:
    if len(cases) == 1:
        yield _alone(cases[0])
        return
    given = tuple((part, call) for part, (call,), _ in (case.make() for case in cases))
    step = _TOGETHER[len(cases)]
    found = _compared(lambda: (step, given, None), False)
    if found.kind == "equal" and found.served == CALLS - WATCHED:
        yield from (Outcome(case, "equal", served=found.served) for case in cases)
    else:
        yield from map(_alone, cases)


def _alone(case: Case) -> Outcome:
    if case.stateful and (unsuited := _unsuited(case)):
        return Outcome(case, "not comparable", unsuited)
    log = logging.getLogger("torchjanus")
    level = log.level
    log.setLevel(logging.CRITICAL)  # what is refused is counted
    try:
        found = _compared(case.make, case.stateful, case.after)
    finally:
        log.setLevel(level)
    found.case = case
    return found


def _compared(
    make: Callable[[], tuple[Callable[..., Any], tuple[Any, ...], Any]], stateful: bool, after: After | None = None
) -> Outcome:
    """Both ways."""
    nobody = Case("", "", 0, make)
    step, given, state = make()
    expected = [_call(step, copy_of(given), state, after) for _ in range(CALLS_WITH_STATE if stateful else 1)]
    step, given, state = make()
    speculated = torchjanus.speculate(step, watch=WATCHED, executor="replay")
    found = ""
    with warnings.catch_warnings(action="ignore"):
        for number in range(CALLS_WITH_STATE if stateful else CALLS):
            served = speculated.statistics().speculated
            seen = _call(speculated, copy_of(given), state, after)
            differs = difference(seen, expected[number if stateful else 0])
            if differs and not found:
                graph = speculated.statistics().speculated > served
                found = f"call {number}, {'served' if graph else 'by Python'}: {differs}"
    counts = speculated.statistics()
    faults = [event.text for event in speculated.events if event.kind == "fault"]
    refused = ""
    if counts.speculated < CALLS - WATCHED:
        reported = [event for event in speculated.events if event.kind in ("refused", "dropped", "raised", "fault")]
        refused = next((str(r.what) for r in speculated.refusals), reported[0].text if reported else "")
        refused = refused or speculated.given_up or "calls were not alike"
    kind = "differs" if found else "fault" if faults else "equal"
    reported = found or (faults[0] if faults else "")
    return Outcome(nobody, kind, reported, min(counts.speculated, CALLS - WATCHED), refused)
