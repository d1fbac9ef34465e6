"""Records one call natively: each of torch's calls is really made, and becomes an event.

What co-execution does not support is found here, and the trace is refused; the program goes on in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from torchjanus.core.errors import NOWHERE, Place, Refusal
from torchjanus.core.trees import map_leaves
from torchjanus.graph.ir.program import Ref
from torchjanus.runtime.coexecution.recording import composites
from torchjanus.runtime.coexecution.recording.arrays import (
    SharedArrays,
    Shown,
    copied,
    memory_of,
    same_bits,
    shares,
    storage_of,
)
from torchjanus.runtime.coexecution.recording.composites import Section
from torchjanus.runtime.coexecution.recording.events import (
    Event,
    External,
    Kind,
    Provenance,
    Trace,
    here,
    is_constant,
    meta_of,
)
from torchjanus.runtime.coexecution.recording.kinds import FLOATS, Called, called, kind_of
from torchjanus.runtime.coexecution.recording.lifetimes import is_dropped_observed, release
from torchjanus.runtime.coexecution.recording.lines import call_from_line
from torchjanus.runtime.coexecution.recording.observer import Observer
from torchjanus.semantics.known.framework_calls import accessor
from torchjanus.semantics.native.text_expressions import history_of
from torchjanus.semantics.torch.torch_state import ambient_modes, generator_state
from torchjanus.trace.layout import result_layout_of

__all__ = ["REMEDY", "Recorder"]

REMEDY = "The call is Python's. Speculate on the parts of the step without it."
_LARGEST = 1 << 16  # bytes of an array that are compared after each call


class Recorder(TorchFunctionMode):
    """The trace in the making, as the mode that gets torch's calls. ``arguments``: the tensors among the step's
    arguments. ``copies``: whether to copy each tensor from outside when it is met."""

    def __init__(self, arguments: Iterable[torch.Tensor], copies: bool = False) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.externals: dict[int, External] = {}
        self.tensors: dict[int, torch.Tensor] = {}
        self.fetched: dict[int, Any] = {}  # what each FETCH gave
        self.copies: dict[int, torch.Tensor] | None = {} if copies else None
        self.refusal: Refusal | None = None
        self.observer = Observer(self._seen)
        self.is_opaque = False  # whether the call has done what torch's calls do not show
        self.sections: list[Section] = []
        self._numbers: dict[int, int] = {}
        self._arguments = {id(tensor) for tensor in arguments}
        self._shared: dict[int, torch.Tensor] = {}  # copies of tensors that share memory with arrays
        self._versions: dict[int, int] = {}  # of tensors from outside when they were met
        self._arrays = SharedArrays()

    def refuse(self, reason: str, what: str, why: str, place: Place | None = None) -> None:
        """Make the call one that is not co-executed. The first reason counts."""
        if self.refusal is None:
            self.refusal = Refusal(reason, what, why, REMEDY, place or here())

    def refuse_error(self, place: Place | None = None) -> None:
        """Do so because an operation has raised."""
        self.refuse("coexecution-raises", "an operation raises", "a skeleton could not raise it there.", place)

    def _seen(self, reason: str, what: str, why: str, place: Place) -> None:
        self.is_opaque = True
        self.refuse(reason, what, why, place)
        self.let_go()

    def let_go(self) -> None:
        """Hold no tensors: nothing is learnt from the call, and the program may ask how long they live."""
        self.tensors, self.copies = {}, None
        self.fetched.clear()
        self._shared.clear()
        self._arrays = SharedArrays()

    def is_refused(self) -> bool:
        """Whether nothing is learnt from the call."""
        return self.refusal is not None

    # -- calls ----------------------------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Make the call, and record it."""
        kwargs = kwargs or {}
        if self.is_refused():
            return call_from_line(func, args, kwargs)
        func = accessor(func)
        self._look_at_arrays()
        known = self._kind(func, args, kwargs)
        if self.is_refused():
            return call_from_line(func, args, kwargs)
        given = self._given(func, args, kwargs, known)
        if self.is_refused():
            return call_from_line(func, args, kwargs)
        before, modes = generator_state(), ambient_modes()
        self.observer.within = known is Kind.OPERATOR  # the others are really made in a skeleton, too
        try:
            result = call_from_line(func, args, kwargs)
        except BaseException:
            self.observer.within = False
            self.refuse_error()
            raise
        finally:
            self.observer.within = False
        if self.is_refused():
            return result
        draws = generator_state() != before
        try:
            self._record(func, known, *given, result, modes, draws)
        except _Odd as odd:
            what = f"a call of torch gives what no path can hold ({odd})"
            self.refuse("coexecution-call", what, "it is neither a tensor nor plain data.")
        return result

    def _kind(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Kind:
        found = kind_of(func, args, kwargs)
        if torch.is_inference_mode_enabled() or torch._C._is_any_autocast_enabled():
            what = "runs under torch.inference_mode() or torch.autocast()"
            self.refuse("coexecution-modes", what, "a run that diverges could not be put back into its state.")
        if torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack() is not None:
            what = "calls torch under a transform or a dispatch mode"
            self.refuse("coexecution-modes", what, "it sees operations that a skeleton does not make.")
        if isinstance(found, tuple):
            reason, what = found
            self.refuse(reason, what, _WHY[reason])
            return Kind.OPERATOR
        return found

    def _given(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], kind: Kind
    ) -> tuple[Any, Any]:
        """Return the arguments with numbers in place of tensors."""
        if kind is Kind.STATE and called(func).short != "_set_grad_enabled":
            return (), {}
        if kind is Kind.HOST and called(func).short in ("tensor", "as_tensor", "asarray"):
            return (), {}  # whatever the data are, the result is from outside
        return map_leaves((args, kwargs), self._leaf)  # type: ignore[no-any-return]

    def _leaf(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return float(leaf) if type(leaf) in FLOATS else leaf
        number = self.number(leaf)
        then = self._shared.get(number)
        if then is not None and not same_bits(leaf, then):
            what = "the program writes to an array that shares memory with a tensor"
            self.refuse("coexecution-memory", what, "the graph has taken the tensor before.")
        return Ref(number)

    def number(self, tensor: torch.Tensor, provenance: Provenance = Provenance.FOUND, owner: int = -1) -> int:
        """Return the tensor's number. One that was not known is from outside."""
        known = self._numbers.get(id(tensor))
        if known is not None:
            return known
        number = self._new(tensor)
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
            what = f"uses a tensor of type {type(tensor).__name__} with layout {tensor.layout}"
            self.refuse("coexecution-tensor", what, "only plain strided tensors go into a graph.")
            return number
        odd = tensor.is_inference() or tensor.is_quantized or tensor.is_conj() or tensor.is_neg()
        if tensor.grad_fn is not None or odd or tensor.device.type != "cpu":
            if provenance is Provenance.FOUND:  # code that torch's calls do not show may have made it
                self.is_opaque |= tensor.grad_fn is not None
            what = "uses a tensor from outside that is not a plain leaf on the CPU"
            self.refuse("coexecution-tensor", what, "its gradients would not flow on there.")
            return number
        if tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None):
            self.refuse("coexecution-callback", "a tensor has hooks", "they run within backward().")
        shared = not tensor.untyped_storage().resizable()
        argument = id(tensor) in self._arguments
        parameter = type(tensor) is torch.nn.Parameter
        self.externals[number] = External(
            number, provenance, meta_of(tensor), len(self.events), owner, argument, shared, parameter
        )
        self._versions[number] = tensor._version
        if shared:
            self._shared[number] = copied(tensor)
        if self.copies is not None:
            self.copies[number] = copied(tensor)
        if tensor.is_leaf and tensor.grad is not None:
            if tensor.grad.requires_grad:
                what = "a gradient has a backward graph itself"
                self.refuse("coexecution-tensor", what, "it comes from outside.")
            else:
                self.number(tensor.grad, Provenance.GRADIENT, number)
        return number

    def _new(self, tensor: torch.Tensor) -> int:
        number = len(self.tensors)
        self.tensors[number] = tensor
        self._numbers[id(tensor)] = number
        return number

    def _record(
        self,
        func: Callable[..., Any],
        kind: Kind,
        args: Any,
        kwargs: Any,
        result: Any,
        modes: Any,
        draws: bool,
    ) -> None:
        one = called(func)
        made: dict[int, Any] = {}
        outs: list[Ref] = []
        layouts: list[Any] = []

        def leaf(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                if not is_constant(value):
                    raise _Odd(f"{one.name} gives a {type(value).__name__}")
                return value
            if kind is Kind.HOST:
                if value.grad_fn is not None:
                    what = f"{one.name} gives a tensor whose size depends on contents, with its backward graph"
                    self.refuse("coexecution-size", what, "the graph cannot make it, and Python's is not in the graph.")
                ref = Ref(self.number(value, Provenance.HOST))
            elif id(value) in self._numbers:
                ref = Ref(self._numbers[id(value)])
            else:
                if type(value) is not torch.Tensor or value.layout != torch.strided:
                    raise _Odd(f"{one.name} gives a {type(value).__name__} with layout {value.layout}")
                ref = Ref(self._new(value))
                made[ref.index] = meta_of(value)
            outs.append(ref)
            layouts.append(result_layout_of(value))
            return ref

        shown, container = None, None
        if kind is Kind.STATE:
            tree = None
        elif kind is Kind.FETCH:
            tree = None
            shown = self._fetch(one, args, result)
        else:
            tree = result if type(result) is torch.Size else map_leaves(result, leaf)
            if not outs and kind is Kind.OPERATOR and (result is not None or one.access == "__get__"):
                known = result is None or (type(result) in (tuple, list) and not result) or one.short in _ANSWERS
                if not known:
                    raise _Odd(f"{one.name} gives a {type(result).__name__}")
                kind = Kind.QUERY
            if type(result).__module__ == "torch.return_types":
                container = type(result)
            elif type(result) not in _RESULTS and not isinstance(result, torch.Tensor) and not is_constant(result):
                raise _Odd(f"{one.name} gives a {type(result).__name__}")
        self.events.append(
            Event(kind, func, one.name, args, kwargs, tree, tuple(outs), modes, here(), made, tuple(layouts), shown,
                  draws, container)
        )  # fmt: skip

    def composite(self, func: Callable[..., Any], first: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call that may be one event of a skeleton. See ``Composer``."""
        first = composites.listed(first)
        before, given = composites.Form.of(first), composites.given(args, kwargs)
        if self.is_refused() or before is None or given is None:
            return func(first, *args, **kwargs)
        begin, foreign = len(self.events), self.observer.foreign
        with torch._C.DisableTorchFunction():
            grad = torch.is_grad_enabled()
        result = func(first, *args, **kwargs)
        number = self._numbers.get(id(result)) if isinstance(result, torch.Tensor) else None
        same = before.holds(first, settings=True)
        if same and (result is None or number is not None) and self.observer.foreign == foreign:
            self.sections.append(Section(begin, len(self.events), func, first, before, given, grad, number))
        return result

    # -- values that Python reads ---------------------------------------------------------------------------------

    def _fetch(self, one: Called, args: Any, result: Any) -> Shown | None:
        """Take what Python reads; of an array that shares memory with the tensor return the layout of that."""
        tensor = self.tensors[args[0].index] if args and isinstance(args[0], Ref) else None
        if one.short in ("__repr__", "__str__") or (one.short == "__format__" and tensor is not None and tensor.dim()):
            if tensor is not None and tensor.requires_grad:
                what = "shows a tensor with its backward graph"
                self.refuse("coexecution-call", what, "the placeholder has none.")
        if isinstance(result, torch.Tensor):
            raise _Odd(f"{one.name} gives a tensor")
        if not isinstance(result, np.ndarray):
            self.fetched[len(self.events)] = result
            return None
        self.fetched[len(self.events)] = result.copy()
        if tensor is None or not memory_of(result, tensor):
            return None
        if result.nbytes > _LARGEST:
            what = f"an array of {result.nbytes} bytes shares memory with a tensor"
            self.refuse("coexecution-memory", what, "who writes to it is looked for after each call of torch.")
        owner = next((n for n in self.externals if shares(self.tensors[n], tensor)), -1)
        if owner >= 0 and self.tensors[owner]._version != self._versions[owner]:
            what = "an array shares memory with a tensor that the step has changed"
            self.refuse("coexecution-memory", what, "the graph changes it at the end of the step.")
        first = next((n for n in self._arrays.numbers() if shares(self.tensors[n], tensor)), -1)
        self._arrays.add(result, args[0].index, tensor)
        return Shown.of(tensor, owner, first)

    def _look_at_arrays(self) -> None:
        if self._arrays.written():
            what = "the program writes to an array that shares memory with a tensor"
            self.refuse("coexecution-memory", what, "the graph's tensor would not see it.")

    # -- the end --------------------------------------------------------------------------------------------------

    def finish(self) -> Trace | None:
        """Return the whole call as a trace; None if it is refused."""
        if self.is_refused():
            self.let_go()
            return None
        self._look_at_arrays()
        shown = {n: storage_of(self.tensors[n]) for n in self._arrays.numbers()}
        escapes, observed = release(self.tensors, self.externals)
        if any(self.tensors[n].is_leaf and self.tensors[n].grad is not None for n in escapes):
            what = "a tensor that the step has computed lives on with its gradient"
            self.refuse("coexecution-open", what, "the graph writes the gradients of tensors from outside.", NOWHERE)
        if observed or is_dropped_observed(self.tensors, self.externals):
            what = "the step drops a tensor to which there is a weak reference"
            self.is_opaque = True
            self.refuse("coexecution-tensor", what, "a skeleton holds tensors until the call ends.", NOWHERE)
        bound = () if self.is_refused() else self._bound(escapes, shown)
        if self.refusal is not None:
            self.let_go()
            return None
        modules, sections = frozenset(self.observer.modules), tuple(self.sections)
        nodes = {n: history_of(self.tensors[n]) or "" for n in escapes if self.tensors[n].grad_fn is not None}
        return Trace(self.events, self.externals, self.tensors, escapes, bound, modules, sections, nodes)

    def _bound(self, escapes: tuple[int, ...], shown: Mapping[int, int]) -> tuple[int, ...]:
        """Return the computed tensors whose memory arrays show, and that lives on in another tensor. Refuse arrays that
        live on as well. ``shown``: the memory of each tensor of which there is an array."""
        alive = {storage_of(self.tensors[n]) for n in (*escapes, *self.externals)}
        bound = {n for n, memory in shown.items() if memory in alive}
        if not bound.isdisjoint(self._arrays.alive()):
            what = "an array and a tensor that live on after the step share memory"
            self.refuse("coexecution-memory", what, "the graph's tensor has memory of its own.")
        return tuple(bound)

    def keep(self, tensors: Iterable[tuple[int, torch.Tensor]]) -> None:
        """Copy tensors from outside before the call changes them."""
        assert self.copies is not None
        self.copies.update((number, copied(tensor)) for number, tensor in tensors)

    def go_on_from(
        self,
        events: Iterable[Event],
        externals: Iterable[External],
        tensors: Iterable[torch.Tensor],
        arrays: SharedArrays,
    ) -> None:
        """Take what a skeleton has matched for events that were recorded, and the arrays that it has given."""
        self._arrays = arrays
        self.events += events
        for tensor in tensors:
            self._new(tensor)
        for one in externals:
            self.externals[one.number] = one
            self._versions[one.number] = -1  # whether the step has changed it is not known


class _Odd(Exception):
    """The result of a call is nothing that a path can hold."""


_RESULTS = (tuple, list, torch.Size, type(None))
_ANSWERS = frozenset(
    """grad_fn is_complex is_floating_point is_sparse is_grad_enabled has_names is_tensor get_default_dtype
    are_deterministic_algorithms_enabled is_autocast_enabled is_same_size can_cast promote_types result_type
    _has_compatible_shallow_copy_type is_autocast_cache_enabled is_inference is_storage broadcast_shapes""".split()
)
_WHY = {
    "coexecution-call": "it is not known to depend on its arguments alone, or what it gives is not.",
    "coexecution-callback": "its code would run within an operation, of which a skeleton makes none.",
    "coexecution-memory": "the graph's tensors have memory of their own.",
}
