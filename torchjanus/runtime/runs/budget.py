"""Limits what learning costs a function: one account of all the time that its calls take beyond eager's.

Overhead is the time of a call beyond what it would take in eager: watching, generalising, lowering within the call,
trials, wasted attempts of graphs. The time in eager is measured on calls that Python makes unwatched. Overhead is free
in the first call and in the first window after it. A window is one second of the calls' own time (time between calls
does not count), or ten calls in eager if they are longer. After that the account has to pay for overhead. Its income is
a share of the calls' time in eager, which shrinks over time, and the time that graphs are measured to save. The
expected price of a kind of learning is its last cost; the price of watching doubles after each watched run that was of
no use.

While there is no graph at all, one watched call may overdraw the account, unless runs have differed for long. So may
the first graph once two runs are alike, and later runs if the account is full. The debt is paid back before anything
else but short trials of compiled code. Later on, what costs more than the account can hold is saved up for. After the
first window, learning that takes a large part of a window is the only learning in it.

With an executor named by the user nothing is limited: which calls run as graphs must not depend on the clock. A part of
a step has prices of its own, and the account of the step, which is charged for both. This module does not know what is
learnt.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from torchjanus.core.clock import undelayed
from torchjanus.runtime.runs.loss_bound import LossBound

__all__ = ["Budget", "Overhead"]

FREE_SECONDS = 1.0  # length of a window, at least
FREE_CALLS = 10  # length of a window in calls in eager, at least
SHARE = 0.06  # of the time that calls take in eager is paid in
BURST = 0.05  # the most that the account holds, as a share of a window; with SHARE and WASTED 15 % of a second at most
# Wasted attempts of graphs may take this share of a window, independent of the balance. The account gets the same share
# of the time as income, and half of it later on.
WASTED = 0.02
AT_ONCE = 0.1  # the share of a window that may be spent at once, besides what graphs save in it
LONGER = 3  # what costs more than that must be saved up for, so many times its price
SLOWER = 0.1  # graphs are charged as slower than eager by this share of eager's time at most
HALVED = 10.0  # seconds in eager after which the shares are halved, and again after each such time
LEAST = 0.1  # the part of the shares that always remains
LATEST = 64  # calls by Python over which the mean time is taken
# Among the first calls by Python, one that takes UNUSUAL times as long as the others does not count: it imports modules
# or makes an optimizer's state.
FIRST_CALLS, UNUSUAL = 5, 10.0
# After the first calls by Python, one in so many is timed: reading a clock takes microseconds on some machines.
TIMED = 8
UNLIKE = 3  # consecutive runs unlike any earlier one: more are not worth a debt
LONGEST_WATCH = 5.0  # seconds of processor time that watching one call may take
PART_WATCH = 1.0  # seconds, for a part of a step
CALLS_WATCHED = 20  # as many calls in eager, if they are longer
NAMED_WATCH = 60.0  # seconds, with an executor named by the user
MAX_BACK_OFF = 10  # most doublings of the distance between calls that are watched without use


@dataclass(frozen=True, slots=True)
class Overhead:
    """The measured time that a function's calls took beyond eager's, without the first call. ``free``: seconds of it in
    the first window."""

    seconds: float
    free: float
    eager: float  # seconds that all calls would have taken in eager
    first: float  # seconds of the first call

    @property
    def share(self) -> float:
        """The overhead after the first window, as a share of eager's time."""
        return (self.seconds - self.free) / self.eager if self.eager else 0.0

    def __str__(self) -> str:
        return (
            f"{self.seconds:.1f} s beyond the {self.eager:.1f} s that its calls take in eager: {self.free:.1f} s in "
            f"the first second, {self.share:.1%} of the time from then on (the first call: {self.first:.1f} s)"
        )


