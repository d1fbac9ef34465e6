"""Hands results of a graph to autograd: one node of the backward graph, whose backward pass is a graph, too.

The node behaves as the nodes that eager would have made: it keeps what they keep, checks its versions, and frees it.
The graph serves the usual backward pass only. Any other (gradients of another layout or of some results only, with
``create_graph``, under autocast) is made by autograd, from what was saved. Knows nothing of entries and guards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchjanus.core.default_device import without_function_modes
from torchjanus.core.errors import InternalFault, JanusError
from torchjanus.core.one_at_a_time import MAKING
from torchjanus.execute.running.base import Violated
from torchjanus.graph.ir.lowered import Fresh, FromInput, Lowered, Source, ViewOf
from torchjanus.graph.lowering.differentiable import backward_of
from torchjanus.graph.tracing.pull import pull
from torchjanus.graph.tracing.recompute import results_again
from torchjanus.ops.aten import operator_of
from torchjanus.trace.blanks import blank
from torchjanus.trace.layout import reinterpreted

__all__ = ["Differentiable"]

Run = Callable[[list[torch.Tensor], Sequence[float | int]], list[torch.Tensor] | Violated]
Gradients = list[torch.Tensor | None]

_OFTEN = 2  # backward passes of one kind before a graph is made of it


class _Kind:
    """One kind of backward pass: of which results there are gradients, and how these are laid out."""

    def __init__(self, lowered: Lowered) -> None:
        self.run: Run | None = None
        self.lowered = lowered
        self._made = [_maker(result.source) for result in lowered.outputs]
        sources = (result.source for result in lowered.outputs)
        bases = (source.base if isinstance(source, ViewOf) else source for source in sources)
        self._taken = sorted({base.index for base in bases if isinstance(base, FromInput)})

    def use(self, run: Run) -> None:
        """Run the graph by ``run`` from the next pass on."""
        self.run = run

    def gradients(self, given: list[torch.Tensor], slots: Sequence[float | int]) -> list[Any]:
        """Return the graph's gradients of uses, in order. Removes what it was given from the list."""
        assert self.run is not None
        kept = {index: given[index] for index in self._taken}
        values = self.run(given, slots)
        assert isinstance(values, list)
        return [make(values, kept) for make in self._made]


