"""Generates, for each event of a path, the function that checks whether the skeleton's next call of torch is this one,
and makes what it returns.

A generated function takes the run, the function that torch was called with and its arguments. It returns ``MISS`` where
the call is another one. It knows nothing of graphs.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from torchjanus.graph.ir.program import Ref
from torchjanus.runtime.coexecution.recording.events import Event, External, Kind, Provenance
from torchjanus.runtime.coexecution.recording.kinds import FLOATS, called
from torchjanus.runtime.coexecution.recording.placeholders import placeholder

__all__ = ["MISS", "Matcher", "matchers", "undisturbed"]

# States of torch under which no path is co-executed, as a matcher asks for them.
_STATES: dict[str, Any] = {
    "is_grad": torch.is_grad_enabled,
    "dispatching": torch._C._len_torch_dispatch_stack,
    "casting": torch._C._is_any_autocast_enabled,
    "inferring": torch.is_inference_mode_enabled,
    "transform": torch._C._functorch.peek_interpreter_stack,
    "hooks": torch._C._autograd._top_saved_tensors_default_hooks,
}
_UNDISTURBED = "not (dispatching() or casting() or inferring() or transform() is not None or hooks(True) is not None)"

# Whether torch is in none of them.
undisturbed: Callable[[], bool] = eval(f"lambda: {_UNDISTURBED}", dict(_STATES))

MISS: Any = object()
Matcher = Callable[..., Any]


def matchers(
    events: list[Event],
    externals: Mapping[int, External],
    fixed: Mapping[int, torch.Tensor],
    slots: Mapping[tuple[int, int], int],
) -> list[Matcher]:
    """Return the function of each event. ``fixed``: externals that are always the same object, which a run knows from
    the beginning; ``slots``: the numbers, by event and place, that vary."""
    dtypes = {n: one.meta.dtype for n, one in externals.items()}
    for event in events:
        dtypes.update((n, meta.dtype) for n, meta in event.made.items())
    return [_Writer(k, event, externals, fixed, slots, dtypes).matcher() for k, event in enumerate(events)]


def _bounds(dtypes: Iterable[torch.dtype]) -> tuple[float | int, bool]:
    """Return the largest number that an operation on tensors of these kinds surely takes, and whether it takes
    infinity: torch raises where a number cannot be converted."""
    known = [dtype.to_real() for dtype in dtypes if dtype is not torch.bool]
    floating = [torch.finfo(dtype).max for dtype in known if dtype.is_floating_point]
    whole = [torch.iinfo(dtype).max for dtype in known if not dtype.is_floating_point]
    return (min(floating), True) if floating else (min(whole, default=(1 << 63) - 1), False)


class _Writer:
    def __init__(
        self,
        number: int,
        event: Event,
        externals: Mapping[int, External],
        fixed: Mapping[int, torch.Tensor],
        slots: Mapping[tuple[int, int], int],
        dtypes: Mapping[int, torch.dtype],
    ) -> None:
        self.number, self.event, self.dtypes = number, event, dtypes
        self.externals, self.fixed, self.slots = externals, fixed, slots
        self.names: dict[str, Any] = {"MISS": MISS, "placeholder": placeholder, "isfinite": math.isfinite, **_STATES}
        self.late: list[str] = []  # conditions that note something: after all others
        self.kept: list[str] = []
        self._met: set[int] = set()
        self._numbers = 0

    def matcher(self) -> Matcher:
        event = self.event
        conditions = [*self._call()]
        # A composite event makes only what the path asks for later on.
        made_before = dict.fromkeys(ref.index for ref in event.outs if ref.index not in event.made)
        conditions += (f"V[{n}] is not None" for n in made_before if n not in self.externals)
        lines = ["def matches(run, func, args, kwargs):", "    V = run.values"]
        tests = [*conditions, *self.late]
        chunks = (tests[start : start + 16] for start in range(0, len(tests), 16))
        lines += (f"    if not ({' and '.join(chunk)}): return MISS" for chunk in chunks)
        lines += (f"    {line}" for line in self.kept)
        lines += (f"    {line}" for line in self._answer())
        exec(compile("\n".join(lines) + "\n", f"<torchjanus event {event.name}>", "exec"), self.names)
        made: Matcher = self.names["matches"]
        return made

    def _constant(self, value: Any) -> str:
        name = f"C{len(self.names)}"
        self.names[name] = value
        return name

    def _call(self) -> Iterator[str]:
        event = self.event
        func = self._constant(event.func)
        yield f"func == {func}" if type(event.func) is types.MethodWrapperType else f"func is {func}"
        if event.kind is not Kind.QUERY:  # what a tensor is does not depend on them
            yield f"is_grad() is {event.modes.grad}"
            yield _UNDISTURBED
        unrecorded = event.kind is Kind.STATE and called(event.func).short != "_set_grad_enabled"
        if unrecorded or (event.kind is Kind.HOST and not event.args):
            return
        yield f"len(args) == {len(event.args)}"
        yield f"len(kwargs) == {len(event.kwargs)}" if event.kwargs else "not kwargs"
        for place, part in enumerate(event.args):
            yield from self._same(f"args[{place}]", part)
        for key, part in event.kwargs.items():
            yield f"{key!r} in kwargs"
            yield from self._same(f"kwargs[{key!r}]", part)

    def _same(self, text: str, tree: Any) -> Iterator[str]:
        """Yield the conditions for an argument to be as it was."""
        kind = type(tree)
        if kind is Ref:
            n = tree.index
            one = self.externals.get(n)
            new = (
                one is not None
                and one.provenance is Provenance.FOUND
                and one.first == self.number
                and n not in self.fixed
            )
            if new and n not in self._met:
                self._met.add(n)
                self.late.append(f"run.accept({n}, {text})")
            elif new:
                self.late.append(f"{text} is V[{n}]")
            else:
                yield f"{text} is V[{n}]"
                if one is not None and one.shared:
                    yield f"run.unchanged({n})"
        elif kind in (tuple, list, torch.Size):
            alike = (list,) if kind is list else (tuple, torch.Size)  # a trace has tuples for both
            yield f"type({text}) in {self._constant(alike)}"
            yield f"len({text}) == {len(tree)}"
            for place, part in enumerate(tree):
                yield from self._same(f"{text}[{place}]", part)
        elif kind is dict:
            yield f"type({text}) is dict"
            yield f"list({text}) == {self._constant(list(tree))}"
            for key, part in tree.items():
                yield from self._same(f"{text}[{self._constant(key)}]", part)
        elif kind is slice:
            yield f"type({text}) is slice"
            for field in ("start", "stop", "step"):
                yield from self._same(f"{text}.{field}", getattr(tree, field))
        elif self.event.is_number(tree):
            yield f"type({text}) in {self._constant(FLOATS)}" if kind is float else f"type({text}) is int"
            slot = self.slots.get((self.number, self._numbers))
            self._numbers += 1
            if slot is not None:
                self.kept.append(f"run.numbers[{slot}] = {kind.__name__}({text})")
                yield self._fits(text, kind)
            elif self.event.kind is Kind.OPERATOR:
                if kind is float and (tree == 0 or not math.isfinite(tree)):
                    yield f"repr(float({text})) == {repr(tree)!r}"
                else:
                    yield f"{text} == {tree!r}"
        elif tree is None or tree is Ellipsis or kind in (bool, torch.dtype, torch.layout, torch.memory_format):
            yield f"{text} is {self._constant(tree)}"
        elif kind is complex:
            yield f"type({text}) is complex"
            yield f"repr({text}) == {repr(tree)!r}"
        else:
            yield f"type({text}) is {self._constant(kind)}"
            yield f"{text} == {self._constant(tree)}"

    def _fits(self, text: str, kind: type) -> str:
        """Return the condition for a number that varies to raise nothing."""
        numbers = {*self.event.inputs, *(ref.index for ref in self.event.outs)}
        bound, infinite = _bounds(self.dtypes[n] for n in numbers)
        largest = self._constant(bound if kind is float else min(bound, (1 << 63) - 1))
        return f"(-{largest} <= {text} <= {largest}" + (f" or not isfinite({text}))" if infinite else ")")

    def _answer(self) -> Iterator[str]:
        event, k = self.event, self.number
        match event.kind:
            case Kind.QUERY:
                yield f"return {self.result(event.result)}"
            case Kind.STATE:
                yield "return func(*args, **(kwargs or {}))"
            case Kind.FETCH:
                yield f"return run.fetch({k}, func, args, kwargs or {{}})"
            case Kind.HOST:
                yield f"return run.host({k}, func, args, kwargs or {{}})"
            case Kind.OPERATOR:
                if event.draws:
                    yield "if run.reseeded(): return MISS"
                for n, meta in event.made.items():
                    yield f"V[{n}] = placeholder({self._constant(meta)})"
                yield f"return {self.result(event.result)}"

    def result(self, tree: Any) -> str:
        """Return the text of the result."""
        if type(tree) is Ref:
            return f"V[{tree.index}]"
        if type(tree) in (tuple, list):
            parts = "".join(f"{self.result(part)}, " for part in tree)
            if self.event.container is not None and tree is self.event.result:
                return f"{self._constant(self.event.container)}(({parts}))"
            return f"({parts})" if type(tree) is tuple else f"[{parts}]"
        return self._constant(tree) if tree is not None else "None"
