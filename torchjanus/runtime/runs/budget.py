"""What learning may cost a function: one account of all that its calls take beyond eager's time.

Overhead is what a call takes beyond what it would take in eager: watching, generalising, lowering in the call, trials,
wasted attempts of graphs. What calls take in eager is measured on those that Python makes unwatched. The first call
is free, and so is the first window of a second after it: of calls' own time, so that what goes on between them does
not matter. For steps that take long a window is ten of their calls. From then on overhead is deferred until the
account can pay for it: a share of what calls take in eager goes in, less as time goes on, and what graphs are measured
to save. What is asked for is taken to cost what it did the last time, and more each time that nothing came of it.

As long as there is no graph at all, one watched call may overdraw the account at once, unless runs have been unlike for
long; so may the first graph, once two runs are alike, and later runs where the account is full. That is paid back
before anything else. Later on what costs more than the account holds by itself is saved up for. Once the first window
is over, what takes much of a window is the only such thing in it.

With an executor that was named nothing is limited: which calls run as graphs must not depend on the clock. Knows
nothing of what is learnt.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Budget", "Overhead"]

FREE_SECONDS = 1.0  # a window, at least
FREE_CALLS = 10  # in eager, at least
SHARE = 0.06  # of the time that calls take in eager goes into the account
BURST = 0.05  # of a window is what the account holds: with the share it makes 15 % of a second at most, see WASTED
WASTED = 0.02  # of a window may be wasted attempts of graphs whatever the account says, and the same share of the time
AT_ONCE = 0.1  # of a window may be taken at once, and what graphs save in it: more is saved up for longer
LONGER = 3  # times its price
SLOWER = 0.1  # of eager's time graphs may be slower, and make calls for long: who is faster is measured
HALVED = 10.0  # seconds in eager after which the shares are half of these, and so on
LEAST = 0.1  # of them, however long it has been
LATEST = 64  # calls of Python's of which the mean is taken
TIMED = 8  # of so many calls by Python one is timed, once that many have been: a clock takes microseconds in places
UNLIKE = 3  # runs in a row that are like no earlier one: more are not worth a debt
MAX_BACK_OFF = 10  # times that the distance between calls that are watched for nothing has doubled


@dataclass(frozen=True, slots=True)
class Overhead:
    """What a function's calls have taken beyond eager's time, by what is known of that, but for the first call.
    ``free`` seconds of it in the first window."""

    seconds: float
    free: float
    eager: float  # seconds that all calls would have taken in eager
    first: float  # seconds of the first call

    @property
    def share(self) -> float:
        """Of eager's time, after the first window."""
        return (self.seconds - self.free) / self.eager if self.eager else 0.0

    def __str__(self) -> str:
        return (
            f"{self.seconds:.1f} s beyond the {self.eager:.1f} s that its calls take in eager: {self.free:.1f} s in "
            f"the first second, {self.share:.1%} of the time from then on (the first call: {self.first:.1f} s)"
        )


