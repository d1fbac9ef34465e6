"""A training step that was found in a program: called in its place, by Python at first, then under speculation."""

from __future__ import annotations

import math
import statistics
import sys
import threading
from collections import deque
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from torchjanus import runtime
from torchjanus.cli.discovery.candidates import Candidate
from torchjanus.cli.discovery.loops import Nest
from torchjanus.core.clock import undelayed
from torchjanus.core.lazy import deferred
from torchjanus.rewrite.hooks import hide_outlined
from torchjanus.runtime.runs.horizon import Horizon, beginning, pays_from
from torchjanus.runtime.runs.registry import executor_in_use

__all__ = ["EVALUATION", "Step"]

experience = deferred("torchjanus.runtime.runs.experience")
saved_graphs = deferred("torchjanus.runtime.runs.saved_graphs")

# A step that does not train waits so many times as long: beside a training it takes little time, so graphs gain less.
EVALUATION = 5.0
NAMED = 1.0  # seconds of Python's calls before one is watched, where the user has named an executor
SETTLED = 5  # calls by Python before one is watched: the first ones import, and make an optimizer's state
AGAIN = 1.1  # the next decision whether to watch comes after so many times the time so far
LEAST = 1e-4  # seconds: for shorter calls by Python a graph saves little, since guards take time, too
TIMED, SHORT = 8, 1e-3  # one in TIMED calls is timed if calls take less than SHORT seconds: reading a clock takes time
_MAKING = threading.RLock()
LATEST = 15  # calls over which the median time is taken
SCHEDULED = "*.param_groups[*]['lr']"  # an input from the first graph on: most scripts have a schedule of it


