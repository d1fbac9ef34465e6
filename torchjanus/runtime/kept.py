"""Where lowered graphs come from: an earlier run, another process, or this one.

A graph is found by all that lowering depends on (see graph.keeping), this torchjanus' own source included. A large one
that is not there yet is made in another process if the caller would rather go on meanwhile. Knows nothing of entries.
"""

from __future__ import annotations

import hashlib
import logging
from functools import cache, partial
from pathlib import Path

from torchjanus.errors import Refused
from torchjanus.execute.background import Ticket, submit
from torchjanus.execute.lowering import Lowering, pack_made, unpack_made
from torchjanus.execute.store import fingerprint, store_in_use
from torchjanus.graph.keeping import signature
from torchjanus.graph.loop_keeping import has_loops
from torchjanus.graph.loop_op import own_keys
from torchjanus.graph.lower import check_counts, lower_rolled, without_marks
from torchjanus.graph.lowered import Lowered
from torchjanus.graph.own_functions import own_functions
from torchjanus.graph.program import Program
from torchjanus.graph.symbolic import Fixed
from torchjanus.graph.verify import verify

__all__ = ["Elsewhere", "Pending", "lowered_or_kept"]

log = logging.getLogger("torchjanus")

MANY = 50  # operations of a program that take half a second to lower; more are lowered in another process, and loops


class Pending(Exception):
    """The graph is being made in another process. ``nodes``: the operations of the program."""

    def __init__(self, nodes: int) -> None:
        super().__init__(f"{nodes} operations are being made a graph in another process")
        self.nodes = nodes


class Elsewhere:
    """The graphs that one function has other processes make."""

    def __init__(self) -> None:
        self._tickets: dict[str, Ticket] = {}

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._tickets)

    @property
    def over(self) -> bool:
        """Whether all of them have been made, or cannot be."""
        return all(ticket.over for ticket in self._tickets.values())

    def __str__(self) -> str:
        return ", ".join(str(ticket) for ticket in self._tickets.values() if not ticket.over)

    def wait(self) -> None:
        """Return when all are over."""
        for ticket in [*self._tickets.values()]:
            ticket.wait()

    def close(self) -> None:
        """Nobody wants them any more."""
        for ticket in self._tickets.values():
            ticket.cancel()
        self._tickets.clear()

    def find(self, key: str, program: Program, text: str) -> bytes | None:
        """The graph under this key; None if it has to be made here. Raises Pending; Refused or Fixed if none can be."""
        ticket = self._tickets.get(key)
        if ticket is None:
            large = len(program.nodes) > MANY or has_loops(program) or bool(own_functions(program))
            request = Lowering.request(program, text) if large else None
            if request is None:
                return None
            ticket = self._tickets[key] = submit(partial(Lowering, request), short=True)
        if not ticket.over:
            raise Pending(len(program.nodes))
        if isinstance(ticket.failure, Refused):
            raise type(ticket.failure)(ticket.failure.refusal)
        if isinstance(ticket.failure, Fixed):
            raise Fixed(ticket.failure.dimensions)
        if ticket.failure is not None:
            log.debug("a graph is made in this process: %s", ticket.failure)
        packed: bytes | None = ticket.candidate
        return packed


def lowered_or_kept(program: Program, elsewhere: Elsewhere | None = None) -> Lowered:
    """The program as one graph, its loops rolled up: made here, or what an earlier run has kept of an equal one. Raises
    what lowering does, and Pending if it may be made elsewhere and is not there yet."""
    lowered = _lowered_or_kept(without_marks(program), elsewhere)
    check_counts(program, lowered)
    return lowered


def _lowered_or_kept(program: Program, elsewhere: Elsewhere | None) -> Lowered:
    store = store_in_use()
    text = signature(program) if store is not None or elsewhere is not None else None
    if text is None:
        return lower_rolled(program)
    key = fingerprint(("lowered", _own_source(), text))
    packed = None if store is None else store.read(key)
    if packed is not None and (found := _unpacked(packed, program, reserved=False)) is not None:
        return found
    if elsewhere is not None:
        packed = elsewhere.find(key, program, text)
        if packed is not None and (found := _unpacked(packed, program, reserved=True)) is not None:
            if store is not None:
                store.write(key, packed)
            return found
    with own_keys() as keys:
        made = lower_rolled(program)
    if store is not None:
        try:
            packed = pack_made(made, program, keys)
        except Exception as error:
            log.debug("a graph cannot be kept: %s: %s", type(error).__name__, error)
        else:
            if packed is not None:
                store.write(key, packed)
    return made


def _unpacked(packed: bytes, program: Program, *, reserved: bool) -> Lowered | None:
    try:
        found = unpack_made(packed, program, reserved=reserved)
        if found is not None:
            verify(found)
    except Exception as error:  # it costs time only
        log.warning("a graph that was made before cannot be used: %s: %s", type(error).__name__, error)
        return None
    return found


@cache
def _own_source() -> str:
    """A digest of what lowers."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent.parent
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
