"""Classify the numbers of the runs: constants that stayed equal, inputs that changed, counters that the host can read.

One Numbers holds this for all traces of one path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.graph.ir.dimensions import Dimensions, is_size
from torchjanus.graph.ir.repetition import begin_iterations, end_iterations
from torchjanus.trace.actions import BatchedExtern, HostLoop, Op
from torchjanus.trace.events import Trace
from torchjanus.trace.expressions import evaluate
from torchjanus.trace.facts import HeapRead, HostComputation, NumberPredicate, Specialization
from torchjanus.trace.operands import expressions_in
from torchjanus.trace.recipes import Recipe, TensorOf, parts_of
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Apply, Expr, Fetch, InductionVariable, Read, Size, leaves

__all__ = [
    "HostBatch", "Numbers", "counting_step", "find_host_fetches", "need", "split_numbers", "taken_by", "tensors_in",
    "used_expressions", "value_of", "varies",
]  # fmt: skip

# In-place arithmetic on a one-element counter that the host can compute beside the graph (an optimizer's step).
_COUNTING: dict[str, Callable[..., Any]] = {
    "Tensor.add_": torch.add,
    "Tensor.__iadd__": torch.add,
    "Tensor.sub_": torch.sub,
    "Tensor.__isub__": torch.sub,
    "Tensor.mul_": torch.mul,
    "Tensor.__imul__": torch.mul,
    "torch._foreach_add_": torch.add,
}


@dataclass(slots=True)
class Numbers:
    """The traces of one path, and which of their numbers vary."""

    traces: Sequence[Trace]
    relaxed: frozenset[Any]
    constants: dict[AccessPath, Any] = field(default_factory=dict)
    varying: set[AccessPath] = field(default_factory=set)
    needed: dict[AccessPath, None] = field(default_factory=dict)  # constants that a computation used
    host: dict[Any, Fetch] = field(default_factory=dict)  # fetches that the host can make before the graph runs
    dimensions: Dimensions = field(default_factory=Dimensions)
    made_of_constants: dict[int, float | int] = field(default_factory=dict)  # torch.tensor(1.0), by the tensor's number
    _found: dict[int, tuple[Trace, dict[AccessPath, Any]]] = field(default_factory=dict)

    def found(self, run: int) -> Mapping[AccessPath, Any]:
        """Return the values read in a run, by access path (the first read of each)."""
        trace = self.traces[run]
        known = self._found.get(run)
        if known is None or known[0] is not trace:
            events = [event for event in trace.events if isinstance(event, HeapRead)]
            known = self._found[run] = trace, {event.access_path: event.value for event in reversed(events)}
        return known[1]


@dataclass(frozen=True, slots=True)
class HostBatch:
    """Numbers that the host reads from small input tensors before the graph runs, in one batch. ``inputs``: positions
    in the program's inputs of 0-d tensors of one dtype; ``steps``: the arithmetic that the program applies to each
    before the fetch; ``fetches[k]``: the fetch of ``inputs[k]``."""

    inputs: tuple[int, ...]
    steps: tuple[tuple[Callable[..., Any], float | int], ...]
    fetches: tuple[Fetch, ...]


def _same_number(values: Sequence[Any]) -> bool:
    return len({(type(v).__name__, repr(v)) for v in values}) == 1


def split_numbers(work: Numbers) -> None:
    """Decide which numbers are constant (equal in all runs) and which vary, and record that in ``work``."""
    for row in zip(*(trace.events for trace in work.traces), strict=True):
        first = row[-1]
        if isinstance(first, HeapRead) and first.kind == "number":
            values = [event.value for event in row]
            if first.access_path.step is Step.NUMBERS:
                work.varying.add(first.access_path)  # a list of numbers that may get longer
            elif is_size(first.access_path):
                base = first.access_path.base
                assert base is not None
                if work.dimensions.number(base, first.access_path.key) is not None:
                    work.varying.add(first.access_path)
                else:
                    work.constants[first.access_path] = first.value
            elif _same_number(values) and first.access_path.token not in work.relaxed:
                work.constants[first.access_path] = first.value
            else:
                work.varying.add(first.access_path)
    _relax_alike(work)


def _relax_alike(work: Numbers) -> None:
    """Let numbers vary where the same number of another element of their list does (the labels of a batch)."""
    kinds = {kind for access_path in work.varying if (kind := _any_element(access_path)) is not None}
    for access_path in [access_path for access_path in work.constants if kinds and _any_element(access_path) in kinds]:
        if access_path.step not in (Step.LEN, Step.SIZE):
            del work.constants[access_path]
            work.varying.add(access_path)


def _any_element(access_path: AccessPath) -> Any:
    """Return the path without its indices; None where it has none."""
    free = [at.step is Step.ITEM and type(at.key) is int for at in access_path.prefixes()]
    steps = (at.step if one else (at.step, at.token[-1]) for at, one in zip(access_path.prefixes(), free, strict=True))
    return tuple(steps) if any(free) else None


def varies(work: Numbers, expr: Any) -> bool:
    """Whether a number may differ from call to call."""
    return isinstance(expr, Expr) and any(_leaf_varies(work, leaf) for leaf in leaves(expr))


def _leaf_varies(work: Numbers, leaf: Expr) -> bool:
    if isinstance(leaf, Read):
        return leaf.access_path in work.varying
    if isinstance(leaf, InductionVariable):
        return bool(leaf.step)
    # Which sizes in the graph depend on those of its inputs is known only after lowering.
    return isinstance(leaf, Fetch) or bool(work.dimensions)


def need(work: Numbers, expr: Expr) -> None:
    """Record that the constants in the expression were used, so that they get a guard."""
    for leaf in leaves(expr):
        if isinstance(leaf, Read) and leaf.access_path in work.constants:
            work.needed[leaf.access_path] = None


def used_expressions(trace: Trace) -> Iterator[Expr]:
    """Yield the expressions whose values the run uses: operands, computations, trip counts, results."""
    for event in trace.events:
        if isinstance(event, Op):
            yield from expressions_in(event.args)
            yield from expressions_in(event.kwargs)
        elif isinstance(event, HostComputation):
            yield event.expr
        elif isinstance(event, HostLoop):
            yield event.count
        elif isinstance(event, BatchedExtern) and event.count is not None:
            yield event.count
    yield from expressions_in(trace.result)
    for recipes in trace.recipes.values():
        yield from expressions_in(recipes)


def value_of(work: Numbers, expr: Any, run: int = -1) -> Any:
    """Return the value of the expression in a run."""

    def read(part: Any) -> Any:
        if isinstance(part, Fetch | Size):
            return work.traces[run].fetched[part.token]
        if isinstance(part, Read):
            found = work.constants if part.access_path in work.constants else work.found(run)
            return found[part.access_path]
        return part.first if isinstance(part, InductionVariable) else part

    return evaluate(expr, read)


def taken_by(ops: Sequence[Op]) -> dict[int, list[tuple[int, Op]]]:
    """Return for each tensor the operations that take it, in program order, each with its index."""
    consumers: dict[int, list[tuple[int, Op]]] = {}
    for index, op in enumerate(ops):
        for number in {ref.number for ref in op.inputs}:
            consumers.setdefault(number, []).append((index, op))
    return consumers


def find_host_fetches(work: Numbers, trace: Trace, ops: list[Op]) -> None:
    """Record in ``work.host`` the fetches that the host can make before the graph runs: of inputs that only count."""
    wanted: dict[Any, Fetch] = {}
    for expr in used_expressions(trace):
        wanted.update((leaf.token, leaf) for leaf in leaves(expr) if isinstance(leaf, Fetch))
    for event in trace.events:
        if isinstance(event, NumberPredicate | Specialization):
            wanted.update((leaf.token, leaf) for leaf in leaves(event.expr) if isinstance(leaf, Fetch))
    if not wanted:
        return
    consumers = taken_by(ops)
    work.made_of_constants = dict(_amounts(ops, consumers))
    loops = list(_marked(ops))
    for token, fetch in wanted.items():
        if fetch.type not in (int, float):
            continue
        tensor = trace.tensors[fetch.ref] if fetch.ref in trace.access_paths else None
        if tensor is not None and trace.access_paths[fetch.ref].waits_for:
            continue
        if tensor is None or tensor.dim() != 0 or tensor.is_meta or tensor.requires_grad:
            continue
        before = [(index, op) for index, op in consumers.get(fetch.ref, []) if index < fetch.after]
        if any(begin < index < end < fetch.after for index, _ in before for begin, end in loops):
            continue  # the kept iterations do not show how often all iterations change it
        if all(counting_step(work, op) is not None for _, op in before):
            work.host[token] = fetch


def _marked(ops: list[Op]) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of the operations that enclose the kept iterations of each loop."""
    begins: list[int] = []
    for index, op in enumerate(ops):
        if op.func is begin_iterations:
            begins.append(index)
        elif op.func is end_iterations:
            yield begins.pop(), index


