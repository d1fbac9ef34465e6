"""How long a step's calls will take in all, and so what learning may cost: a small share of that.

A script that ends soon gains nothing from graphs, and learning makes it slower. So learning a step that the user has
not marked may take a small share of the time that all its calls will take. That time is estimated from the lengths of
the loops around the step, from the number of calls in an earlier run, or else from the time that the calls have taken
so far. This module imports almost nothing: most scripts end before they need more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["LOSS", "Horizon", "beginning", "gains", "pays_from"]

# The share of the time of all calls that learning may cost before it is known what graphs save. Graphs make short calls
# in half the time or less, since most of that is Python's and the dispatcher's. A script that has run for a while, or
# whose loops are long, mostly continues for long enough.
LOSS = 0.1
# Learning must gain its price so many times, by measurements of an earlier run or by the operations of a call.
SURE = 2.0
# The same, UNSURE times, if graphs took more than the share FASTER of eager's time in an earlier run: the machine may
# have been busy during that measurement.
FASTER, UNSURE = 0.9, 4.0
# Seconds until the first call has been watched: modules are imported, and the sources of libraries rewritten.
BEGINNING = 0.7
WATCHED = 10.0  # calls in eager that watched calls take besides
# Seconds for each operation until there is a graph, and seconds that one takes in eager at least: so a call has
# that many at most. Calls of more than MOST are long because of their arithmetic.
LEARNED, SHORTEST, MOST = 3.3e-3, 7e-6, 600


@dataclass(frozen=True, slots=True)
class Horizon:
    """``by_loops``: returns how many calls there will be in all by the loops around the step, given how many there have
    been; None where that is unknown. ``earlier``: how many an earlier run with these arguments made; 0: unknown."""

    by_loops: Callable[[int], float | None]
    earlier: int = 0

    def calls(self, done: int) -> float:
        """Return how many calls there will be in all, if ``done`` have been made: no more than that, if it is
        unknown."""
        if self.earlier > done:
            return self.earlier
        return max(done, self.by_loops(done) or 0.0)


def beginning(each: float) -> float:
    """Return what learning is expected to cost until there is a graph, in seconds. ``each``: seconds of a call in
    eager."""
    return BEGINNING + WATCHED * each + LEARNED * min(each / SHORTEST, MOST)


def gains(share: float, seconds: float, price: float) -> bool:
    """Whether graphs are expected to gain clearly more than their ``price``. ``share``: the time of a call by graphs as
    a share of that in eager; ``seconds``: what the calls to come take in eager."""
    return seconds >= pays_from(share, price)


def pays_from(share: float | None, price: float) -> float:
    """Return how many seconds calls have to take in eager, so that graphs are worth their ``price``: the calls to come,
    or all calls if the ``share`` is unknown. Infinite where graphs are no faster."""
    if share is None:
        return price / LOSS
    if share >= 1.0:
        return math.inf
    return (SURE if share <= FASTER else UNSURE * SURE) * price / (1.0 - share)
