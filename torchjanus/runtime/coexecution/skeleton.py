"""One co-executed call: Python runs the program on placeholders, each call of torch is matched against the path, and
the graph is run when Python needs a value of it, and at the end.

Nothing is committed before the last event has matched. A call that diverges is put back: the generators are as before,
the matched events are really made, the placeholders become what these gave, and Python goes on, recorded.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.overrides import TorchFunctionMode

from torchjanus.core.default_device import without_function_modes
from torchjanus.core.errors import NOWHERE
from torchjanus.core.trees import map_leaves
from torchjanus.execute.running.base import Violated
from torchjanus.graph.ir.program import Ref
from torchjanus.graph.tracing.ambient import Ambient
from torchjanus.runtime.coexecution.events import Event, Kind, Provenance, Trace
from torchjanus.runtime.coexecution.graph import Served
from torchjanus.runtime.coexecution.matching import MISS
from torchjanus.runtime.coexecution.path import floats_of, with_floats
from torchjanus.runtime.coexecution.placeholders import Placeholder, fill, register, unregister
from torchjanus.runtime.coexecution.recorder import Recorder, copied, same_bits
from torchjanus.semantics.torch.torch_state import generator_state

__all__ = ["CoexecutionMode", "Run", "restored", "saved", "tensors_in"]


class CoexecutionMode(TorchFunctionMode):
    """Hands each of torch's calls to ``call``, which gets the function, the arguments and the keyword arguments."""

    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self._call = call

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self._call(func, args, kwargs or {})


def restored(states: Sequence[torch.Tensor]) -> None:
    """Put the generators into these states (see ``saved``)."""
    for generator, state in zip(_generators(), states, strict=False):
        generator.set_state(state)


def saved() -> list[torch.Tensor]:
    """Return the states of torch's generators."""
    return [generator.get_state() for generator in _generators()]


def _generators() -> list[torch.Generator]:
    return [torch.default_generator]