class Differentiable:
    """The results of one entry's graph that have their backward pass still to come.

    ``engine(lowered, exchange)`` runs further backward graphs that turn out to be needed.
    """

    def __init__(self, lowered: Lowered) -> None:
        pullback = lowered.pullback
        assert pullback is not None
        self.saves = saves = pullback.saves
        self.lowered = lowered
        self.first = _Kind(pullback.backward)
        self.engine: Callable[[Lowered, Callable[[Run], None]], object] | None = None
        self.doubled = False  # whether a backward pass with create_graph=True has come
        self._kinds: dict[Any, _Kind | int | None] = {}
        count = len(saves.saved)
        tangents = [entry.example for entry in pullback.backward.program.inputs[count:]]
        self._first_key = tuple(tangent.stride() for tangent in tangents)
        self._saved = [self._keeper(source) for source in saves.saved]
        self._results = [_maker(lowered.outputs[place].source) for place in saves.results]
        self._gated = [place for place in saves.order if saves.inner[place]]
        alone = (saves.nodes[place] for place in saves.order if not saves.inner[place])
        self._apply = _node(self, next(alone, saves.nodes[0]))
        self._gates = {place: _gate(self, place, saves.nodes[place]) for place in self._gated}
        # Inputs without gradients that are kept, for the case that autograd makes a backward pass.
        checks = any(operator_of(node.target).may_raise for node in lowered.graph.graph.nodes)
        plain = (k for k, entry in enumerate(lowered.program.inputs) if not entry.requires_grad)
        self.kept = tuple(plain) if checks else ()

    def __call__(
        self, values: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], slots: Sequence[float | int]
    ) -> tuple[torch.Tensor, ...]:
        """Return the results, each with its place in autograd's graph, from the values of a run."""
        saved = [make(values, inputs) for make in self._saved]
        # A tensor of its own, with the version counter of what is saved: no view, for autograd would forbid changes.
        results = tuple(make(values, inputs).detach() for make in self._results)
        call = _Call(saved, results, inputs, slots)
        used = [inputs[index] for index in self.saves.uses]
        with contextlib.nullcontext() if torch.is_grad_enabled() else torch.enable_grad():
            made: tuple[torch.Tensor, ...] = self._apply(call, *used)
            return self._behind_gates(made, used) if self._gated else made

    def _behind_gates(self, made: Sequence[torch.Tensor], used: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the results, those that are computed from others behind gates."""
        found = [*made]
        for place in self._gated:
            inner = [found[other] for other in self.saves.inner[place]]
            found[place] = self._gates[place](inner, made[place], *inner, *used, _PROBE)
        return tuple(found)

    def through_gate(self, ctx: Any, place: int, tangent: torch.Tensor | None) -> Gradients:
        """Return the gradients for what a gate was given: result ``place``, those that it is computed from, uses of
        inputs, the probe.

        As long as nothing reads gradients of the results within, the whole gradient goes on to the graph."""
        if torch.is_grad_enabled():
            self.doubled = True
        within = self.saves.inner[place]
        gradients: Gradients = [None] * len(within)
        nothing: Gradients = [None] * (len(within) + len(self.saves.uses) + 1)
        if tangent is None or not (_runs_partly(ctx) or any(map(_is_looked_at, ctx.inner))):
            return [tangent, *nothing]
        node = ctx.next_functions[0][0]
        saved = list(node.saved_tensors) if self.saves.saved else []
        attached = torch.is_grad_enabled()
        known = dict(zip(within, ctx.inner, strict=True))
        inner = {
            self.lowered.program.outputs[self.saves.results[k]].index: (
                one.view_as(one) if attached else one.detach().requires_grad_()
            )
            for k, one in known.items()
        }
        results, given = self._again(node, saved, inner)
        others, names, indices = [], [*known], [*given]
        for at, gradient in pull(
            [results[place]], [tangent], [*inner.values(), *given.values()], create_graph=attached
        ):
            if at < len(names):
                free = (k for k, one in enumerate(within) if one == names[at] and gradients[k] is None)
                gradients[next(free)] = gradient
            else:
                others.append((indices[at - len(names)], gradient))
        return [None, *gradients, *self._placed(others), None]

    def _keeper(self, source: Source) -> Callable[[Any, Any], torch.Tensor]:
        """Return a function that finds a saved tensor. The view of a parameter is made once for its memory."""
        make = _maker(source)
        if not isinstance(source, ViewOf) or not isinstance(source.base, FromInput):
            return make
        index = source.base.index
        if not isinstance(self.lowered.program.inputs[index].example, torch.nn.Parameter):
            return make
        last: tuple[Any, int, torch.Tensor] | None = None

        def kept(values: Any, inputs: Any) -> torch.Tensor:
            nonlocal last
            base, known = inputs[index], last  # calls may come from several threads
            # The view keeps its memory alive, so no other memory has its address.
            if known is None or known[0] is not base or known[1] != base.data_ptr():
                known = last = base, base.data_ptr(), make(values, inputs)
            return known[2]

        return kept

    def backward(self, ctx: Any, tangents: tuple[torch.Tensor | None, ...]) -> Gradients:
        """Return the gradient of each use of an input. Raises what eager's backward pass does."""
        if torch._C._len_torch_function_stack():
            with without_function_modes():  # they do not see what eager's nodes do
                return self.backward(ctx, tangents)
        if all(tangent is None for tangent in tangents):
            return [None] * len(self.saves.uses)
        saved = list(ctx.saved_tensors) if self.saves.saved else []
        if torch.is_grad_enabled():
            self.doubled = True
            return self._by_autograd(ctx, saved, tangents)
        if not _is_plain(tangents) or _is_modified():
            return self._by_autograd(ctx, saved, tangents)
        kind = self._kind(tangents)
        if kind is None:
            return self._by_autograd(ctx, saved, tangents)
        given = [*saved, *(tangent for tangent in tangents if tangent is not None)]
        saved.clear()
        ctx.maybe_clear_saved_tensors()  # each is freed after its last use in the graph
        found = kind.gradients(given, ctx.slots)
        return found if kind is self.first else self._placed(list(zip(kind.lowered.uses, found, strict=True)))

    def _kind(self, tangents: Sequence[torch.Tensor | None]) -> _Kind | None:
        """Return the graph for such gradients; None where there is none."""
        key = tuple(None if tangent is None else tangent.stride() for tangent in tangents)
        if key == self._first_key:
            return self.first
        known = self._kinds.get(key, 0)
        if not isinstance(known, int):
            return known
        if known + 1 < _OFTEN or self.engine is None:
            self._kinds[key] = known + 1
            return None
        self._kinds[key] = None
        there = [place for place, tangent in enumerate(tangents) if tangent is not None]
        examples = [blank(tangent) for tangent in tangents if tangent is not None]
        if not MAKING.acquire(blocking=False):
            self._kinds[key] = known  # once more
            return None
        try:
            made = backward_of(self.lowered, there, examples)
        except JanusError:  # autograd makes such passes
            return None
        finally:
            MAKING.release()
        if not made.pinned.keys() <= self.lowered.pinned.keys():
            return None
        kind = self._kinds[key] = _Kind(made)
        self.engine(made, kind.use)
        return kind

    def _by_autograd(
        self, ctx: Any, saved: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor | None]
    ) -> Gradients:
        """Make the backward pass by autograd, on its own nodes, which take what was saved."""
        results, given = self._again(ctx, saved)
        there = [(result, tangent) for result, tangent in zip(results, tangents, strict=True) if tangent is not None]
        found = pull(
            [result for result, _ in there],
            [tangent for _, tangent in there],
            [*given.values()],
            create_graph=torch.is_grad_enabled(),
        )
        indices = [*given]
        return self._placed([(indices[place], gradient) for place, gradient in found])

    def _again(
        self, ctx: Any, saved: Sequence[torch.Tensor], inner: dict[int, torch.Tensor] | None = None
    ) -> tuple[list[torch.Tensor], dict[int, torch.Tensor]]:
        """Return the results with eager's backward graph, and what stands for inputs in it. See ``results_again``."""
        lowered, attached = self.lowered, torch.is_grad_enabled()
        wanted = {index: ctx.wanted[place] for place, index in enumerate(sorted({*self.saves.uses}))}
        others = dict(zip(self.kept, ctx.kept, strict=True))
        if attached and any(
            tensor._version != version for tensor, version in zip(ctx.wanted, ctx.versions, strict=True)
        ):
            raise RuntimeError(
                "torchjanus: a backward pass with create_graph=True through a speculated function whose inputs have "
                "changed in place since. Call the function by Python: its attribute `fn`."
            )
        return results_again(lowered, saved, wanted, others, ctx.slots, attached=attached, inner=inner)

    def _placed(self, found: Sequence[tuple[int, torch.Tensor]]) -> Gradients:
        """Return the gradients at the places of the uses of their inputs."""
        gradients: Gradients = [None] * len(self.saves.uses)
        for index, gradient in found:
            free = (k for k, use in enumerate(self.saves.uses) if use == index and gradients[k] is None)
            place = next(free, None)
            if place is None:
                raise InternalFault(f"input {index} has more gradients than uses")
            gradients[place] = gradient
        return gradients


