"""Watch the calls of a recursive function one by one, so that they can share one graph (JANUS, section 4.2.1).

Each call has a trace of its own and is one ``InvokeOp`` event in its caller's trace. The step reads, before its first
call, the shared heap values that calls are known to rely on.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import _pop_mode_temporarily

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.errors import Place
from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.rewrite import Site
from torchjanus.rewrite.hooks import rewritten, using
from torchjanus.semantics.calls.call_results import look_of, number_access_path, tensors_in, with_numbers, with_tensors
from torchjanus.semantics.calls.inner_recording import InnerRecording
from torchjanus.semantics.calls.recursions import arguments
from torchjanus.semantics.containers.enclosing import holding, places_within
from torchjanus.semantics.known.details import tuple_like
from torchjanus.semantics.known.framework_calls import BACKWARD
from torchjanus.semantics.native.identities import hashed
from torchjanus.semantics.protocols.falling_back import attempt
from torchjanus.semantics.record.call_writes import share_memory
from torchjanus.semantics.record.places import StateSlot
from torchjanus.semantics.torch.torch_state import ambient_modes
from torchjanus.semantics.watch.calls.inputs import CallInputs, RecursiveCall, is_own
from torchjanus.semantics.watch.calls.shared_reads import SharedReads, known_before
from torchjanus.semantics.watch.objects.finalization import Finalization
from torchjanus.semantics.watch.objects.state import Part, WatchState
from torchjanus.trace.actions import ContainerMutation, Extern, HeapWrite, InvokeOp, Op, name_of
from torchjanus.trace.calls import TENSOR
from torchjanus.trace.context_facts import context_facts
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import InstanceTest
from torchjanus.trace.recipes import Constant, Number, TensorOf
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import ON_DEPTH, ON_HASH, Read, Traced, is_local, plain

__all__ = ["RecursiveCalls"]

_REMEDY = "Return what the call computes, and let the step do the rest."


class RecursiveCalls(Part):
    """Recursive calls that are watched each for itself."""

    def __init__(self, state: WatchState, semantics: Any, outer: RecursiveCalls | None) -> None:
        """``semantics``: the watch, another of which watches each call; ``outer``: this part of the caller's watch."""
        super().__init__(state)
        self.semantics = semantics
        self.inputs = CallInputs(state)
        self.step: RecursiveCalls = self if outer is None else outer.step
        self.recursions = state.recursions
        self.shared_reads = SharedReads(state)
        self._made_calls = 0

    def make_call(self, at: Site, call: RecursiveCall) -> Any:
        """Make the call and record it. It is watched by itself unless its variants are known."""
        step = self.step
        place = self.recording.place
        step.shared_reads.read_ahead()
        for name, access_path in call.fixed.items():
            if isinstance(call.bound[name], torch.Tensor):
                self._note_shared(call.bound[name], access_path)
        before = len(step.recording.trace.events)
        lists = step.recording.lists
        lengths = lists.lengths()
        try:
            with _pop_mode_temporarily():
                # Updates of accumulators would be lost in a call that is not watched.
                may_skip = step is self and not step.recording.accumulators
                known = self._matched(call) if may_skip else None
                if known is None:
                    if step is not self:
                        self._take_accumulators()
                    state = WatchState(self.state.journal, (), self.recursions, self.state)
                    child = type(self.semantics)(state, self.semantics)
                    result = child.recursion.run(at, call)
                    # The call has been made: a failure must not reach the program.
                    own, as_rows = child.recording.trace, self.recursions.as_rows
                    trace = attempt(self.recording, "on a recursive call", as_rows, own, self.recursions.made) or own
                    made = look_of(trace.result, result)
                else:
                    variants, variant, made = known
                    result = self._unwatched(call, made)
                    trace = Trace(variants=variants, variant=variant)
                results = list(tensors_in(result, made))
        except BaseException:
            self._refuse("a recursive call raises", "whose work was done by then depends on the order of calls.")
            self.recursions.unroll_idle()
            raise
        if step is self:
            step.recording.accumulators.after(step.recording)
        else:
            step.recording.accumulators.give(self.recording)
        relied = step.recording.trace.events[before:]
        if self.recursions.fresh:  # found in this run: the step may have read the facts before
            relied = [*known_before(step.recording.trace.events[:before], trace), *relied]
        self.recursions.record_facts(relied)
        self.recording.place = place
        self.recording.trace.refusals += [r for r in trace.refusals if r not in self.recording.trace.refusals]
        if step is self:
            self.recording.call_writes.record_result(results)
        outs = tuple(map(self.recording.new_tensor, results))
        added = lists.grown(lengths, self.recording) if step is self else ()
        args = tuple(ref for tensor in call.tensors if (ref := self.framework.known(tensor)) is not None)
        shared = (
            {"shared": tuple(map(TensorRef, step.shared_reads.tensors)), "own": tuple(call.own.values())}
            if step is self
            else {}
        )
        if made is None:
            why = "calls are run many at a time, and objects hold only what the call that makes them has computed."
            self._refuse(
                "a recursive call returns something else than tensors, numbers and new objects of them",
                why,
                reason="recursion-result",
            )
        self.recursions.made.setdefault(call.callee, made)
        event = InvokeOp(
            _never, call.fn.__qualname__, args, shared, outs, ambient_modes(), place,
            callee=call.callee, given=call.given, made=made, call=trace, grown=added, own=tuple(call.own),
            counted=step.recording.accumulators.starts(lists) if step is self else (),
        )  # fmt: skip
        self.recording.note(event)
        self.recording.ops += 1
        access_path = number_access_path(self._made_calls, step is self)
        self._made_calls += 1
        if made is not None:
            result = with_numbers(result, made, access_path, self.recording.note, place)
        if step is self and not self.recording.trace.refusals:
            # The call will be merged after the run. A failure must not reach the program.
            with contextlib.suppress(Exception), torch._C.DisableTorchFunction():
                self.recursions.take(event)
        return result

    def _matched(self, call: RecursiveCall) -> tuple[frozenset[int], int, Any] | None:
        """Return the variants of the call and its inner calls, its own variant, and the structure of its result; None
        if it has to be watched."""
        variant_matcher = self.recursions.variant_matcher(context_facts(self.recording.trace.events))
        if variant_matcher is None:
            return None
        given = tuple(self._as_host(value) for name, value in call.bound.items() if name not in call.alike)
        return variant_matcher.match(call.callee, self.state.given, given, self.state.depth.left)

    def _as_host(self, value: Any) -> Any:
        """Return an argument as the host sees it, with a marker for each tensor."""
        if isinstance(value, torch.Tensor):
            return TENSOR
        if is_one_of(type(value), (tuple, list)) and self.recording.owner(value) is None:
            return type(value)(map(self._as_host, value))
        return plain(value)

    def _unwatched(self, call: RecursiveCall, made: Any) -> Any:
        """Make a call of known variants without watching it. ``made``: the structure of its result."""
        bound = {name: self.recording.bare(value) for name, value in call.bound.items()}
        positional, named = arguments(call.fn.__code__, bound)
        with using(None), self._variables(call, bound):  # functions made in the step contain hooks
            return with_tensors(call.fn(*positional, **named), made, self._own_tensor)

    @contextlib.contextmanager
    def _variables(self, call: RecursiveCall, given: dict[str, Any]) -> Iterator[None]:
        """Give the step's variables their values within the call. Refuse writes to them."""
        recording, step = self.recording, self.step
        accumulators, lists = step.recording.accumulators, step.recording.lists
        places = [p for p in places_within(call.fn, recording, lists) if not accumulators.is_local_accumulator(p)]
        written: list[StateSlot] = []
        try:
            with holding(call.passed, given, places, written):
                yield
        finally:
            for place in written:
                value = place.get()
                place.set(recording.bare(value))
                step.recording.accumulators.set_in_call(place, value)
                self._refuse(f"a recursive call sets the variable '{place.name}' of the step", "")

    def _refuse(self, what: str, why: str, place: Place | None = None, reason: str = "recursion-effects") -> None:
        self.recording.refuse(reason, what, why or "calls are run many at a time.", _REMEDY, place)

    def _take_accumulators(self) -> None:
        """Record the call's updates of accumulators so far. Refuse it for other uses."""
        recording: Any = self.recording
        if not self.step.recording.accumulators.take(recording):
            recording.refuse_accumulator_use()

    # -- the call itself ------------------------------------------------------------------------------------------

    def run(self, at: Site, call: RecursiveCall) -> Any:
        """Run the call under this watch and return its result."""
        recording: Any = self.recording
        assert isinstance(recording, InnerRecording)
        self.framework.around = self._note_shared
        recording.trace.ambient = ambient_modes()
        code = call.fn.__code__
        recording.place = Place(code.co_filename, code.co_firstlineno, 0, call.fn.__qualname__)
        for tensor in call.tensors:
            recording.record_given_tensor(tensor)
        for name, access_path in call.fixed.items():
            recording.record_fixed_object(access_path, call.bound[name])
            if isinstance(call.bound[name], torch.Tensor):
                recording.found(access_path, call.bound[name])
        for access_path, value in call.shared:
            recording.record_fixed_object(access_path, value)
        given = {
            name: value if name in call.alike else recording.found(AccessPath.parameter(call.names[name]), plain(value))
            for name, value in call.bound.items()
        }
        listening, deep = ON_HASH.set(functools.partial(hashed, recording)), ON_DEPTH.set(recording.deep)
        positional, named = arguments(code, given)
        try:
            with using(self.semantics), self.framework, self._variables(call, given):
                if call.method is not None:
                    self.semantics.attr(
                        at, next(iter(given.values())), call.method
                    )  # records the lookup of the method in the call's own trace
                self.step.recording.accumulators.give(recording)
                result = self._own(rewritten(call.fn)(*positional, **named))
                self._take_accumulators()
        finally:
            ON_HASH.reset(listening)
            ON_DEPTH.reset(deep)
        result = Finalization(recording).settle(result)
        self._check_writes(recording, call.tensors)
        recording.check_accumulator_uses()
        for name, held in call.made.items():
            if self.inputs.content_of_new(call.bound[name], []) != held:
                self._refuse(f"a recursive call sets attributes of '{name}', an object that the step has made", "")
        self.framework.code.finish()
        recording.finish()
        self._check(recording.trace)
        return result

    def looked_at(self, value: Any) -> None:
        """Record that the run depends on the class of a value."""
        if isinstance(value, Traced) and isinstance(value.expr, Read) and value.expr.access_path.is_grown:
            self.recording.pin(value, "its class decides")
        access_path = self.recording.owner(value)
        if access_path is not None:
            self.recording.trace.looked_at.add(access_path.token)

    def note_instance_check(self, args: tuple[Any, ...]) -> bool:
        """Record ``isinstance()`` on a node of a recursive call as a fact of its outcome, and return whether that was
        possible. Other calls may have other classes with the same outcome."""
        if self.step is self or len(args) != 2:
            return False
        value, classes = args
        asked = classes if type(classes) is tuple else (classes,)
        if not all(type(cls).__instancecheck__ is type.__instancecheck__ for cls in asked if isinstance(cls, type)):
            return False
        # On the host, markers represent tensors.
        if not all(isinstance(cls, type) and not issubclass(cls, torch.Tensor) for cls in asked):
            return False
        if isinstance(value, torch.Tensor) or any(issubclass(torch.Tensor, cls) for cls in asked):
            return False
        if isinstance(value, Traced):
            access_path = value.expr.access_path if isinstance(value.expr, Read) else None
        else:
            access_path = self.recording.owner(value)
        if access_path is None or not is_local(access_path) or access_path.waits_for:
            return False
        self.recording.keep(classes)
        self.recording.note_once(
            InstanceTest(access_path, classes, isinstance(plain(value), classes), self.recording.place)
        )
        return True

    def _own(self, result: Any) -> Any:
        """Return the result with each tensor that the call has not made replaced by a view of it."""
        if isinstance(result, torch.Tensor):
            return self._own_tensor(result)
        if self.recording.owner(result) is not None:
            return result
        if isinstance(result, tuple) and not isinstance(result, torch.Size):
            return tuple_like(result, map(self._own, result))
        if type(result) is list:
            return [self._own(part) for part in result]
        if type(result) is dict:
            return {key: self._own(part) for key, part in result.items()}
        return result

    def _own_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        recording = self.recording
        made = recording.owner(tensor) is None and recording.number(tensor) not in recording.trace.access_paths
        if made and not self._is_argument(tensor):
            return tensor
        view = tensor.view_as(tensor)
        self.step.recording.note_result_view(view, tensor)
        return view

    def _is_argument(self, tensor: torch.Tensor) -> bool:
        """Whether this is the step and it knows the tensor already."""
        return self.step is self and self.recording.number(tensor) is not None

    def _note_shared(self, tensor: torch.Tensor, access_path: AccessPath) -> None:
        step = self.step
        if not is_local(access_path) and not is_own(access_path):
            ref = step.framework.ref(tensor)
            if ref is not None:
                step.shared_reads.tensors.setdefault(ref.number)

    def _check_writes(self, recording: InnerRecording, given: list[torch.Tensor]) -> None:
        """Check the writes of a call. Tensors that it stores must be its own and share no memory with others: in the
        graph they are rows of buffers."""
        trace = recording.trace
        stored: dict[int, torch.Tensor] = {}
        for event in trace.events:
            if not isinstance(event, HeapWrite | ContainerMutation):
                continue
            if isinstance(event, ContainerMutation) and event.base.is_grown:
                # A tensor that was read from the heap becomes a row like any other.
                number = recording.number(event.args[0])
                if number is not None:
                    trace.recipes[id(event)] = (TensorOf(TensorRef(number)),)
                continue
            if not _is_plain_write(event):
                self.step.recording.accumulators.changed_container(recording.object_at(event.base))
                self._refuse("a recursive call changes objects otherwise than by setting attributes", "", event.place)
            for recipe in trace.recipes.get(id(event), ()):
                if isinstance(recipe, TensorOf) and (tensor := trace.tensors[recipe.ref.number]) is not None:
                    stored[recipe.ref.number] = tensor
                    if tensor.requires_grad:
                        self._refuse("a recursive call stores a tensor with a history", "", event.place)
                elif not isinstance(recipe, Number | Constant):
                    self._refuse("a recursive call stores something else than tensors and numbers", "", event.place)
        inner = {out.number for event in trace.events if isinstance(event, InvokeOp) for out in event.outs}
        others = [t for n in (*trace.access_paths, *inner) if (t := trace.tensors[n]) is not None]
        single = all(not share_memory([t], (o for o in stored.values() if o is not t)) for t in stored.values())
        if not single or share_memory(stored.values(), [*others, *given]):
            self._refuse("a recursive call stores a tensor that shares its memory with others", "")

    def _check(self, trace: Trace) -> None:
        for event in trace.events:
            match event:
                case Extern():
                    self._refuse(
                        f"a recursive call calls {name_of(event.func)}, which only the host can do", "", event.place
                    )
                case Op(draws=True):
                    why = "they would be drawn in another order than eager's."
                    self._refuse(f"{event.name} draws random numbers in a recursive call", why, event.place)
                case Op() if event.name.rpartition(".")[2] in BACKWARD or ".grad." in event.name:
                    self._refuse(f"{event.name} in a recursive call", "", event.place)
                case Op() if any(out.number in trace.access_paths for out in event.outs):
                    for tensor in (trace.tensors[out.number] for out in event.outs):
                        if tensor is not None:
                            self.step.recording.accumulators.changed_in_call(tensor)
                    what = f"{event.name} changes in place what a recursive call was given or found"
                    self._refuse(what, "", event.place)


def _is_plain_write(event: HeapWrite | ContainerMutation) -> bool:
    """Whether a write sets an attribute, or appends to a list that is common to all calls."""
    if isinstance(event, ContainerMutation):
        return event.owner is list and event.method == "append" and not is_local(event.base)
    place = event.how == "field" or (event.how == "item" and event.base.step is Step.DICT)
    return place and type(event.key) is str


def _never(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("a recursive call stands for what a body does")


_never.__name__ = "invoke"
