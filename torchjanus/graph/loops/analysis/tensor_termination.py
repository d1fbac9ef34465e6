"""Finds in a run the loops that go on until a tensor decides otherwise: ``while error > limit``, ``if done: break``.

Each round of such a loop ends with the same question, answered the same way by all rounds but perhaps the last. Rounds
need not begin where the user's loop does: for a ``while`` the first question comes before the first round. Knows
traces; whether the rounds are alike is found out by ``loop_alike``.
"""

from __future__ import annotations

import itertools
import operator
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torchjanus.trace.actions import Op
from torchjanus.trace.events import Decision, Trace
from torchjanus.trace.facts import Asserted, Held
from torchjanus.trace.plains import are_same, by_round, counted, limited, sums
from torchjanus.trace.reckoning import reckoning
from torchjanus.trace.rounds import Plain, Rounds, Turns, Until
from torchjanus.trace.values import Apply, Expr, Fetch, leaves

__all__ = ["is_question", "untils"]


def is_question(event: Any) -> bool:
    """Whether a tensor was asked to decide."""
    if isinstance(event, Asserted):
        return True
    return isinstance(event, Held) and any(isinstance(leaf, Fetch) for leaf in leaves(event.expr))


def untils(trace: Trace) -> Iterator[Rounds]:
    """What may be such loops. Of two that overlap the first is to be preferred."""
    for row in _rows(trace):
        yield from _rounds(trace, row)


def _rows(trace: Trace) -> Iterator[list[int]]:
    """Questions asked at one place, one after the other, with none in between; answered alike but for the last."""
    row: list[int] = []
    for position, event in enumerate(trace.events):
        if not is_question(event):
            continue
        first = trace.events[row[0]] if row else None
        same = first is not None and first.place == event.place and type(first) is type(event)
        if row and (not same or _is_stopped(trace, row)):
            yield row
            row = []
        row.append(position)
    if row:
        yield row


def _is_stopped(trace: Trace, row: Sequence[int]) -> bool:
    return _answer(trace, row[0]) != _answer(trace, row[-1])


def _answer(trace: Trace, position: int) -> bool:
    event = trace.events[position]
    assert isinstance(event, Asserted | Held)
    return event.outcome


def _rounds(trace: Trace, row: list[int]) -> Iterator[Rounds]:
    """The rounds of the loop that asked these questions, if it is one: as the user wrote them, or else from the first
    answer on."""
    turns = [turn for turn in trace.turns if _is_among(turn, row)]
    turn = turns[0] if turns else None
    if turn is not None and row[0] < turn.starts[0]:
        row = row[1:]  # asked before there was a round (``while error > limit and steps < most``)
    end, stopped, go = row[-1] + 1, _is_stopped(trace, row), _answer(trace, row[0])
    starts = tuple(position + 1 for position in row[:-1])
    if len(turns) > 1 or (turn is not None and not _asks_each_round(turn, row)):
        return  # a loop asks in some rounds only, or another one goes round in it
    if turn is None:
        yield from _counted(trace, Rounds(starts, end, Until(go, None)), trace.plain, stopped)
        return
    if len(row) == 1 and turn.end is None:
        stopped, go = True, not go  # the first answer was to leave it
    if stopped != (turn.end is None) or (not stopped and len(row) != len(turn.starts)):
        return  # it was left otherwise, or went on to its end whatever was answered in the last round
    over = turn.over
    begins = over.start if over is not None and over.step == 1 else 0
    back = over is not None and over.step == -1 and over.stop in (-1, 0)
    for limit in _limits(turn):
        if _is_at_end(trace, turn, row):
            counters = () if over is None else ((over.start, over.step),)
            first = Rounds(
                (turn.starts[0], *starts), end, Until(go, limit), counters,
                begins=begins, back=back, unpinned=turn.unpinned,
            )  # fmt: skip
            yield from _counted(trace, first, trace.plain[turn.plain :], stopped)
        if starts:
            counters = () if over is None else ((over.start + over.step, over.step),)
            less = limit - 1 if isinstance(limit, int) else Apply(operator.sub, (limit, 1))
            later = Rounds(
                starts, end, Until(go, less), counters,
                skipped=1, begins=begins, back=back, unpinned=turn.unpinned,
            )  # fmt: skip
            yield from _counted(trace, later, trace.plain, stopped)


