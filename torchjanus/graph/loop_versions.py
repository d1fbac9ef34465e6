"""Sums that loops add up in place (``total += loss``), as if each round made a tensor of its own.

A tensor of the call that nothing else shares memory with has a new number after each such change: whoever speaks of it
later speaks of what it is by then. A pure rewriting of traces; knows nothing of what is made of a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchjanus.trace.events import Asserted, Computed, Held, Op, Pinned, Stored, TensorRef, Trace
from torchjanus.trace.recipes import Build, Number, TensorAt, TensorOf
from torchjanus.trace.values import Apply, Fetch, Size, Traced, plain, trace_value

__all__ = ["apart"]

_CHANGES: dict[str, Callable[..., torch.Tensor]] = {}

# What knows a tensor as the object that it is, and not only its value.
_KNOWING = frozenset(
    """retain_grad register_hook register_post_accumulate_grad_hook requires_grad_ detach_ set_ set_data resize_
    untyped_storage storage share_memory_ grad __get__ __set__""".split()
)


def _anew(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def anew(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return function(tensor, *args, **kwargs).to(tensor.dtype)

    anew.__name__ = f"{function.__name__}_anew"
    return anew


for _name in ("add", "sub", "mul", "div"):
    _CHANGES[f"Tensor.{_name}_"] = _CHANGES[f"Tensor.__i{'true' if _name == 'div' else ''}{_name}__"] = _anew(
        getattr(torch, _name)
    )


def apart(trace: Trace) -> Trace:
    """The run with the sums of its loops apart; itself where there are none."""
    found = _sums(trace) if trace.rounds else frozenset()
    return _Apart(trace, found).trace() if found else trace


def _sums(trace: Trace) -> frozenset[int]:
    """The tensors that are only ever added to, in rounds of loops, and lie in memory of their own."""
    makers: dict[int, Op] = {}
    begun: dict[int, int] = {}  # where each tensor was made
    found: dict[int, int] = {}  # where each was last added to
    unfit: set[int] = set()
    for position, event in enumerate(trace.events):
        if not isinstance(event, Op):
            continue
        kept = [ref.number for ref in event.outs if ref.number in makers or ref.number in trace.origins]
        taken = [value.number for value in event.args if isinstance(value, TensorRef)]
        for ref in event.outs:
            makers.setdefault(ref.number, event)
            begun.setdefault(ref.number, position)
        if event.name.rpartition(".")[2] in _KNOWING:
            unfit.update(taken)
        if not kept:
            continue
        number = kept[0]
        inside = any(rounds.starts[:1] <= (position,) and position < rounds.end for rounds in trace.rounds)
        own = number in makers and number not in trace.origins
        graded = event.modes.grad or (number in makers and makers[number].modes == event.modes)
        adding = event.name in _CHANGES and taken[:1] == kept and event.outs == (TensorRef(number),)
        if inside and own and graded and adding and trace.memory[number]:
            found[number] = position
        else:
            unfit.add(number)
    for number, last in found.items():
        others = (n for n, memory in enumerate(trace.memory) if memory == trace.memory[number] and n != number)
        if any(other in trace.origins or begun.get(other, -1) < last for other in others):
            unfit.add(number)  # what it was before is seen by another
    return frozenset(found.keys() - unfit)


class _Apart:
    """Writes the run anew."""

    def __init__(self, old: Trace, sums: frozenset[int]) -> None:
        self.old, self.sums = old, sums
        self.versions: dict[int, list[tuple[int, int]]] = {number: [(0, number)] for number in sums}
        self.memory = list(old.memory)

    def trace(self) -> Trace:
        old = self.old
        self._number()
        events, recipes, operations = [], {}, 0
        for event in old.events:
            made = self._event(event, operations)
            operations += isinstance(event, Op)
            events.append(made)
            if id(event) in old.recipes:
                recipes[id(made)] = tuple(map(self._recipe, old.recipes[id(event)]))
        fetched = {self._token(token): value for token, value in old.fetched.items()}
        tensors = [*old.tensors, *[None] * (len(self.memory) - len(old.tensors))]
        result = None if old.result is None else self._recipe(old.result)
        # The run as it was is kept: what the tokens of events speak of is told by their ids.
        return replace(
            old, events=events, tensors=tensors, result=result, recipes=recipes, fetched=fetched, memory=self.memory,
            alive=[*old.alive, old],
        )  # fmt: skip

    def _number(self) -> None:
        operations = 0
        for event in self.old.events:
            if isinstance(event, Op):
                operations += 1
                if self._changed(event) is not None:
                    number = event.outs[0].number
                    before = self.versions[number][-1][1]
                    self.versions[number].append((operations, len(self.memory)))
                    self.memory.append(self.memory[before])  # the last one stays where it was
                    self.memory[before] = -1 - before

    def _changed(self, op: Op) -> Callable[..., torch.Tensor] | None:
        first = op.args[0] if op.args else None
        is_sum = isinstance(first, TensorRef) and first.number in self.sums and op.outs == (first,)
        return _CHANGES.get(op.name) if is_sum else None

    def _at(self, number: int, after: int) -> int:
        """What a tensor is called after so many operations."""
        versions = self.versions.get(number)
        return number if versions is None else [name for begun, name in versions if begun <= after][-1]

    def _event(self, event: Any, after: int) -> Any:
        if isinstance(event, Op):
            func = self._changed(event)
            args, kwargs = self._values(event.args, after), self._values(event.kwargs, after)
            if func is None:
                return replace(event, args=args, kwargs=kwargs)
            out = TensorRef(self._at(event.outs[0].number, after + 1))
            return replace(event, func=func, name=func.__name__, args=args, kwargs=kwargs, outs=(out,))
        if isinstance(event, Asserted):
            return replace(event, ref=TensorRef(self._at(event.ref.number, event.after)))
        if isinstance(event, Held | Pinned | Computed):
            return replace(event, expr=self._expr(event.expr))
        if isinstance(event, Stored) and isinstance(event.key, Traced):
            return replace(event, key=trace_value(plain(event.key), self._expr(event.key.expr)))
        return event

    def _values(self, value: Any, after: int) -> Any:
        if isinstance(value, TensorRef):
            return TensorRef(self._at(value.number, after))
        if isinstance(value, list | tuple):
            parts: Sequence[Any] = [self._values(part, after) for part in value]
            if isinstance(value, list):
                return parts
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if isinstance(value, dict):
            return {key: self._values(part, after) for key, part in value.items()}
        if isinstance(value, slice):
            return slice(*(self._values(part, after) for part in (value.start, value.stop, value.step)))
        return self._expr(value)

    def _expr(self, expr: Any) -> Any:
        if isinstance(expr, Fetch | Size) and expr.ref in self.sums:
            return replace(expr, ref=self._at(expr.ref, expr.after))
        if isinstance(expr, Apply):
            args = tuple(map(self._expr, expr.args))
            same = all(new is old for new, old in zip(args, expr.args, strict=True))
            return expr if same else Apply(expr.func, args)
        return expr

    def _token(self, token: Any) -> Any:
        if token[0] == "fetch":
            return (token[0], self._at(token[1], token[2]), *token[2:])
        return (token[0], self._at(token[1], token[3]), *token[2:]) if token[0] == "size" else token

    def _recipe(self, recipe: Any) -> Any:
        if isinstance(recipe, TensorOf):
            versions = self.versions.get(recipe.ref.number)
            return recipe if versions is None else TensorOf(TensorRef(versions[-1][1]))
        if isinstance(recipe, TensorAt):
            return TensorAt(TensorRef(self._at(recipe.ref.number, recipe.after)), recipe.after)
        if isinstance(recipe, Number):
            return Number(self._expr(recipe.expr))
        if isinstance(recipe, Build):
            items = tuple(
                tuple(map(self._recipe, item)) if isinstance(item, tuple) else self._recipe(item)
                for item in recipe.items
            )
            attributes = tuple((name, self._recipe(part)) for name, part in recipe.attributes)
            fields = tuple((key, self._recipe(part)) for key, part in recipe.fields)
            return replace(recipe, items=items, attributes=attributes, fields=fields)
        return recipe