class Budget:
    """The account of one function. ``clock`` gives seconds; ``limited``: whether anything is ever deferred."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter, *, limited: bool = True) -> None:
        self.clock = clock
        self.limited = limited
        self.served = 0  # calls that graphs have made and that are not in the account yet
        self.untimed = 0  # calls that Python has made unwatched and nobody has timed
        self.python = 0.0  # seconds that Python has taken for calls, unwatched
        self.share: float | None = (
            None  # what a call by a graph takes, of what one by Python takes, if that was measured
        )
        self.wastes = False  # whether attempts of graphs were wasted for too long
        self._begun = False
        self._first = 0.0  # seconds of the first call
        self._elapsed = 0.0  # seconds of calls after it
        self._eager = 0.0  # seconds that these would have taken in eager
        self._lately: deque[tuple[float, float]] = deque()  # what was charged within a window, and when
        # Seconds in eager, and of calls, when the last window but one began, and the last one.
        self._before = self._since = (0.0, 0.0)
        self._overhead = 0.0
        self._free = 0.0  # of the overhead in the first window
        self._level = 0.0
        self._wasted = 0.0  # seconds of wasted attempts of graphs, less what they have saved of late
        self._unmeasured = 0.0  # seconds that calls by graphs would have taken in eager, before their share was known
        self._times = (0.0, 0)  # of Python's calls: seconds, and how many
        self._unknown = 0  # calls whose time in eager was not known
        self._kind = ""  # what is learnt in the call that goes on
        self._within = 0.0  # seconds in it for which another kind has been charged
        self._prices: dict[str, float] = {}  # what each kind took the last time
        self._useless = 0  # runs watched of which nothing came, since something did
        self._alike = False  # whether the last run watched has gone the way of an earlier one
        self._lent = False  # whether a watched call has overdrawn the account at once
        self._skipped = 0  # calls that are not watched before the next that is

    @property
    def is_due(self) -> bool:
        """Whether one more call that Python makes is to be timed; else ``untimed`` counts it."""
        return self.untimed >= TIMED or self._times[1] < LATEST // 2

    # -- what calls have taken ------------------------------------------------------------------------------------

    def by_python(self, seconds: float) -> None:
        """Python has made a call, or the rest of one, unwatched."""
        total, count = self._times
        self._times = (total / 2 + seconds, count // 2 + 1) if count >= LATEST else (total + seconds, count + 1)
        self.python += seconds
        self._elapsed += seconds
        self._pay_in(seconds)
        if self.untimed:
            self._settle()

    def took(self, seconds: float, python: float) -> None:
        """A call is over that no graph has made by itself. ``python``: seconds for which Python made it, unwatched."""
        kind, self._kind = self._kind, ""
        within, self._within = self._within, 0.0
        if not self._begun:
            self._begun, self._first = True, seconds
            return
        if python:
            overhead = max(seconds - python, 0.0)
        else:
            overhead = max(seconds - self.eager, 0.0)
            self._unknown += not self._times[1]
            self._pay_in(min(seconds, self.eager))
        if kind:
            self._prices[kind] = max(overhead - within, 0.0)
        self._charge(overhead - within, wasted=not kind and bool(python))
        self._elapsed += seconds - python - within

    def learns(self, kind: str) -> None:
        """This is learnt from the call that goes on."""
        self._kind = kind

    def charge(self, kind: str, seconds: float, *, in_call: bool = False) -> None:
        """This has been made; ``in_call``: in one that ``took`` will be told of."""
        self._prices[kind] = seconds
        if self._begun:
            self._charge(seconds)
            self._elapsed += seconds
            if in_call:
                self._within += seconds

    def came_of_it(self, useful: bool) -> None:
        """Whether what a watched run has shown is of use: it has gone the way of an earlier one."""
        self._alike = useful
        self._useless = 0 if useful else min(self._useless + 1, MAX_BACK_OFF)
        self._skipped = 0 if self._useless < 2 else 2**self._useless - 1

    def begin_again(self) -> None:
        """Something else is learnt from now on: what has been useless so far says nothing of it."""
        self._useless = self._skipped = 0

    # -- what there is time for -----------------------------------------------------------------------------------

    @property
    def eager(self) -> float:
        """Seconds that a call takes in eager; 0 as long as that is unknown."""
        total, count = self._times
        return total / count if count else 0.0

    @property
    def window(self) -> float:
        """Seconds."""
        return max(FREE_SECONDS, FREE_CALLS * self.eager)

    @property
    def is_free(self) -> bool:
        """Whether nothing is limited yet."""
        if not self.limited or not self._begun:
            return True
        self._settle()
        return self._elapsed < self.window

    def allows(self, kind: str, *, first: bool = False, odds: int = 1) -> bool:
        """Whether there is time to learn this from the call. ``first``: there is no graph yet; ``odds``: of so many
        such calls one is of use."""
        if self.is_free:
            return True
        if kind == "watch" and self._skipped > 0:
            self._skipped -= 1
            return False
        if self._is_spent(self._prices.get(kind, 0.0)):
            return False
        if first and kind == "make" and self._alike:
            return True
        if first and kind == "watch" and not self._lent and self._useless < UNLIKE:
            self._lent = True
            return True
        # A call that is repeated is watched.
        known = kind if kind != "repeat" or kind in self._prices else "watch"
        price, burst = odds * self._prices.get(known, 0.0), BURST * self.window
        if price <= burst:
            need = price
        elif kind == "trial" or (first and self._useless < UNLIKE):
            need = burst
        else:
            need = price * self._times_as_much(kind) * (LONGER if price > self._at_once else 1)
        # Nothing is saved beyond what may be asked for.
        most = max((one * self._times_as_much(name) for name, one in self._prices.items()), default=0.0)
        self._level = min(self._level, max(burst, LONGER * max(most, price)))
        return self._level >= need

    def _is_spent(self, price: float) -> bool:
        """Whether so much has been taken within a window that this would be too much in it. What is too much by itself
        is alone in its window."""
        while self._lately and self._elapsed - self._lately[0][0] > self.window:
            self._lately.popleft()
        lately = sum(overhead for _, overhead in self._lately)
        return lately > 0.0 and lately + price > self._at_once

    @property
    def _at_once(self) -> float:
        """Seconds that may be taken in one window, so that calls in it take little longer than in eager."""
        eager, elapsed = self._eager - self._before[0], self._elapsed - self._before[1]
        left = (1.0 - AT_ONCE) * elapsed / eager if eager else 1.0
        return max(AT_ONCE, 1.0 - left) * self.window

    def _times_as_much(self, kind: str) -> int:
        return 2**self._useless if kind == "watch" else 1

    @property
    def overhead(self) -> Overhead:
        """What has been taken so far."""
        self._settle()
        return Overhead(self._overhead, self._free, self._eager, self._first)

    # -- the account ----------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Take in the calls that graphs have made."""
        eager = self.eager
        if eager and self._unknown:  # what was charged before was too much
            unknown, self._unknown = self._unknown, 0
            back = min(unknown * eager, self._overhead)
            self._overhead -= back
            self._free = min(self._free, self._overhead)
            self._level += back
        if self.untimed:
            seconds, self.untimed = self.untimed * eager, 0
            self._elapsed += seconds
            self._pay_in(seconds)
        if eager and self.served:
            served, self.served = self.served, 0
            seconds = served * eager
            share = 1.0 if self.share is None else self.share
            self._elapsed += share * seconds
            self._unmeasured += seconds
            if self.share is None:
                self._pay_in(seconds)
                return
            unmeasured, self._unmeasured = self._unmeasured, 0.0
            self._pay_in(seconds, max(0.0, 1.0 - share) * unmeasured)
            if (
                share > 1.0
            ):  # no graph is faster than eager, and that is not certain enough for Python to make the calls
                self._charge(min(share - 1.0, SLOWER) * seconds, wasted=True)

    def _pay_in(self, eager: float, saved: float = 0.0) -> None:
        """``eager`` seconds of calls in eager; graphs have ``saved`` so many of them."""
        fading = max(LEAST, 0.5 ** (self._eager / HALVED))
        if self._elapsed - self._since[1] >= self.window:
            self._before, self._since = self._since, (self._eager, self._elapsed)
        self._eager += eager
        self._level += SHARE * fading * eager + saved
        # What they have just saved is worth a second in which something disturbs.
        wasted = max(min(self._wasted, 0.0), self._wasted - WASTED * fading * eager) - saved
        self._wasted = max(wasted, -BURST * self.window)
        if self.wastes and self._wasted <= 0.5 * WASTED * self.window:
            self.wastes = False

    def _charge(self, overhead: float, wasted: bool = False) -> None:
        self._overhead += overhead
        if self.is_free:
            self._free += overhead
            return
        self._level -= overhead
        if overhead > 0.0 and not wasted:
            self._lately.append((self._elapsed + overhead, overhead))
        if wasted:
            self._wasted += overhead
            self.wastes = self._wasted > WASTED * self.window
