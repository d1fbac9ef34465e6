"""One part of a step: a call in it or a run of its statements, which is speculated on by itself.

A region is measured once, by Python. Then it is learnt as a step is, or left to Python. This module does not know where
in the step the region is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import thread_time
from typing import Any

from torchjanus.core.errors import Place, Refusal
from torchjanus.runtime.learning.learning import Learning
from torchjanus.runtime.parts.candidates import has_objects, is_open
from torchjanus.runtime.parts.part import Part
from torchjanus.runtime.pass_log.pass_log import pass_log
from torchjanus.runtime.runs.budget import Budget
from torchjanus.trace.events import Trace

__all__ = ["Options", "Region", "Timing"]

LEAST_SHARE = 0.02  # of the step's time: what takes less is not worth learning
LEAST_OPERATIONS = 4  # of a graph, where no clock may decide: what has fewer is Python's
OPEN = "tensors go in or out whose backward pass is still to come"
TIMED = 8  # calls of the step that are timed once a part asks for it


@dataclass(frozen=True, slots=True)
class Options:
    """What the user has given ``speculate`` for the whole step; it holds for each part."""

    watch: int
    executor: str | None
    verify: int


class Timing:
    """Whether calls of a step are timed: only while the share of a part is to be measured, for a clock of the thread
    costs a call of the operating system."""

    def __init__(self) -> None:
        self.on = False  # in the current call
        self.number = 0  # of the current call
        self._left = TIMED

    def begins(self) -> bool:
        """Begin a call of the step. Returns whether it is timed."""
        self.number += 1
        self.on = self._left > 0
        self._left -= self.on
        return self.on

    def ask(self) -> None:
        """Let the next calls be timed."""
        self._left = TIMED


class Region:
    """``fn`` as a part of a step. ``label`` and ``place``: what it is and where. ``update``:
    whether it is a function of torch that updates what is trained. ``kept``: the objects that live as long as the step
    does, where the program sees when objects are gone. ``anew``: whether the step creates what it calls in each call.
    ``timing``: of the step. ``leave``: called when it is left to Python."""

    def __init__(
        self,
        fn: Callable[..., Any],
        options: Options,
        account: Budget,
        label: str,
        place: Place,
        timing: Timing,
        *,
        update: bool = False,
        kept: tuple[Any, ...] | None = None,
        anew: bool = False,
        leave: Callable[[Region], None],
    ) -> None:
        self.fn = fn
        self.label = label
        self.place = place
        self.calls = 0
        self.served = 0
        self.seconds = 0.0  # that the measured call took, of this thread: what else runs on the machine does not count
        self.learning = 0.0  # seconds that calls have taken beyond eager's
        self.share = 0.0  # of the step's time, in that call
        self.why = ""  # why it is Python's
        self.is_small = False  # whether that is because there is little to be gained
        self.opened = False  # whether it is learnt though its results have their backward pass still to come
        self.part: Part | None = None
        self._measured = 0  # calls that were measured
        self._timing = timing
        self._options = options
        self._account = account
        self._update = update
        self._anew = anew
        self._learnt = 0  # the call of the step in which it was learnt from last
        self._kept = None if update else kept
        self._leave = leave

    @property
    def refusals(self) -> Sequence[Refusal]:
        """What could not be speculated on in it."""
        return () if self.part is None else self.part.learning.event_log.refusals

    @property
    def graphs(self) -> int:
        """How many graphs have been made of it."""
        return 0 if self.part is None else self.part.learning.counts.compiles

    def call(self, /, *args: Any, **kwargs: Any) -> Any:
        """Make one call of the region."""
        self.calls += 1
        part = self.part
        if part is None:
            return self.fn(*args, **kwargs) if self.why else self._measure(args, kwargs)
        if self._anew and not part.learning.counts.compiles:
            # Within one call of the step it is the same function with the same variables: a graph would assume that.
            if self._learnt == self._timing.number:
                return self.fn(*args, **kwargs)
            self._learnt = self._timing.number
        counts = part.learning.counts
        timed = self._timing.on
        before, begun = counts.speculated, thread_time() if timed else 0.0
        result = part.call(args, kwargs)
        if counts.speculated > before:
            self.served += 1
            if before == 0:
                self._look_at_graph(part)
            return result
        if timed:
            self.learning += max(thread_time() - begun - self.seconds / self._measured, 0.0)
        if part.learning.policy.given_up:
            self.leave(part.learning.policy.given_up)
        return result

    def _measure(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call by Python, and see whether its gradients are its own."""
        if not self._timing.on:
            self._timing.ask()
            return self.fn(*args, **kwargs)
        come = thread_time()
        opened = is_open((args, kwargs))
        begun = thread_time()
        result = self.fn(*args, **kwargs)
        ended = thread_time()
        self.seconds += ended - begun
        self._measured += 1
        if self._kept is not None and has_objects((args, kwargs, result), self._kept):
            self.leave("objects go in or out that would live longer, and the program sees when objects are gone")
        elif opened or is_open((args, kwargs, result)):  # a list may have been given some
            self.leave(OPEN)
        self.learning += begun - come + thread_time() - ended
        return result

    @property
    def executors(self) -> Sequence[object]:
        """Return the engine of each of its graphs, as a number, and the executor that the engine uses now."""
        routes = () if self.part is None else self.part.learning.routes
        return [(id(engine), engine.current) for route in routes for engine in route.engines]

    @property
    def is_measured(self) -> bool:
        """Whether it has been measured, and its share is not known yet."""
        return self.seconds > 0.0 and not self.share

    @property
    def is_active(self) -> bool:
        """Whether it is learnt, or made by graphs."""
        return self.part is not None and not self.why

    @property
    def is_open(self) -> bool:
        """Whether it was left for its results only: they have their backward pass still to come."""
        return self.why == OPEN

    def choose(self, seconds: float) -> None:
        """Begin to learn, unless the measured call took too small a part of the step's ``seconds``."""
        self.share = min(self.seconds / seconds, 1.0) if seconds else 1.0
        if not self.why:
            self._learn()

    def open(self) -> None:
        """Begin to learn what was left because its results have their backward pass still to come."""
        self.why, self.opened = "", True
        self._learn()

    def _learn(self) -> None:
        """Make a Part of it, which watches its calls; leave it to Python where it takes too small a share of the
        step."""
        if self._account.limited and self.share < LEAST_SHARE:
            self.is_small = True
            self.leave("it takes too little time to be worth a graph")
            return
        learning = Learning(
            self.label,
            self.place,
            watch=self._options.watch,
            executor=self._options.executor,
            cut=_whole,
            passes=pass_log(self.label, self.place, self.fn),
            account=self._account,
            lifetimes=self._kept is not None,
        )
        self.part = Part(self.fn, learning, self._options.verify, self.fn, None, None, 0)

    def _look_at_graph(self, part: Part) -> None:
        small = all(entry.lowered.nodes < LEAST_OPERATIONS for entry in part.learning.routes.entries)
        if small and not self._account.limited and not self._update:
            self.is_small = True
            self.leave("its graph has too few operations to be worth it")

    def leave(self, why: str) -> None:
        """Leave it to Python from now on."""
        if not self.why:
            self.why = why
            self.end()
            self._leave(self)

    def end(self) -> None:
        """Drop its graphs, and cancel their compilation."""
        if self.part is not None:
            self.part.learning.end()

    def wait(self) -> None:
        """Return when nothing is being compiled for it."""
        if self.part is not None:
            self.part.wait()


def _whole(traces: Sequence[Trace]) -> bool:
    """Cut nothing off: statements that are refused in a part make smaller parts."""
    return False
