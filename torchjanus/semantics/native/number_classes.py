"""Numbers whose class depends on values: ``min(1, 0.3)`` is a float, ``min(1, 2.5)`` an integer; so are powers.

A trace takes the class of a number as given: it decides dtypes, texts and methods. So a run holds what decides it.
"""

from __future__ import annotations

import builtins
import math
import operator
from typing import Any

from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.semantics.record.recording import Recording
from torchjanus.trace.facts import HostComputation
from torchjanus.trace.values import Apply, Fetch, Traced, depends_on, plain, symbol

__all__ = ["hold_class", "picks_among_classes"]

_POWERS = (operator.pow, builtins.pow)


def picks_among_classes(fn: Any, args: tuple[Any, ...]) -> bool:
    """Whether ``fn(*args)`` returns one of its arguments, and these are of several classes."""
    return is_one_of(fn, (min, max)) and len({id(type(plain(one))) for one in args}) > 1


def hold_class(recording: Recording, fn: Any, args: tuple[Any, ...], value: Any) -> bool:
    """Assume what decides of which class ``value``, which is ``fn(*args)``, is. Return False where that needs the
    arguments to be constants."""
    if isinstance(value, complex):
        return False
    if not is_one_of(fn, _POWERS) or len(args) != 2:
        return True
    base, exponent = args
    if not any(isinstance(one, float) for one in args):
        if isinstance(exponent, Traced):  # with a negative exponent it is a float
            _hold_sign(recording, exponent)
        return True
    if isinstance(exponent, Traced) or plain(exponent) % 1 != 0:  # else it is a float, whatever the base
        if isinstance(base, Traced):
            _hold_sign(recording, base)
        if plain(base) < 0:
            whole = Apply(operator.eq, (Apply(operator.mod, (symbol(exponent), 1)), 0))
            return plain(exponent) % 1 == 0 and recording.hold(whole, True)
    return True


def _hold_sign(recording: Recording, number: Any) -> None:
    """Assume that the number stays negative, or that it has a root.

    Numbers that libraries compute from tensors are left out (``(1 - beta ** step) ** 0.5`` of optimizers): assertions
    of each iteration would keep loops of training from being rolled."""
    if recording.place.is_library and depends_on(number.expr, Fetch):
        return
    if plain(number) < 0:
        recording.hold(Apply(operator.lt, (number.expr, 0)), True)
    else:
        recording.note_once(HostComputation(Apply(math.sqrt, (number.expr,)), recording.place))