class Budget:
    """The account of one function. ``clock`` returns seconds; ``limited``: whether learning is ever deferred;
    ``account``: that of the step that the function is a part of."""

    def __init__(
        self, clock: Callable[[], float] = undelayed, *, limited: bool = True, account: Budget | None = None
    ) -> None:
        self.clock = clock
        self._account = account
        self.seconds_of_parts = 0.0  # seconds that parts have taken for learning, since Python began the current call
        self.limited = limited
        self.unsettled_served = 0  # calls that graphs have made and that are not in the account yet
        self.unsettled_untimed = 0  # calls that Python has made unwatched and untimed
        self.python_seconds = 0.0  # seconds that Python has taken for unwatched calls
        self.share: float | None = (
            None  # the time of a call by a graph as a share of that of a call by Python, if measured
        )
        self.is_wasteful = False  # whether wasted attempts of graphs have taken too long
        self._begun = account is not None  # the first call of a part is not free
        self._unaccounted = 0.0  # seconds of calls by Python before the account was opened
        self._first = 0.0  # seconds of the first call
        self._elapsed = 0.0  # seconds of calls after it
        self._eager = 0.0  # seconds that these calls would have taken in eager
        self._lately: deque[tuple[float, float]] = deque()  # (when, seconds) of what was charged within a window
        # Seconds in eager, and of calls, at the beginning of the last window but one, and of the last one.
        self._before = self._since = (0.0, 0.0)
        self._overhead = 0.0
        self._free = 0.0  # seconds of the overhead in the first window
        self._level = 0.0
        self._wasted = 0.0  # seconds of wasted attempts of graphs, less what graphs have saved recently
        self._unmeasured = 0.0  # seconds that calls by graphs would have taken in eager, before their share was known
        self._times = (0.0, 0)  # of calls by Python: seconds, and how many
        self._first_times: list[float] = []  # seconds of the first of them
        self._unknown = 0  # calls whose time in eager was not known
        self._kind = ""  # what is learnt in the current call
        self._within = 0.0  # seconds of the current call that were charged to another kind
        self._prices: dict[str, float] = {}  # seconds that each kind took the last time
        self._useless = 0  # runs watched without use, since the last useful one
        self._alike = False  # whether the last watched run took the path of an earlier one
        self._lent = False  # whether a watched call has overdrawn the account
        self._skipped = 0  # calls left unwatched before the next watched one
        # What a program that may end soon can afford.
        self.bound: LossBound = LossBound(self._spent) if account is None else account.bound

    @property
    def is_of_part(self) -> bool:
        """Whether it is the account of a part of a step."""
        return self._account is not None

    @property
    def times_next_call(self) -> bool:
        """Whether the next call by Python has to be timed; otherwise the caller adds it to ``untimed``."""
        return self.unsettled_untimed >= TIMED or self._times[1] < LATEST // 2

    @property
    def longest_watch(self) -> float:
        """Seconds of processor time after which the rest of a call is not watched."""
        if not self.limited:
            return NAMED_WATCH
        return max(PART_WATCH if self.is_of_part else LONGEST_WATCH, CALLS_WATCHED * self.eager)

    # -- what calls have taken ------------------------------------------------------------------------------------

    def record_earlier_calls(self, calls: int, seconds: float, each: float | None = None) -> None:
        """Record calls by Python before the account was opened: nothing is paid in for them. ``each``: the time of a
        typical one."""
        self._times = (seconds if each is None else calls * each, calls)
        self._unaccounted = seconds

    def record_python_call(self, seconds: float) -> None:
        """Record that Python made a call, or the rest of one, unwatched."""
        self.python_seconds += seconds
        seconds, self.seconds_of_parts = max(seconds - self.seconds_of_parts, 0.0), 0.0
        total, count = self._times
        if count == len(self._first_times) < FIRST_CALLS:
            self._first_times.append(seconds)
            typical = statistics.median_low(self._first_times)
            usual = (one if one <= UNUSUAL * typical else typical for one in self._first_times)
            self._times = (sum(usual), count + 1)
        else:
            self._times = (total / 2 + seconds, count // 2 + 1) if count >= LATEST else (total + seconds, count + 1)
        self._elapsed += seconds
        self._pay_in(seconds)
        if self.unsettled_untimed:
            self._settle()

    def record_call(self, seconds: float, python: float) -> None:
        """Record a call that was not made by a graph alone. ``python``: seconds of it in which Python made it
        unwatched."""
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

    def begin_learning(self, kind: str) -> None:
        """Record what is learnt in the current call."""
        self._kind = kind

    def charge(self, kind: str, seconds: float, *, in_call: bool = False) -> None:
        """Charge for something that was made. ``in_call``: within a call that ``took`` will be called for."""
        self._prices[kind] = seconds
        if self._begun:
            self._charge(seconds)
            self._elapsed += seconds
            if in_call:
                self._within += seconds

    def record_usefulness(self, useful: bool) -> None:
        """Record whether the last watched run was useful: whether it took the path of an earlier one."""
        self._alike = useful
        self._useless = 0 if useful else min(self._useless + 1, MAX_BACK_OFF)
        self._skipped = 0 if self._useless < 2 else 2**self._useless - 1

    def begin_again(self) -> None:
        """Forget how many runs were useless: something else is learnt from now on."""
        self._useless = self._skipped = 0

    def record_cost_outside(self, seconds: float) -> None:
        """Record what learning has cost outside of the calls; that of a part is not counted."""
        if self._account is None:
            self.bound.sunk += seconds

    def _spent(self) -> float:
        """Return the seconds that learning has cost in calls, with the first one."""
        return self.overhead.seconds + max(self._first - self.eager, 0.0)

    # -- what there is time for -----------------------------------------------------------------------------------

    @property
    def eager(self) -> float:
        """Seconds that a call takes in eager; 0 as long as that is unknown."""
        total, count = self._times
        return total / count if count else 0.0

    @property
    def seconds_in_eager(self) -> float:
        """Seconds that all calls so far would have taken in eager, as far as that is known."""
        self._settle()
        return self._unaccounted + self._eager

    @property
    def runs_differ(self) -> bool:
        """Whether the last watched runs were each unlike any earlier one."""
        return self._useless >= UNLIKE

    @property
    def window(self) -> float:
        """The length of a window, in seconds."""
        return max(FREE_SECONDS, FREE_CALLS * self.eager)

    @property
    def is_free(self) -> bool:
        """Whether nothing is limited yet."""
        if self._account is not None:
            return self._account.is_free
        if not self.limited or not self._begun:
            return True
        self._settle()
        return self._elapsed < self.window

    def allows(self, kind: str, *, first: bool = False, odds: int = 1) -> bool:
        """Whether there is time to learn this from the current call. ``first``: there is no graph yet; ``odds``: one of
        so many such calls is useful."""
        # What has not been done yet was decided on before the account was opened.
        if self.bound.is_set and kind in self._prices and not self.bound.affords(self._prices[kind]):
            return False
        if self.is_free:
            return True
        if kind == "watch" and self._skipped > 0:
            self._skipped -= 1
            return False
        account = self if self._account is None else self._account
        if account._is_spent(self._prices.get(kind, 0.0)):
            return False
        if first and kind == "make" and self._alike:
            return True
        # Trials are few, and what they find faster pays for the rest: they wait for no debt.
        if kind == "trial" and self._prices.get(kind, 0.0) <= BURST * account.window:
            return True
        if first and kind == "watch" and not account._lent and self._useless < UNLIKE:
            account._lent = True
            return True
        # A call that is repeated is watched.
        known = kind if kind != "repeat" or kind in self._prices else "watch"
        price, burst = odds * self._prices.get(known, 0.0), BURST * account.window
        if price <= burst:
            need = price
        elif kind == "trial" or (first and self._useless < UNLIKE):
            need = burst
        else:
            need = price * self._times_as_much(kind) * (LONGER if price > account._at_once else 1)
        # Save no more than the dearest kind may need.
        most = max((one * self._times_as_much(name) for name, one in self._prices.items()), default=0.0)
        account._level = min(account._level, max(burst, LONGER * max(most, price)))
        return account._level >= need

    @property
    def price(self) -> float:
        """Seconds that one more graph takes, in calls: two watched runs and making it, by what each took last."""
        return 2 * self._prices.get("watch", 0.0) + self._prices.get("make", 0.0)

    def _is_spent(self, price: float) -> bool:
        """Whether this price would exceed what may be spent within the current window. What exceeds a window by itself
        is alone in its window."""
        while self._lately and self._elapsed - self._lately[0][0] > self.window:
            self._lately.popleft()
        lately = sum(overhead for _, overhead in self._lately)
        return lately > 0.0 and lately + price > self._at_once

    @property
    def _at_once(self) -> float:
        """Seconds that may be spent in one window, so that calls in it take little longer than in eager."""
        eager, elapsed = self._eager - self._before[0], self._elapsed - self._before[1]
        left = (1.0 - AT_ONCE) * elapsed / eager if eager else 1.0
        return max(AT_ONCE, 1.0 - left) * self.window

    def _times_as_much(self, kind: str) -> int:
        """Return the factor on the price of this kind: it doubles with each useless watched run."""
        return 2**self._useless if kind == "watch" else 1

    @property
    def overhead(self) -> Overhead:
        """The overhead so far."""
        self._settle()
        return Overhead(self._overhead, self._free, self._eager, self._first)

    # -- the account ----------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Enter the calls that graphs and untimed Python have made."""
        eager = self.eager
        if eager and self._unknown:  # what was charged for them was too much
            unknown, self._unknown = self._unknown, 0
            back = min(unknown * eager, self._overhead)
            self._overhead -= back
            self._free = min(self._free, self._overhead)
            self._level += back
        if self.unsettled_untimed:
            seconds, self.unsettled_untimed = self.unsettled_untimed * eager, 0
            self._elapsed += seconds
            self._pay_in(seconds)
        if eager and self.unsettled_served:
            served, self.unsettled_served = self.unsettled_served, 0
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
            ):  # no graph is faster than eager, but the difference is too small for Python to make the calls
                self._charge(min(share - 1.0, SLOWER) * seconds, wasted=True)

    def _pay_in(self, eager: float, saved: float = 0.0) -> None:
        """Pay in for calls that take ``eager`` seconds in eager, of which graphs have ``saved`` so many."""
        fading = max(LEAST, 0.5 ** (self._eager / HALVED))
        if self._elapsed - self._since[1] >= self.window:
            self._before, self._since = self._since, (self._eager, self._elapsed)
        self._eager += eager
        self.bound.saved += saved
        self._level += SHARE * fading * eager + saved
        if self._account is not None:
            self._account._level += saved
        # What graphs have just saved makes up for a disturbance later.
        # What was wasted once must not keep graphs from serving for long: its share fades to a half only.
        wasted = max(min(self._wasted, 0.0), self._wasted - WASTED * max(fading, 0.5) * eager) - saved
        self._wasted = max(wasted, -BURST * self.window)
        if self.is_wasteful and self._wasted <= 0.5 * WASTED * self.window:
            self.is_wasteful = False

    def _charge(self, overhead: float, wasted: bool = False) -> None:
        """Charge ``overhead`` seconds. ``wasted``: for an attempt of a graph that was of no use."""
        self._overhead += overhead
        if self._account is not None:
            self._account.seconds_of_parts += overhead
            self._account._elapsed += overhead
            self._account._charge(overhead)
        if self.is_free:
            self._free += overhead
            return
        self._level -= overhead
        if overhead > 0.0 and not wasted:
            self._lately.append((self._elapsed + overhead, overhead))
        if wasted:
            self._wasted += overhead
            self.is_wasteful = self._wasted > WASTED * self.window
