"""Provides the lowered graph of a program: from an earlier run's store, from another process, or lowered here.

The key of a graph covers all that lowering depends on (see graph.lowering.graph_bytes), the source of torchjanus
included. If the caller would rather continue meanwhile, another process lowers a large graph that is not in the store.
This module does not know entries.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from torchjanus.core.collector import uncollected
from torchjanus.core.errors import OWN_FOLDER, Refused
from torchjanus.core.kinds import isinstance
from torchjanus.core.logs import logger
from torchjanus.core.slices import in_slices
from torchjanus.execute.compiled.store import fingerprint, store_in_use
from torchjanus.execute.processes.background import Ticket, submit
from torchjanus.execute.processes.lowering import Lowering, pack_made, unpack_made
from torchjanus.execute.replay import Replay
from torchjanus.graph.aten.symbolic_sizes import Fixed
from torchjanus.graph.aten.verify import verify
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.graph.ir.passes import is_observed
from torchjanus.graph.ir.program import Program
from torchjanus.graph.lowering.differentiable import lower_whole
from torchjanus.graph.lowering.function_bytes import own_functions
from torchjanus.graph.lowering.graph_bytes import signature
from torchjanus.graph.lowering.lower import check_counts, without_marks
from torchjanus.graph.operators.loop_op import own_keys
from torchjanus.graph.operators.stand_ins import of_layers
from torchjanus.graph.regions.loop_bytes import has_loops

__all__ = [
    "Pending",
    "RemoteLowering",
    "key_of_graph",
    "key_of_text",
    "lowered_or_cached",
    "own_source",
    "text_of_graph",
]

log = logger("store")

# Operations of a program; larger ones are lowered in another process. Lowering so many takes 0.2 s in a watched call;
# another process needs seconds, more where cores are busy, and short scripts of small programs are over by then.
MANY = 50
AT_FIRST = 2  # times as many are lowered in a watched call while learning is free


class Pending(Exception):
    """Raised while another process makes the graph. ``nodes``: the number of operations in the program."""

    def __init__(self, nodes: int) -> None:
        super().__init__(f"{nodes} operations are being made a graph in another process")
        self.nodes = nodes


class RemoteLowering:
    """The graphs that other processes make for one function."""

    def __init__(self) -> None:
        self._tickets: dict[str, Ticket] = {}
        self._asked: _LoweringRequest | None = None  # the latest request
        self.at_first = False  # whether learning is free

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._tickets)

    def __contains__(self, key: str) -> bool:
        """Whether the graph with this key is among them."""
        return key in self._tickets

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
        """Cancel all of them."""
        for ticket in self._tickets.values():
            ticket.cancel()
        self._tickets.clear()
        self._asked = None

    def asked(self, program: Program) -> _LoweringRequest:
        """Return the request for a program. The latest is cached, since a caller that waits asks repeatedly."""
        if self._asked is None or self._asked.whole is not program:
            self._asked = _LoweringRequest.of(program)
        return self._asked

    def find(self, asked: _LoweringRequest) -> _RemoteGraph | None:
        """Return the graph; None if it has to be made in this process. Raises Pending; Refused or Fixed if it cannot be
        made."""
        program = asked.program
        ticket = self._tickets.get(asked.key)
        if ticket is None:
            most = AT_FIRST * MANY if self.at_first else MANY
            large = len(program.nodes) > most or has_loops(program) or bool(own_functions(program))
            large = large or any(of_layers(node.func) for node in program.nodes)
            request = Lowering.request(program, asked.text) if large and asked.text is not None else None
            if request is None:
                return None
            ticket = self._tickets[asked.key] = submit(partial(_PendingGraph, request, program), short=True)
        if not ticket.over:
            raise Pending(len(program.nodes))
        if isinstance(ticket.failure, Refused):
            raise type(ticket.failure)(ticket.failure.refusal)
        if isinstance(ticket.failure, Fixed):
            raise Fixed(ticket.failure.dimensions)
        if ticket.failure is not None:
            log.debug("a graph is made in this process: %s", ticket.failure)
        arrived: _RemoteGraph | None = ticket.candidate
        return arrived


@dataclass(frozen=True, slots=True)
class _LoweringRequest:
    """A request to lower a program. ``whole``: the program before marked loops became rolled loops; ``text``: its
    signature, if it has one; ``key``: the key of its graph in the store."""

    whole: Program
    program: Program
    text: str | None
    key: str

    @classmethod
    def of(cls, whole: Program) -> _LoweringRequest:
        """Return the request for ``whole``. Raises Refused."""
        program = without_marks(whole)
        text = signature(program)
        return cls(whole, program, text, "" if text is None else key_of_text(text))


@dataclass(frozen=True, slots=True)
class _RemoteGraph:
    """A graph made by another process. ``lowered``: the graph unpacked, if that succeeded; ``replay``: its executor,
    kept until it is asked for."""

    program: Program
    packed: bytes
    lowered: Lowered | None
    replay: Replay | None


class _PendingGraph:
    """A graph that another process makes. The thread that waits for it also unpacks it, since that takes too long
    within a call."""

    def __init__(self, request: bytes, program: Program) -> None:
        self._program = program
        self._lowering = Lowering(request)
        self.child = self._lowering.child

    def result(self, timeout: float | None = None) -> _RemoteGraph:
        """Return the graph. Raises what Lowering.result does."""
        packed = self._lowering.result(timeout)
        with uncollected(kept=True), in_slices():
            lowered = _unpacked(packed, self._program, reserved=True)
            replay = None if lowered is None or lowered.program.cuts else Replay(lowered)
        return _RemoteGraph(self._program, packed, lowered, replay)

    def kill(self) -> None:
        """Stop the process; ``result`` raises then."""
        self._lowering.kill()

    def cancel(self) -> None:
        """Stop the process, and remove its files."""
        self._lowering.cancel()


def lowered_or_cached(program: Program, remote: RemoteLowering | None = None) -> Lowered:
    """Return the program as one graph with rolled loops: lowered here, or stored by an earlier run of an equal program.
    Raises what lowering does, and Pending if another process makes it and is not done."""
    if (remote is None and store_in_use() is None) or is_observed():
        lowered = lower_whole(without_marks(program))
    else:
        asked = _LoweringRequest.of(program) if remote is None else remote.asked(program)
        lowered = lower_whole(asked.program) if asked.text is None else _found(asked, remote)
    check_counts(program, lowered)
    return lowered


def _found(asked: _LoweringRequest, remote: RemoteLowering | None) -> Lowered:
    """Return the graph that was asked for: from the store, from another process, or lowered here and stored."""
    store, program = store_in_use(), asked.program
    awaited = remote is not None and asked.key in remote
    packed = None if store is None or awaited else store.read(asked.key)
    if packed is not None and (found := _unpacked(packed, program, reserved=False)) is not None:
        return found
    arrived = None if remote is None else remote.find(asked)
    if arrived is not None:
        same = arrived.program is program
        made = arrived.lowered if same else _unpacked(arrived.packed, program, reserved=True)
        if made is not None:
            if store is not None:
                store.write(asked.key, arrived.packed)
            return made
    with own_keys() as keys:
        made = lower_whole(program)
    if store is not None:
        try:
            packed = pack_made(made, program, keys)
        except Exception as error:
            log.debug("a graph cannot be kept: %s: %s", type(error).__name__, error)
        else:
            if packed is not None:
                store.write(asked.key, packed)
    return made


def _unpacked(packed: bytes, program: Program, *, reserved: bool) -> Lowered | None:
    """Return the graph in ``packed``; None if it cannot be used."""
    try:
        found = unpack_made(packed, program, reserved=reserved)
        if found is not None:
            verify(found)
    except Exception as error:  # the graph is lowered again, which only costs time
        log.warning("a graph that was made before cannot be used: %s: %s", type(error).__name__, error)
        return None
    return found


def key_of_graph(program: Program) -> str:
    """Return the key of a program's graph in the store; "" where it has none. Raises Refused."""
    return _LoweringRequest.of(program).key


def text_of_graph(program: Program) -> str | None:
    """Return the text that the key is made of; None where there is none. Raises Refused."""
    return _LoweringRequest.of(program).text


def key_of_text(text: str) -> str:
    """Return the key of a graph with this text."""
    return fingerprint(("lowered", own_source(), text))


@cache
def own_source() -> str:
    """Return a digest of torchjanus' own source."""
    digest = hashlib.sha256()
    folder = Path(OWN_FOLDER)
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
