"""What a list or deque from before the call looks like after the call has changed its length.

A Mirror follows every mutation. Each element is either one that was there before (known by its position then) or one that
this call put there. So the program can go on reading the container while the writes are held back.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass
from typing import Any

__all__ = ["Before", "Mirror"]


@dataclass(frozen=True, slots=True)
class Before:
    """An element that was there when the call began. ``position`` counts from the front, ``-1`` and less from the back."""

    value: Any
    position: int
    length: int

    def key(self, from_back: bool) -> int:
        """Its index as the program would write it then: both ways find it only as long as the length stays."""
        return self.position - self.length if from_back else self.position


class Mirror:
    """The elements of one container, in their present order."""

    def __init__(self, container: list[Any] | collections.deque[Any]) -> None:
        self.length = len(container)
        before = (Before(value, index, self.length) for index, value in enumerate(container))
        self.bounded = isinstance(container, collections.deque) and container.maxlen is not None
        self.elements: Any = (
            collections.deque(before, container.maxlen) if isinstance(container, collections.deque) else list(before)
        )

    def apply(self, method: str, args: tuple[Any, ...]) -> None:
        """Do to the mirror what is done to the container."""
        getattr(self.elements, method)(*args)

    @property
    def grown(self) -> int:
        """How many elements there are now beyond those that were there before."""
        return len(self.elements) - self.length