class _Call:
    """What one call gives to its node."""

    __slots__ = ("inputs", "results", "saved", "slots")

    def __init__(self, saved: Any, results: Any, inputs: Any, slots: Any) -> None:
        self.saved, self.results, self.inputs, self.slots = saved, results, inputs, slots


def _node(differentiable: Differentiable, name: str) -> Any:
    """Return ``apply`` of the autograd.Function of one graph. Its nodes print as eager's node of the first result."""
    indices = sorted({*differentiable.saves.uses})

    def backward(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        return (None, *differentiable.backward(ctx, tangents))

    class Node(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, call: _Call, *_: torch.Tensor) -> tuple[torch.Tensor, ...]:
            ctx.save_for_backward(*call.saved)
            ctx.set_materialize_grads(False)
            ctx.slots = call.slots
            ctx.wanted = [call.inputs[index] for index in indices]
            ctx.kept = [call.inputs[index] for index in differentiable.kept]
            ctx.versions = [tensor._version for tensor in ctx.wanted]
            return call.results  # type: ignore[no-any-return]

    kind: Any = Node._backward_cls
    kind.__name__ = name
    kind.apply = backward  # what the engine calls
    return super(torch.autograd.Function, Node).apply  # no transform is active


# Autograd would go on to it from each gate, but for passes for some tensors only.
_PROBE = torch.zeros((), requires_grad=True)


def _gate(differentiable: Differentiable, place: int, name: str) -> Any:
    """Return ``apply`` of the autograd.Function through which the gradient of one result goes that is computed from
    others: autograd may be asked for the gradients of those. Its nodes print as eager's node of the result."""

    def backward(ctx: Any, tangent: torch.Tensor | None) -> Any:
        return (None, *differentiable.through_gate(ctx, place, tangent))

    class Gate(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, inner: list[torch.Tensor], result: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
            ctx.set_materialize_grads(False)
            ctx.inner = inner
            return result.detach()

    kind: Any = Gate._backward_cls
    kind.__name__ = name
    kind.apply = backward  # what the engine calls
    return super(torch.autograd.Function, Gate).apply  # no transform is active


def _runs_partly(gate: Any) -> bool:
    """Whether the backward pass in progress is for some tensors only (``autograd.grad``, ``inputs=``)."""
    return not torch._C._will_engine_execute_node(gate.next_functions[-1][0])


def _is_looked_at(result: torch.Tensor) -> bool:
    """Whether the gradient of a result is kept, or given to hooks."""
    return result.retains_grad or bool(result._backward_hooks)


def _maker(source: Source) -> Callable[[Any, Any], torch.Tensor]:
    """Return a function that finds a tensor among a run's values and inputs. It takes part in no backward graph."""
    if isinstance(source, Fresh):
        index = source.index
        return lambda values, inputs: values[index]
    if isinstance(source, FromInput):
        index = source.index
        return lambda values, inputs: inputs[index]
    if not isinstance(source, ViewOf):
        raise InternalFault(f"{source} is no tensor")
    below, view = _maker(source.base), source
    size: Any = view.size
    stride: Any = view.stride
    offset: Any = view.offset

    def make(values: Any, inputs: Any) -> torch.Tensor:
        base = below(values, inputs).detach()
        base = base if view.dtype is None else reinterpreted(base, view.dtype)
        made = base.as_strided(size, stride, base.storage_offset() + offset)
        made = made.conj() if view.conjugated else made
        return made._neg_view() if view.negated else made

    return make


def _is_plain(tangents: Sequence[torch.Tensor | None]) -> bool:
    for tangent in tangents:
        if tangent is not None and (
            type(tangent) is not torch.Tensor
            or tangent.layout is not torch.strided
            or tangent.is_conj()
            or tangent.is_neg()
        ):
            return False
    return True


def _is_modified() -> bool:
    """Whether something changes what operators do, or sees them: the graph would not obey it."""
    return torch._C._is_any_autocast_enabled() or torch._C._len_torch_dispatch_stack() > 0 or torch.is_anomaly_enabled()
