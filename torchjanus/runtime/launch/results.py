"""Generates the tensors and numbers that an entry's graph returns: each as eager would return it, and made once.

It does not know what is done with them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from torchjanus.core.errors import NOWHERE, refused
from torchjanus.graph.generalize.generalize import EntryPlan
from torchjanus.graph.ir.lowered import Fresh, FromInput, GradState, Lowered, NoGradient, Result, ViewOf
from torchjanus.host.source import Source
from torchjanus.runtime.launch.differentiable import Differentiable
from torchjanus.trace.layout import reinterpreted
from torchjanus.trace.values import Fetch

__all__ = ["Results"]

_FREED_TEXT = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    "freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify "
    "retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors "
    "after calling backward."
)
_LEAF = torch.zeros((), requires_grad=True)


@functools.cache
def _freed(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that returns a tensor as eager leaves it after backward(): it requires grad, a second backward
    raises, and its text shows the node of this name. The argument is not changed: it, or a view of it, may be returned
    too (``y, y.detach()``)."""

    class Freed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, tensors: list[torch.Tensor], _: torch.Tensor) -> torch.Tensor:
            return tensors[0]

    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        raise RuntimeError(_FREED_TEXT)

    kind: Any = Freed._backward_cls
    kind.__name__ = name
    kind.apply = backward  # what the engine calls
    apply: Any = super(torch.autograd.Function, Freed).apply  # no transform is active

    def made(tensor: torch.Tensor) -> torch.Tensor:
        # With a version counter of its own, as the result of an operation.
        if torch.is_grad_enabled():
            return apply([tensor.data], _LEAF)  # type: ignore[no-any-return]
        with torch.enable_grad():
            return apply([tensor.data], _LEAF)  # type: ignore[no-any-return]

    return made