def _amounts(ops: list[Op], consumers: Mapping[int, Sequence[tuple[int, Op]]]) -> Iterator[tuple[int, float | int]]:
    """Yield the tensors made of one constant that are used only as the amount of a counting step, with the constant."""
    for op in ops:
        if op.name == "torch.tensor" and len(op.args) == 1 and type(op.args[0]) in (int, float):
            number = op.outs[0].number
            own = (taker for _, taker in consumers.get(number, ()))
            if all(t.name in _COUNTING and len(t.args) == 2 and t.args[1] == op.outs[0] for t in own):
                yield number, op.args[0]


def counting_step(work: Numbers, op: Op) -> tuple[Callable[..., Any], float | int] | None:
    """Return the function and the constant amount of an operation that only counts, or None for any other operation."""
    func = _COUNTING.get(op.name)
    if func is None or len(op.args) != 2 or (op.kwargs and op.kwargs != {"alpha": 1}):
        return None
    amount = op.args[1]
    if isinstance(amount, TensorRef):
        amount = work.made_of_constants.get(amount.number)
    if isinstance(amount, Read | Apply) and not varies(work, amount):
        need(work, amount)
        amount = value_of(work, amount)
    return (func, amount) if type(amount) in (int, float) else None


def tensors_in(recipe: Recipe) -> Iterator[TensorRef]:
    """Yield the tensors that a recipe needs."""
    return (part.ref for part in parts_of(recipe) if isinstance(part, TensorOf))