def _limits(turn: Turns) -> Iterator[Expr | int]:
    """How many rounds there may be: by an expression, or else as many as there might have been, which may decide more
    than that. None where it comes to its end by what nobody knows."""
    if turn.count is not None:
        yield turn.count
    if turn.over is not None:
        yield len(turn.over)


def _counted(trace: Trace, rounds: Rounds, plains: Sequence[Plain], stopped: bool) -> Iterator[Rounds]:
    """The rounds with what they count, if these computed nothing else with plain numbers but what sets a limit to how
    many there are (``while error > limit and steps < 100``). ``stopped``: whether a tensor has ended the last one."""
    assert isinstance(rounds.count, Until)
    limit = rounds.count.limit
    computed = by_round(plains, [*rounds.starts, rounds.end])
    columns, most = limited(computed)
    if most is not None:
        if limit is not None and type(limit) is not int:
            return
        limit = most if limit is None else min(limit, most)
    at_limit = not stopped and limit == len(rounds.starts)  # then it is known how many rounds there were
    if not stopped and rounds.count.limit is None and not at_limit:
        return  # nobody knows what has ended it
    following = trace.events[rounds.end] if rounds.end < len(trace.events) else None
    end = rounds.end + 1 if isinstance(following, Decision) else rounds.end
    if not at_limit and any(rounds.end <= plain.position <= end for plain in trace.plain):
        return  # native code may have ended it
    left = [turn for turn in trace.turns if turn.end is None and not turn.inner]
    if not are_same(columns) and any(rounds.starts[0] < start < rounds.end for one in left for start in one.starts[:1]):
        return  # what goes over something bit by bit may get any numbers from it
    asked = [position - 1 for position in (*rounds.starts[1:], rounds.end)]
    if any(position not in trace.changed for position in asked[1:]):
        return  # it is no question of the program's
    changes = [trace.changed[position] for position in asked[1:]]
    if any(not later <= earlier for earlier, later in itertools.pairwise(changes)):
        return  # something is handed on from round to round, and not all of it has come to light
    counters, forms = counted(columns), None
    if counters is None:
        # What was compared with a limit is not told by a form.
        before = sum(plain.position < rounds.starts[0] for plain in trace.plain)
        forms = reckoning(computed, rounds.back, before) if columns == computed else None
        if forms is None:
            return
        counters = sums(computed)
    found = () if at_limit else (*rounds.counters, *counters)
    yield replace(rounds, counters=found, count=replace(rounds.count, limit=limit), reckoned=forms)


def _is_among(turn: Turns, row: Sequence[int]) -> bool:
    """Whether the questions were asked in different rounds of the loop, or the only one in its only round."""
    found = {bisect_left(turn.starts, position + 1) for position in row if turn.end is None or position < turn.end}
    found.discard(0)
    return len(found) > 1 or (len(row) == 1 == len(turn.starts) and bool(found))


def _asks_each_round(turn: Turns, row: Sequence[int]) -> bool:
    asked = [bisect_left(turn.starts, position + 1) for position in row]
    return asked == list(range(1, len(turn.starts) + 1))


def _is_at_end(trace: Trace, turn: Turns, row: Sequence[int]) -> bool:
    """Whether a round does nothing more once the question has been answered."""
    limits = [*turn.starts[1:], *(() if turn.end is None else (turn.end,))]
    pairs = zip(row, limits, strict=False)  # of a loop that was left nobody knows what was still to come
    return not any(isinstance(event, Op) for position, limit in pairs for event in trace.events[position:limit])