class Step:
    """The function made of one candidate, with the module's variables once they are there.

    ``description``: what a report calls it. ``after``: the seconds that Python's calls take before one is watched; with
    None one is watched once all calls are expected to take so long that it costs little. ``around``: the loops around
    it. ``speculated``: None until then.
    """

    __slots__ = (
        "_after", "_calls", "_fn", "_known", "_look", "_price", "_seconds", "_times", "_untimed",
        "around", "code", "description", "name", "speculated",
    )  # fmt: skip

    def __init__(self, code: CodeType, candidate: Candidate, file: str, after: float | None = None) -> None:
        self.code = code
        self.name = candidate.name
        self.description = f"{candidate} of {file}"
        self.around = Nest(())
        self._after = after
        if after is not None and candidate.kind == "evaluation":
            self._after = EVALUATION * after
        self._begin(None)

    def _begin(self, fn: Callable[..., Any] | None) -> None:
        self._fn = fn
        self.speculated: runtime.Speculated[..., Any] | None = None
        # Calls by Python, and the seconds of them; for ``_untimed`` of them, which are to come, both are estimates.
        self._calls, self._seconds, self._untimed = 0, 0.0, 0
        self._look, self._price = 0.0, 0.0
        self._times: deque[float] = deque(maxlen=LATEST)  # seconds of the latest calls by Python
        self._known: Any = None  # what earlier runs have kept of it, once that was asked for

    def bind(self, module_globals: dict[str, Any]) -> None:
        """Make the function, with the variables of the module that it is part of."""
        fn = FunctionType(self.code, module_globals, self.code.co_name)
        fn.__module__ = module_globals.get("__name__", "__main__")
        self._begin(fn)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if self.speculated is not None:
            return self.speculated(*args, **kwargs)
        assert self._fn is not None, "bound before the module runs"
        if self._untimed:
            self._untimed -= 1
            return self._fn(*args, **kwargs)
        if self._seconds < self._look or not self._is_due():
            begun = undelayed()
            try:
                return self._fn(*args, **kwargs)
            finally:
                self._took(undelayed() - begun)
        begun = undelayed()
        speculated = self._speculate(begun)
        try:
            return speculated(*args, **kwargs)
        finally:
            self._price = undelayed() - begun

    def has_raised(self) -> None:
        """Called where a call has raised, in the handler: the traceback becomes the one that the program's own
        statements would have."""
        error, caller = sys.exception(), sys._getframe(1)
        assert error is not None
        hide_outlined(error, caller)

    def _took(self, seconds: float) -> None:
        """Note a call by Python; for those that are not timed, too, which follow it."""
        self._untimed = TIMED - 1 if seconds < SHORT and self._calls >= SETTLED else 0
        self._calls += 1 + self._untimed
        self._seconds += (1 + self._untimed) * seconds
        self._times.append(seconds)

    # -- when a call is watched -----------------------------------------------------------------------------------

    @property
    def _each(self) -> float:
        """Seconds of a call by Python; 0.0 while there was none."""
        return statistics.median(self._times) if self._times else 0.0

    @property
    def _horizon(self) -> Horizon:
        return Horizon(self.around.calls, 0 if self._known is None else self._known.expected)

    def _is_due(self) -> bool:
        """Whether the next call is watched."""
        if self._known is None:
            self._known = experience.Experience.of(self.code)
        after = self._after
        if after is None and executor_in_use() != "auto":
            after = NAMED
        if after is not None:
            return self._seconds >= after
        if self._calls < SETTLED:
            return False
        self._look = AGAIN * self._seconds
        each, calls = self._each, self._horizon.calls(self._calls)
        if each < LEAST:
            return False
        price = self._known.price or beginning(each)
        coming = (calls - self._calls) * each
        share = self._known.share
        seconds = self._seconds + coming if share is None else coming
        return seconds >= pays_from(share, price)

    def _speculate(self, begun: float) -> runtime.Speculated[..., Any]:
        """Return the speculated function, which makes the calls from now on."""
        assert self._fn is not None
        with _MAKING:
            if self.speculated is None:  # no other thread has been here
                self.speculated = self._made_now(begun)
            return self.speculated

    def _made_now(self, begun: float) -> runtime.Speculated[..., Any]:
        assert self._fn is not None
        made: runtime.Speculated[..., Any] = runtime.speculate(self._fn)
        made.expect((SCHEDULED, *self._known.varying), saved_graphs.SavedGraphs(self._known.graphs))
        made.record_earlier_calls(self._calls, self._seconds, self._each)
        if self._after is None:
            made.limit(self._horizon, undelayed() - begun)
        return made

    # -- what is said and kept of it ------------------------------------------------------------------------------

    @property
    def unwatched(self) -> str:
        """Why none of its calls was watched; "" if one was, or none was made here (a step may call another)."""
        if self.speculated is not None or not self._calls:
            return ""
        made = self._calls - self._untimed
        calls = "its call" if made == 1 else f"its {made} calls"
        said = f"{calls} took {self._seconds:.1f} s together"
        if self._after is not None:
            return f"{said}; one is watched after {self._after:.1f} s"
        if self._each < LEAST:
            return f"{said}: calls that short gain nothing by graphs (--after 0 makes them all the same)"
        price = self._known.price or beginning(self._each)
        after = pays_from(self._known.share, price)
        if after == math.inf:
            return f"{said}; an earlier run was no faster by graphs (--after 0 makes them all the same)"
        return f"{said}; graphs pay from {after:.{0 if after >= 10 else 1}f} s on (--after 0 makes them all the same)"

    def remember(self) -> None:
        """Keep for later runs what this one, which is over, has seen of it."""
        if self._known is None:
            return
        known = experience.Experience.of(self.code)
        if self.speculated is None:
            known.keep_calls(self._calls - self._untimed, self._each, known.price)
            return
        each = self.speculated.eager or self._each
        price = max(self._price - each, 0.0) + self.speculated.rest_of_price
        known.keep_calls(self._calls + self.speculated.statistics().calls, each, price)
        if (learnt := self.speculated.learnt()) is not None:
            known.keep_graphs(*learnt)

    @property
    def __janus_target__(self) -> Callable[..., Any]:
        """The function that another function's watching enters in place of this object."""
        assert self._fn is not None
        return self._fn

    def __repr__(self) -> str:
        return f"<{self.description}>"
