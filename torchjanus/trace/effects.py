"""The effects of an extern call: which state outside of the step it reads and writes. Plain data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

__all__ = ["ATTRIBUTES", "PURE", "WORLD", "Effects", "Undo"]


@dataclass(frozen=True, slots=True)
class Undo:
    """Saves the state that a call is about to change, and restores it. ``owned``: the state belongs to the first
    argument (the object whose method is called), which is passed to both functions."""

    save: Callable[..., Any]
    restore: Callable[..., None]
    owned: bool = False
    owner: Any = None

    def of(self, given: Sequence[Any]) -> Undo:
        """Return the undo for a call with these arguments."""
        return replace(self, owner=given[0]) if self.owned else self

    def saved(self) -> Any:
        return self.save(self.owner) if self.owned else self.save()

    def put_back(self, state: Any) -> None:
        self.restore(self.owner, state) if self.owned else self.restore(state)


@dataclass(frozen=True, slots=True)
class Effects:
    """Names of the state that a call ``reads`` and ``writes``. ``world``: it may read and write anything.

    ``user_code``: it may run Python code of the user's, which sees the heap. ``undo``: takes it back, for calls that
    are made before all assertions hold. ``begins``: it begins work that goes on beside the program, "here" or, in eager
    as well, "early": as soon as its arguments are computed.
    """

    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    world: bool = False
    user_code: bool = False
    undo: Undo | None = None
    begins: Literal["", "here", "early"] = ""

    def conflicts(self, other: Effects) -> bool:
        """Whether the order of the two calls is observable."""
        if self.world or other.world:
            # A pure call commutes with everything.
            return self is not PURE and other is not PURE
        return bool(self.writes & (other.reads | other.writes) or other.writes & self.reads)

    @property
    def harmless(self) -> bool:
        """Whether the call is unobservable: it writes nothing, or can be undone."""
        return not self.world and (not self.writes or self.undo is not None)


PURE = Effects()
WORLD = Effects(world=True)
ATTRIBUTES = Effects(reads=frozenset({"attributes"}))  # of an object: unknown code may set them