class Run:
    """The call of one path. ``others``: the paths to which it may turn out to belong instead; ``arguments``: the
    tensors among the step's arguments."""

    def __init__(
        self, served: Served, values: list[Any], others: Iterable[Served], arguments: list[torch.Tensor]
    ) -> None:
        self.served = served
        self.values = values
        self.numbers: list[Any] = [None] * len(served.plan.program.slots)
        self.position = 0
        self.recorder: Recorder | None = None  # once it has diverged
        self.diverged_at = ""
        self.fault: Exception | None = None
        self._others = list(others)
        self._arguments = arguments
        self._lock = threading.RLock()
        self._thread = threading.get_ident()
        self._stage = 0
        self.states = saved()
        self._staged = served.begin_graph()
        self._drawn: list[bytes] = [generator_state()]  # the state that nobody else may have changed
        self._private: dict[int, torch.Tensor] = {}  # copies of inputs that share memory with arrays
        self._arrays: list[tuple[np.ndarray[Any, Any], bytes, int]] = []
        self._fetched: dict[int, Any] = {}
        self.seconds = 0.0  # that the graph took
        self._over = False
        register(self)

    # -- calls of torch -------------------------------------------------------------------------------------------

    def call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer one of torch's calls."""
        with self._lock:
            if self.recorder is None:
                if self._arrays:
                    self._look_at_arrays()
                if self.recorder is None and (result := self._matched(func, args, kwargs)) is not MISS:
                    return result
            if self.recorder is None:
                self.diverge(getattr(func, "__name__", repr(func)))
            assert self.recorder is not None
            return self.recorder.call(func, args, kwargs)

    def _matched(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        k = self.position
        if k < len(self.served.matchers):
            result = self.served.matchers[k](self, func, args, kwargs)
            if self.recorder is not None:
                return result
            if result is not MISS:
                self.position = k + 1
                return result
        for other in self._others:
            if len(other.matchers) > k and self._belongs_to(other, k):
                before = self.served, self.values, self.numbers
                if self._turn_to(other, k):
                    result = other.matchers[k](self, func, args, kwargs)
                    if self.recorder is not None:
                        return result
                    if result is not MISS:
                        self.position = k + 1
                        return result
                self.served, self.values, self.numbers = before
        return MISS

    # -- what generated matchers ask -------------------------------------------------------------------------------

    def accept(self, n: int, tensor: Any) -> bool:
        """Whether a tensor, met for the first time, may be external ``n``."""
        served = self.served
        if not served.accepts(n, tensor, self.values):
            return False
        if not tensor.untyped_storage().resizable():
            if n in served.changed:
                return False
            self._private[n] = copied(tensor)
        return served.separate(self.values)

    def unchanged(self, n: int) -> bool:
        """Whether an external that shares memory with an array still holds what it held when it was met."""
        return same_bits(self.values[n], self._private[n])

    def disturbed(self) -> bool:
        """Whether a state of torch is in force under which no path is co-executed."""
        return bool(
            torch._C._len_torch_dispatch_stack()
            or torch._C._is_any_autocast_enabled()
            or torch.is_inference_mode_enabled()
            or torch._C._functorch.peek_interpreter_stack() is not None
        )

    def reseeded(self) -> bool:
        """Whether somebody else has moved the generators."""
        return generator_state() != self._drawn[-1]

    def fetch(self, k: int, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Read what Python asks for."""
        given = self._given(k, args, kwargs)
        if given is None:
            return self._diverged(func, args, kwargs)
        result = self._fetched[k] = func(*given[0], **given[1])
        if isinstance(result, np.ndarray):
            self._arrays.append((result, result.tobytes(), self.served.events[k].inputs[0]))
        return result

    def host(self, k: int, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a tensor as Python does."""
        event = self.served.events[k]
        given = self._given(k, args, kwargs) if k in self.served.plan.cuts else (args, kwargs)
        if given is None:
            return self._diverged(func, args, kwargs)
        before = generator_state()
        result = func(*given[0], **given[1])
        if (generator_state() != before) is not event.draws:
            return self._diverged(func, args, kwargs)
        self._drawn.append(generator_state())
        made = tensors_in(result)
        numbers = [ref.index for ref in event.outs]
        if len(made) != len(numbers) or not self._accepted(numbers, made):
            return self._diverged(func, args, kwargs)
        return result

    def _accepted(self, numbers: list[int], made: list[torch.Tensor]) -> bool:
        return all(
            self.values[n] is tensor if self.values[n] is not None else self.accept(n, tensor)
            for n, tensor in zip(numbers, made, strict=True)
        )

    def _diverged(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.diverge(getattr(func, "__name__", repr(func)))
        assert self.recorder is not None
        return self.recorder.call(func, args, kwargs)

    def _given(self, k: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        """Return the arguments with contents in the place of placeholders; None if the graph has failed."""
        plan = self.served.plan
        hosted = plan.hosted.get(k)
        if hosted is not None:
            tensor = self.values[hosted.number]
            contents = {id(tensor): hosted.value(tensor)}
        else:
            cut, places = plan.cuts[k]
            try:
                found = self._advance(cut)
            except Exception as error:
                self.fault = error
                return None
            contents = {id(self.values[n]): found[place] for n, place in places.items()}

        def leaf(value: Any) -> Any:
            return contents.get(id(value), value) if isinstance(value, torch.Tensor) else value

        return map_leaves(args, leaf), map_leaves(kwargs, leaf)

    # -- the graph ------------------------------------------------------------------------------------------------

    def _advance(self, stage: int) -> list[torch.Tensor]:
        """Run the graph to the end of this stage, and return what it gives there."""
        made: list[torch.Tensor] | Violated = []
        begun = time.perf_counter()
        while self._stage <= stage:
            if self.served.draws and self.reseeded():
                raise RuntimeError("the generator was moved by somebody else")
            made = self._staged.advance(self._inputs(self._stage), self._slots(self._stage), self._stage)
            assert not isinstance(made, Violated)
            self._stage += 1
            self._drawn.append(generator_state())
        assert not isinstance(made, Violated)
        self.seconds += time.perf_counter() - begun
        return made

    def _inputs(self, stage: int) -> list[torch.Tensor]:
        numbers = self.served.plan.inputs
        return [self._input(numbers[index]) for index in self.served.inputs[stage]]

    def _input(self, n: int) -> torch.Tensor:
        tensor: torch.Tensor = self._private.get(n, self.values[n])
        return tensor

    def _slots(self, stage: int) -> list[float]:
        return [self.numbers[index] for index in self.served.slots[stage]]

    # -- other paths ----------------------------------------------------------------------------------------------

    def _belongs_to(self, other: Served, k: int) -> bool:
        """Whether the other path begins with the first ``k`` events of this one."""
        mine = self.served
        count = mine.known[k]
        return (
            other is not mine
            and other.known[k] == count
            and other.tokens[:k] == mine.tokens[:k]
            and all(
                (mine.externals[n].token == other.externals[n].token)
                if n in mine.externals
                else n not in other.externals
                for n in range(count)
                if n in mine.externals or n in other.externals
            )
        )

    def _turn_to(self, other: Served, k: int) -> bool:
        """Go on as a call of the other path, of which the same events have matched. Returns whether all that it takes
        from outside is as it wants it."""
        values = other.begin()
        if values is None:
            return False
        floats = [list(row) for row in islice(self._matched_floats(), k)]
        for n in range(other.known[k]):
            mine = self.values[n]
            if values[n] is not None:
                if values[n] is not mine:
                    return False
            elif n in other.externals and other.externals[n].provenance is not Provenance.GRADIENT:
                if not other.accepts(n, mine, values):
                    return False
                if n in other.changed and n in self._private:
                    return False
            else:
                values[n] = mine
        numbers: list[Any] = [None] * len(other.plan.program.slots)
        for event in range(k):
            if other.events[event].kind is not Kind.OPERATOR:
                continue
            for place, (value, held) in enumerate(
                zip(floats[event], floats_of((other.events[event].args, other.events[event].kwargs)), strict=True)
            ):
                slot = other.plan.slots.get((event, place))
                if slot is not None:
                    numbers[slot] = value
                elif repr(value) != repr(held):
                    return False
        if not other.separate(values):
            return False
        self._staged.abandon()
        if self.served.draws:
            restored(self.states)
        self.served, self.values, self.numbers = other, values, numbers
        self._stage, self._staged = 0, other.begin_graph()
        self._drawn = [generator_state()]
        passed = sum(event in other.plan.cuts for event in range(k))
        try:
            if passed:  # what earlier fetches gave is known to be the same
                self._advance(passed - 1)
        except Exception as error:
            self.fault = error
            return False
        return True

    def _matched_floats(self) -> Iterator[Iterator[float]]:
        """Yield the floats of each matched event of this call."""
        plan = self.served.plan
        for k, event in enumerate(self.served.events):
            row = floats_of((event.args, event.kwargs))
            yield iter(
                [
                    self.numbers[plan.slots[k, place]] if (k, place) in plan.slots else value
                    for place, value in enumerate(row)
                ]
            )

    # -- divergence -----------------------------------------------------------------------------------------------

    def owns(self, tensor: torch.Tensor) -> bool:
        """See ``Owner``."""
        return any(tensor is one for one in self.values)

    def touched(self) -> None:
        """See ``Owner``."""
        with self._lock:
            if self.recorder is None and not self._over:
                self.diverge("a placeholder is used outside of the step's calls of torch")

    def diverge(self, what: str) -> None:
        """Put the call back to Python: make what has matched for real, and record what follows."""
        served, k = self.served, self.position
        self.diverged_at = f"{served.events[k].name if k < len(served.events) else 'the end'}: {what}"
        moved = self._states_of_others()
        self._staged.abandon()
        recorder = self.recorder = Recorder(self._arguments, copies=True)
        count = served.known[k]
        recorder.keep((n, self.values[n]) for n in range(count) if n in served.externals)
        if served.draws:
            restored(self.states)
        events = self._real_events(k)
        now = {n: copied(self.values[n]) for n in self._private}
        try:
            with without_function_modes(), Ambient() as ambient:
                for event in events:
                    self._put_back(event)
                    self._make(event, ambient)
        except BaseException:
            recorder.refuse(
                "coexecution-raises", "an operation raises", "a skeleton could not raise it there.", NOWHERE
            )
            raise
        finally:
            with torch.no_grad():
                for n, contents in now.items():
                    _write(self.values[n], contents)
        if moved is not None:
            restored(moved)
        known = (served.externals[n] for n in range(count) if n in served.externals)
        recorder.go_on_from(events, known, self.values[:count])
        recorder.fetched.update((event, value) for event, value in self._fetched.items() if event < k)
        if threading.get_ident() == self._thread:
            recorder.observer.start()

    def _states_of_others(self) -> list[torch.Tensor] | None:
        """Return the generators' states if somebody else has set them."""
        return saved() if self.served.draws and self.reseeded() else None

    def _real_events(self, k: int) -> list[Event]:
        """Return the matched events with the floats of this call."""
        floats = islice(self._matched_floats(), k)
        return [
            with_floats(event, row) if event.kind is Kind.OPERATOR else event
            for event, row in zip(self.served.events, floats, strict=False)
        ]

    def _put_back(self, event: Event) -> None:
        """Give the inputs of an event that share memory with arrays the contents that they had then."""
        for n in event.inputs:
            if n in self._private:
                _write(self.values[n], self._private[n])

    def _make(self, event: Event, ambient: Ambient) -> None:
        """Make a matched event for real."""
        values = self.values
        if event.kind is Kind.HOST and event.draws:
            ambient.switch(event.modes)
            event.func(*map_leaves(event.args, self._real), **map_leaves(event.kwargs, self._real))
        if event.kind is not Kind.OPERATOR:
            return
        ambient.switch(event.modes)
        result = event.func(*map_leaves(event.args, self._real), **map_leaves(event.kwargs, self._real))
        for ref, tensor in zip(event.outs, tensors_in(result), strict=True):
            held = values[ref.index]
            if type(held) is Placeholder:
                fill(held, tensor)

    def _real(self, leaf: Any) -> Any:
        return self.values[leaf.index] if type(leaf) is Ref else leaf

    # -- arrays ---------------------------------------------------------------------------------------------------

    def _look_at_arrays(self) -> None:
        """Diverge if the program has written to an array that shares memory with a tensor, and write that to it."""
        changed = [(array, n) for array, then, n in self._arrays if array.tobytes() != then]
        if changed:
            self.diverge("an array that shares memory with a tensor was written to")
            with torch.no_grad():
                for array, n in changed:
                    self.values[n].detach().numpy()[...] = array

    # -- the end --------------------------------------------------------------------------------------------------

    def finish(self) -> Trace | None:
        """Complete the call, whose program has returned: commit, or diverge. Returns the trace if it has diverged and
        was recorded to the end."""
        with self._lock:
            if self._arrays and self.recorder is None:
                self._look_at_arrays()
            if self.recorder is None:
                self._complete()
            self.close()
            if self.recorder is None:
                return None
            self.values = []  # what is alive is counted
            return self.recorder.finish()

    def _complete(self) -> None:
        served, values = self.served, self.values
        if self.position < len(served.events):
            self.diverge("the step ends earlier")
        elif any(sys.getrefcount(values[n]) > 2 for n in served.computed if n not in served.escaping):
            self.diverge("a tensor lives on that did not in earlier calls")
        else:
            self._commit()

    def _commit(self) -> None:
        """Run the last stage of the graph, and make all changes."""
        served, values = self.served, self.values
        inputs = [self._input(n) for n in served.plan.inputs]
        try:
            with _unsafe_preserve_version_counter(tuple(values[n] for n in served.uncounted)):
                made = self._advance(len(served.plan.program.cuts))
        except Exception as error:
            self.fault = error
            self.diverge(f"the graph raised {type(error).__name__}")
        else:
            served.commit(made, inputs, values)

    def fail(self) -> None:
        """End the call, whose program has raised: what it has done so far is done for real."""
        with self._lock:
            if self.recorder is None:
                self.diverge("the step raises")
            self.close()

    def close(self) -> None:
        """No placeholder of this run is left."""
        if self.recorder is not None:
            self.recorder.observer.stop()
        if not self._over:
            self._over = True
            unregister(self)
            self._staged.abandon()


def _write(tensor: torch.Tensor, contents: torch.Tensor) -> None:
    if not same_bits(tensor, contents):
        tensor.data.copy_(contents)


def tensors_in(result: Any) -> list[torch.Tensor]:
    """Return the tensors in a tree, in order."""
    found: list[torch.Tensor] = []
    map_leaves(result, lambda leaf: found.append(leaf) if isinstance(leaf, torch.Tensor) else None)
    return found