def _inference(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy as an inference tensor: a graph makes ordinary tensors, and cannot change their kind."""
    with torch.inference_mode():
        return tensor.clone()


def _view(
    base: torch.Tensor,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    creation: str,
    differentiable: bool,
    conjugated: bool,
    negated: bool,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return a view of ``base`` as autograd in eager would have made it."""
    with torch.set_grad_enabled(differentiable):
        below = base if dtype == base.dtype else reinterpreted(base, dtype)
        made = below.as_strided(size, stride, offset)
        made = made.conj() if conjugated else made
        made = made._neg_view() if negated else made
    if not differentiable:
        torch._C._autograd._set_creation_meta(made, getattr(torch._C._autograd.CreationMeta, creation))
    return made


class Results:
    """Writes into ``source``, where the graph's results are a list ``values``. ``inputs``: the names of its inputs;
    ``nodes``: by tensor number, the names of the autograd nodes that eager's results show."""

    def __init__(
        self, source: Source, plan: EntryPlan, lowered: Lowered, inputs: Mapping[int, str], nodes: Mapping[int, str]
    ) -> None:
        self.source = source
        self.plan = plan
        self.lowered = lowered
        self.differentiable = None if lowered.pullback is None else Differentiable(lowered)
        self.slots = "[]"  # the text of the list of the graph's slots
        self._differentiable_results = ""  # the name of the results that autograd has been given
        self.place = NOWHERE  # of the write or call whose values are made
        self._inputs = inputs
        places = {number: plan.outputs.get(("tensor", number)) for number in nodes}
        self._nodes = {lowered.outputs[at]: nodes[number] for number, at in places.items() if at is not None}
        self._tensors: dict[Any, str] = {}
        self._raw: dict[Any, str] = {}
        self._owner: dict[str, int] = {}  # the tensor of the trace that each text represents
        self._aliases: dict[int, str] = {}
        self._inference: dict[int, str] = {}  # values that leave as inference tensors
        self._known: dict[int, str] = {}  # outputs that an earlier cut has returned
        self._columns: dict[int, str] = {}  # lists of the rows that leave the call, by their stack

    def give_cut(self, stage: int) -> None:
        """Take the outputs at the cut before this stage from the list ``cut``."""
        for position, number in enumerate(self.lowered.program.cuts[stage - 1].outputs):
            self._known[number] = f"cut[{position}]"

    def raw(self, result: Result) -> str:
        """Return a result's tensor without autograd state."""
        match result.source:
            case Fresh(index=index):
                return self._as_inference(index) if result.inference else f"values[{index}]"
            case FromInput(index=index):
                return self._inputs[index]
            case ViewOf(base=base, size=size, stride=stride, offset=offset) as made:
                key = (made, result.inference)
                name = self._raw.get(key)
                if name is None:
                    name = self._raw[key] = self.source.fresh("w")
                    below = self.raw(Result(base, inference=result.inference))
                    source = self.source
                    if isinstance(base, FromInput):
                        # The commit runs in the caller's grad mode: a view of a parameter would have a backward graph.
                        below = f"{below}.detach()"
                    below = self._as_dtype(below, made)
                    shape, step = (f"({''.join(f'{source.number(part)}, ' for part in p)})" for p in (size, stride))
                    at = source.number(offset)
                    source.line(
                        f"{name} = {below}.as_strided({shape}, {step}, {below}.storage_offset() + {at}){made.bits}"
                    )
                return name
            case NoGradient():
                return "None"

    def _as_inference(self, index: int) -> str:
        """Return value ``index`` as eager's inference mode makes it."""
        name = self._inference.get(index)
        if name is None:
            name = self._inference[index] = self.source.fresh("i")
            self.source.line(f"{name} = {self.source.constant(_inference)}(values[{index}])")
        return name

    def dressed(self, result: Result) -> str:
        """Return a result's tensor as eager would return it."""
        if isinstance(result.source, FromInput | NoGradient):
            return self.raw(result)
        alone = result.base is None and not isinstance(result.source, ViewOf)
        if (alone or result.inference) and result.state is GradState.PLAIN:
            return self.raw(result)
        key = result if isinstance(result.source, ViewOf) else result.source
        name = self._tensors.get(key)
        if name is None:
            name = self._tensors[key] = self._made(result)
        return name

    def _made(self, result: Result) -> str:
        """Make a new tensor object for a result."""
        source = result.source
        if result.base is not None and isinstance(source, ViewOf) and not result.inference:
            return self._view_of(result, self.dressed(result.base))
        name = self.source.fresh("t")
        if not isinstance(source, ViewOf) or result.inference:
            self.source.line(f"{name} = {self._dress(self.raw(result), result)}")
            return name
        below, place = self._placed(source)
        part = f"{below}.as_strided({place}){source.bits}.{'data' if result.apart else 'detach()'}"
        self.source.line(f"{name} = {self._dress(part, result)}")
        return name

    def _view_of(self, result: Result, base: str) -> str:
        """Return a new name of the view of a base that a result is to autograd."""
        source = result.source
        assert isinstance(source, ViewOf)
        name = self.source.fresh("t")
        below, place = self._placed(source)
        differentiable = result.state in (GradState.FREED, GradState.LIVE)  # what is made without gradients is a leaf
        bits = f"{source.conjugated}, {source.negated}, {below}.dtype"
        view = self.source.constant(_view)
        self.source.line(f"{name} = {view}({base}, {place}, {result.creation!r}, {differentiable}, {bits})")
        return name

    def _placed(self, source: ViewOf) -> tuple[str, str]:
        """Return the name of the base of a view, and the text of the view's size, strides and offset there."""
        below = self._as_dtype(self.raw(Result(source.base)), source)
        shape, step = (f"({''.join(f'{self.source.number(n)}, ' for n in p)})" for p in (source.size, source.stride))
        return below, f"{shape}, {step}, {below}.storage_offset() + {self.source.number(source.offset)}"

    def _as_dtype(self, below: str, view: ViewOf) -> str:
        """Return the name of a base with the dtype of its view."""
        if view.dtype is None:
            return below
        name = self.source.fresh("r")
        self.source.line(f"{name} = {self.source.constant(reinterpreted)}({below}, {self.source.constant(view.dtype)})")
        return name

    def _dress(self, raw: str, result: Result) -> str:
        if result.state is GradState.PLAIN:
            return raw
        if result.state is GradState.FREED:
            return f"{self.source.constant(_freed(self._nodes.get(result, 'Error')))}({raw})"
        return f"{raw}.detach().requires_grad_()"

    def _live(self, result: Result) -> str:
        """Return the tensor of a result with its backward pass to come."""
        assert self.differentiable is not None
        if not self._differentiable_results:
            name = self._differentiable_results = self.source.fresh("d")
            given = ", ".join(self._inputs[index] for index in range(len(self.lowered.program.inputs)))
            hand = self.source.constant(self.differentiable)
            self.source.line(f"{name} = {hand}(values, [{given}], {self.slots})")
        outputs = self.lowered.outputs
        places = (k for k, place in enumerate(self.differentiable.saves.results) if outputs[place] == result)
        return f"{self._differentiable_results}[{next(places)}]"

    def _is_of_live(self, result: Result) -> bool:
        """Whether it is a view of a result of the graph whose backward pass is to come."""
        assert self.differentiable is not None
        results = [self.lowered.outputs[place] for place in self.differentiable.saves.results]
        return result not in results and result.base in results

    def tensor(self, number: int) -> str:
        result = self.lowered.outputs[self.plan.outputs["tensor", number]]
        if result.state is GradState.LIVE:
            known = self._aliases.get(number)
            if known is None and self._is_of_live(result):
                assert result.base is not None
                known = self._aliases[number] = self._view_of(result, self._live(result.base))
            return known or self._live(result)
        name = self.dressed(result)
        if isinstance(result.source, NoGradient) or self._owner.setdefault(name, number) == number:
            return name
        # In eager these are two objects on one memory (y and y.detach()).
        known = self._aliases.get(number)
        if known is None:
            if isinstance(result.source, ViewOf) and not result.inference:
                known = self._aliases[number] = self._made(result)
                return known
            known = self._aliases[number] = self.source.fresh("a")
            alias = f"{self.raw(result)}.detach()"
            self.source.line(f"{known} = {self._dress(alias, result)}")
        return known

    def tensor_at(self, number: int, after: int) -> str:
        return self._output(self.plan.outputs["at", number, after])

    def rows(self, number: int, alone: bool) -> str:
        """Return the name of a list of the rows of a stacked tensor, each on its own memory. ``alone``: see RowOf."""
        name = self._columns.get(number)
        if name is None:
            result = self.lowered.outputs[self.plan.outputs["tensor", number]]
            if result.state is not GradState.PLAIN and not alone:
                what = "tensors that iterations of a loop hand out have a backward graph"
                why = "The loop is one function of torch, with one backward graph for all iterations."
                raise refused("loop-output-gradient", what, why, "Hand out tensor.detach().", self.place)
            name = self._columns[number] = self.source.fresh("r")
            row = self._dress("row.clone()", result)
            self.source.line(f"{name} = [{row} for row in {self.raw(result)}.unbind(0)]")
        return name

    def fetch(self, fetch: Fetch) -> str:
        if fetch.each:
            name, output = self.source.fresh("c"), self._output(self.plan.outputs[fetch.ref, fetch.after])
            listed = f"{output}.unbind(0)"
            if fetch.type in (int, float, bool):
                kind, index = fetch.type.__name__, fetch.index or 0
                listed = f"list(map({kind}, {output}.reshape({output}.size(0), -1)[:, {index}].tolist()))"
            self.source.line(f"{name} = {listed}")
            return name
        if fetch.type not in (int, float, bool):  # the tensor itself, to be shown
            return self._output(self.plan.outputs[fetch.ref, fetch.after])
        name = self.source.fresh("f")
        call = "item()" if fetch.index is None else f"reshape(-1)[{fetch.index}].item()"
        raw = f"{self._output(self.plan.outputs[fetch.ref, fetch.after])}.{call}"
        self.source.line(f"{name} = {fetch.type.__name__}({raw})")
        return name

    def _output(self, number: int) -> str:
        known = self._known.get(number)
        if known is not None:
            return known
        result = replace(self.lowered.outputs[number], inference=False)
        # A fetch from an input whose memory is replaced reads the new memory.
        moved = (one.result for one in self.lowered.replaced if FromInput(one.index) == result.source)
        return self.raw(next(moved, result))
