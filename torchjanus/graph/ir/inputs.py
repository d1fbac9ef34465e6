"""The tensors that the program of one path takes as inputs, as the runs found them. Knows nothing of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.graph.ir.number_sizes import carried
from torchjanus.graph.ir.numbers import Numbers, tensors_in
from torchjanus.graph.ir.program import Input, Ref
from torchjanus.graph.ir.size_formulas import Formulas
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HeapRead, HostComputation, NumberPredicate, Specialization, TensorPredicate
from torchjanus.trace.operands import expressions_in, refs_in
from torchjanus.trace.recipes import TensorAt, parts_of
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.user_code import Begin
from torchjanus.trace.values import Fetch, leaves

__all__ = ["Inputs"]

# Calls that can change a gradient even where requires_grad is False at entry (a frozen layer).
_GIVING = ("Tensor.requires_grad_", "Tensor.requires_grad.__set__", "Tensor.grad.__set__", "Tensor.grad.__delete__")


class Inputs:
    """The inputs of one path: ``entries[k]`` is read at ``access_paths[k]``; ``refs`` maps tensors of the run to them.
    ``found``: all reads of the run, by access path. ``identical``: paths at which all runs found the same object."""

    def __init__(self, work: Numbers, trace: Trace, ops: Sequence[Op], sizes: Formulas) -> None:
        self._work = work
        self._trace = trace
        self._ops = ops
        self._sizes = sizes
        self.found = {e.access_path: e for e in trace.events if isinstance(e, HeapRead)}
        for access_path in work.dimensions.carriers():
            assert access_path.base is not None
            self.found[access_path] = carried(self.found[access_path.base])
        self.identical = {
            row[-1].access_path
            for row in zip(*(t.events for t in work.traces), strict=True)
            if isinstance(row[-1], HeapRead)
            and (
                row[-1].kind in ("tensor", "object")
                or (row[-1].kind == "foreign" and not row[-1].access_path.waits_for)
            )
            and len({id(e.value) for e in row}) == 1
            and row[-1].access_path.token not in work.relaxed
        }
        self._places = {id(self.found[o].value): o for o in trace.access_paths.values() if o in self.found}
        names = {op.name for op in ops}
        self._backward = any(name.rpartition(".")[2] == "backward" for name in names)
        self.grads_used = self._backward or any(name.startswith("Tensor.grad.") for name in names)
        self.access_paths: list[AccessPath] = []
        self.refs: dict[int, Ref] = {}
        self.entries = tuple(self._entries())

    def pinned(self) -> tuple[torch.Tensor | None, ...]:
        """Return for each input the tensor that it was in all runs, or None if it was not always the same."""
        return tuple(
            self.found[access_path].value if access_path in self.identical else None
            for access_path in self.access_paths
        )

    def leaves(self) -> tuple[Ref, ...]:
        """Return the inputs whose ``.grad`` may differ after the call."""
        given = {self.refs.get(ref.number) for op in self._ops if op.name in _GIVING for ref in refs_in(op.args[:1])}
        return tuple(
            Ref(i)
            for i, entry in enumerate(self.entries)
            if self.grads_used and entry.is_leaf and (entry.requires_grad or Ref(i) in given)
        )

    def _entries(self) -> Iterator[Input]:
        """Yield the inputs: tensors that the graph uses, gradients that backward() accumulates into, carriers."""
        used, where = self._used(), self._trace.access_paths
        numbers = sorted(number for number in where if number in used)
        grads = [self._live_grad(number) if self._backward else None for number in numbers]
        self.refs.update((number, Ref(index)) for index, number in enumerate(numbers))
        self.access_paths += (where[number] for number in numbers)
        by_access_path = {access_path: index for index, access_path in enumerate(self.access_paths)}
        for access_path in (*(grad for grad in grads if grad is not None), *self._work.dimensions.carriers()):
            if access_path not in by_access_path:
                by_access_path[access_path] = len(self.access_paths)
                self.access_paths.append(access_path)
        for index, access_path in enumerate(self.access_paths):
            example = self.found[access_path].value
            # The state at entry: the call may have changed the example since.
            requires_grad, is_leaf = self.found[access_path].detail[-2:]
            grad = grads[index] if index < len(grads) else None
            bound = None if grad is None else Ref(by_access_path[grad])
            symbols = self._work.dimensions.of(access_path, len(self.found[access_path].detail[2]))
            strides = self._work.dimensions.strides[access_path] if symbols else ()
            yield Input(example, requires_grad, is_leaf, bound, str(access_path), symbols=symbols, strides=strides)

    def _used(self) -> set[int]:
        """Return the tensors that the graph computes with. Guards are enough for the others."""
        used = {ref.number for op in self._ops for ref in op.inputs}
        for event in self._trace.events:
            if isinstance(event, TensorPredicate):
                used.add(event.ref.number)
            elif isinstance(event, NumberPredicate | Specialization | HostComputation):
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

    def _live_grad(self, number: int) -> AccessPath | None:
        """Return the access path of the gradient that backward() accumulates into, or None if there is none then."""
        access_path = self._trace.access_paths[number].then(Step.FIELD, "grad")
        found = self.found.get(access_path)
        if found is None or found.value is None:
            return None
        access_path = self._places.get(id(found.value), access_path)  # it may have been read at another path first
        for op in self._ops:
            if op.name.rpartition(".")[2] == "backward" or isinstance(op.func, Begin):
                return access_path  # hooks may write it, but only after backward() begins
            if op.name == "Tensor.grad.__set__" and op.args[0] == TensorRef(number):
                return (
                    access_path
                    if any(ref.number in self._numbers_of(access_path) for o in self._ops for ref in refs_in(o.args))
                    else None
                )
        return access_path

    def _numbers_of(self, access_path: AccessPath) -> list[int]:
        return [number for number, where in self._trace.access_paths.items() if where == access_path]
