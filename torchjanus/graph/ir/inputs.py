"""The tensors that the program of one path takes, and as what the runs have found them. Knows nothing of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from torchjanus.core.access_path import Origin, Step
from torchjanus.graph.ir.number_sizes import carried
from torchjanus.graph.ir.numbers import Numbers, expressions_in, refs_in, takes, tensors_in
from torchjanus.graph.ir.program import Input, Ref
from torchjanus.graph.ir.size_formulas import Formulas
from torchjanus.graph.ir.user_code import Begin
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import Asserted, Computed, Found, Held, Pinned
from torchjanus.trace.recipes import TensorAt, parts_of
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Fetch, leaves

__all__ = ["Inputs"]

# What gives a gradient, or takes it away, also where none is asked for (as of a layer that has been frozen).
_GIVING = ("Tensor.requires_grad_", "Tensor.requires_grad.__set__", "Tensor.grad.__set__", "Tensor.grad.__delete__")


class Inputs:
    """Those of one path: ``entries[k]`` is found at ``origins[k]``, and ``refs`` says which of the run's tensors it is.

    ``found``: all that the program has read, by where; ``identical``: where the very same object was found in all runs.
    """

    def __init__(self, work: Numbers, trace: Trace, ops: Sequence[Op], sizes: Formulas) -> None:
        self._work = work
        self._trace = trace
        self._ops = ops
        self._sizes = sizes
        self.found = {e.origin: e for e in trace.events if isinstance(e, Found)}
        for origin in work.dimensions.carriers():
            assert origin.base is not None
            self.found[origin] = carried(self.found[origin.base])
        self.identical = {
            row[-1].origin
            for row in zip(*(t.events for t in work.traces), strict=True)
            if isinstance(row[-1], Found)
            and (row[-1].kind in ("tensor", "object") or (row[-1].kind == "foreign" and not row[-1].origin.waits_for))
            and len({id(e.value) for e in row}) == 1
            and row[-1].origin.token not in work.relaxed
        }
        self._places = {id(self.found[o].value): o for o in trace.origins.values() if o in self.found}
        names = {op.name for op in ops}
        self._backward = any(name.rpartition(".")[2] == "backward" for name in names)
        self.grads_used = self._backward or any(name.startswith("Tensor.grad.") for name in names)
        self.origins: list[Origin] = []
        self.refs: dict[int, Ref] = {}
        self.entries = tuple(self._entries())

    def pinned(self) -> tuple[torch.Tensor | None, ...]:
        """Of each input the tensor that it was in all runs, if there is one."""
        return tuple(self.found[origin].value if origin in self.identical else None for origin in self.origins)

    def leaves(self) -> tuple[Ref, ...]:
        """The inputs that may have got gradients when the call is over."""
        given = {self.refs.get(ref.number) for op in self._ops if op.name in _GIVING for ref in refs_in(op.args[:1])}
        return tuple(
            Ref(i)
            for i, entry in enumerate(self.entries)
            if self.grads_used and entry.is_leaf and (entry.requires_grad or Ref(i) in given)
        )

    def _entries(self) -> Iterator[Input]:
        used, where = self._used(), self._trace.origins
        numbers = sorted(number for number in where if number in used)
        grads = [self._live_grad(number) if self._backward else None for number in numbers]
        self.refs.update((number, Ref(index)) for index, number in enumerate(numbers))
        self.origins += (where[number] for number in numbers)
        by_origin = {origin: index for index, origin in enumerate(self.origins)}
        for origin in (*(grad for grad in grads if grad is not None), *self._work.dimensions.carriers()):
            if origin not in by_origin:
                by_origin[origin] = len(self.origins)
                self.origins.append(origin)
        for index, origin in enumerate(self.origins):
            example = self.found[origin].value
            # As it was when the call began: the call may have changed these, and the example is what it is by now.
            requires_grad, is_leaf = self.found[origin].detail[-2:]
            grad = grads[index] if index < len(grads) else None
            bound = None if grad is None else Ref(by_origin[grad])
            symbols = self._work.dimensions.of(origin, len(self.found[origin].detail[2]))
            strides = self._work.dimensions.strides[origin] if symbols else ()
            yield Input(example, requires_grad, is_leaf, bound, str(origin), symbols=symbols, strides=strides)

    def _used(self) -> set[int]:
        """The tensors that the graph computes with. Others were only looked at: guards are enough for them."""
        used = {ref.number for op in self._ops for ref in refs_in((op.args, op.kwargs))}
        for event in self._trace.events:
            if isinstance(event, Asserted):
                used.add(event.ref.number)
            elif isinstance(event, Held | Pinned | Computed):
                used.update(leaf.ref for leaf in leaves(event.expr) if isinstance(leaf, Fetch))
        for recipe in self._trace.all_recipes():
            used.update(ref.number for ref in tensors_in(recipe))
            used.update(part.ref.number for part in parts_of(recipe) if isinstance(part, TensorAt))
            for expr in expressions_in(recipe):
                used.update(leaf.ref for leaf in leaves(expr) if isinstance(leaf, Fetch))
        used.update(fetch.ref for fetch in self._work.host.values())
        used.update(size.ref for size in self._sizes.measured())
        used.update(self._sizes.inputs())
        return used

    def _live_grad(self, number: int) -> Origin | None:
        """The origin of the gradient that backward() adds to, or None if there is none by then."""
        origin = self._trace.origins[number].then(Step.FIELD, "grad")
        found = self.found.get(origin)
        if found is None or found.value is None:
            return None
        origin = self._places.get(id(found.value), origin)  # it may have been found elsewhere before
        for op in self._ops:
            if op.name.rpartition(".")[2] == "backward" or isinstance(op.func, Begin):
                return origin  # what autograd calls may write it, but only after backward() has begun
            if op.name == "Tensor.grad.__set__" and op.args[0] == TensorRef(number):
                return origin if any(takes(o.args, n) for n in self._numbers_of(origin) for o in self._ops) else None
        return origin

    def _numbers_of(self, origin: Origin) -> list[int]:
        return [number for number, where in self._trace.origins.items() if where == origin]
