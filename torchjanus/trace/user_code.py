"""Marks for the user's code that autograd calls: a Function's forward and backward, hooks on tensors. Plain data.

What such code did with tensors was recorded when it ran; these marks say where it begins and ends among the nodes. In
the trace a backward's or hook's nodes stand before the ``backward()`` that called it.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ACCUMULATED", "AFTER", "BEFORE", "GRADIENT", "MARKS", "Begin", "End", "Hook", "Mark", "Unhook"]

GRADIENT, ACCUMULATED, BEFORE, AFTER = "gradient", "accumulated", "before", "after"


@dataclass(frozen=True, slots=True)
class Begin:
    """From here to the End with this number is code that autograd calls. ``called``: a ``forward`` (arguments: the
    tensors that it is given) or a ``backward``, which hooks are, too (outs: the gradients that it is given, then saved
    tensors that it has unpacked)."""

    number: int
    called: str
    given: tuple[bool, ...] = ()  # which of a backward's gradients are there
    unpacked: tuple[int, ...] = ()  # which of the saved tensors the last outs are


@dataclass(frozen=True, slots=True)
class End:
    """Arguments: what is returned, and for a forward what it has saved, changed in place and marked as without
    gradient. outs: the results of ``Function.apply``."""

    number: int
    materialise: bool = True


@dataclass(frozen=True, slots=True)
class Hook:
    """From here on the hook with this number is called. ``called`` says when and with what:

    ``GRADIENT``: with the gradient of the argument, when that is computed. ``ACCUMULATED``: when the argument's
    ``.grad`` has been written. ``BEFORE``: before the node of autograd that made the argument runs, with the gradients
    that it is given; ``AFTER``: after it, with the gradients that it returns, and those that it was given. The last two
    may return other gradients."""

    number: int
    called: str


@dataclass(frozen=True, slots=True)
class Unhook:
    """From here on the hook with this number is not called any more."""

    number: int


Mark = Begin | End | Hook | Unhook
MARKS = (Begin, End, Hook, Unhook)
