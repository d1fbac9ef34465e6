"""Lowers programs in a process of its own, so that no call waits for it: a graph of 500 operations takes seconds.

The child checks by the program's signature that it lowers the same program under the same settings. The parent's side
is Lowering; ``python -m`` this module is the child's. This module does not know who waits for it.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
from pathlib import Path
from typing import Any

import torch

from torchjanus.core.errors import Refusal, Refused
from torchjanus.execute.compiled.child import Child, begin, bound
from torchjanus.execute.compiled.priority import SERVER
from torchjanus.execute.processes.orders import expect, order_of, pack_order
from torchjanus.graph.aten.segments import tail_of
from torchjanus.graph.aten.symbolic_sizes import Fixed
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.graph.ir.program import Program
from torchjanus.graph.lowering.differentiable import lower_whole
from torchjanus.graph.lowering.graph_bytes import keys_of, pack_lowered, signature, unpack_lowered
from torchjanus.graph.lowering.program_bytes import bytes_of, pack_program, unpack_program
from torchjanus.graph.operators.loop_op import are_own, claim_keys, own_keys, reserve_keys
from torchjanus.graph.recursion.cells.invoke import NotBatched

__all__ = ["Lowering", "NotLowered", "lower_request", "pack_made", "unpack_made"]


class NotLowered(Exception):
    """Raised where another process cannot lower a program; lowering it in this process may still succeed."""


class Lowering:
    """One program that is lowered in another process."""

    @staticmethod
    def request(program: Program, text: str, keys: int | None = None) -> bytes | None:
        """Return all that a child needs; None where the program cannot be sent. ``text``: the program's signature;
        ``keys``: the first of the keys that its loops get, if not of newly reserved ones."""
        packed = pack_program(program)
        if packed is None:
            return None
        first = reserve_keys() if keys is None else keys
        return pickle.dumps((bytes_of(program.inputs), _settings(), first, text, packed))

    def __init__(self, request: bytes) -> None:
        def fill(folder: Path) -> dict[str, str]:
            (folder / "program").write_bytes(request)
            return {}

        self.child = Child("torchjanus.execute.processes.lowering", fill)

    def result(self, timeout: float | None = None) -> bytes:
        """Return the lowered graph, packed for unpack_made. Raises Refused (NotBatched) where no graph is right, Fixed
        where none is for varying sizes, NotLowered if the child fails, TimeoutExpired after ``timeout`` seconds."""
        failure = self.child.wait(timeout)
        try:
            if failure:
                raise NotLowered(failure)
            made = (self.child.folder / "graph").read_bytes()
        finally:
            self.child.cancel()
        found = pickle.loads(made)
        if isinstance(found, Refusal):
            raise Refused(found)
        if isinstance(found, tuple) and found[0] == "unrolled":
            raise NotBatched(found[1])
        if isinstance(found, dict):
            raise Fixed(found)
        return made

    def kill(self) -> None:
        """Kill the child; ``result`` raises then."""
        self.child.kill()

    def cancel(self) -> None:
        """Kill the child, and remove its files."""
        self.child.cancel()


def pack_made(lowered: Lowered, program: Program, keys: int, *, ordered: bool = False) -> bytes | None:
    """Return the graph that ``program`` was lowered to, packed, and with ``ordered`` the order for Inductor; None where
    it cannot be packed. ``keys``: the first of the keys reserved for its loops."""
    order = None
    if ordered:
        with contextlib.suppress(Refused):  # the refusal is raised again where the order is needed
            order = pack_order(order_of(tail_of(lowered).lowered if lowered.program.cuts else lowered))
    graph, named = pack_lowered(lowered, program), keys_of(lowered)
    if graph is None or not are_own(named, keys):
        return None
    return pickle.dumps((keys, named, graph, order))


def unpack_made(packed: bytes, program: Program, *, reserved: bool) -> Lowered | None:
    """Return the graph (see unpack_lowered). ``reserved``: the keys of its loops are reserved here; if not, None is
    returned where they are taken."""
    first, named, graph, order = pickle.loads(packed)
    if not reserved and named and not claim_keys(first):
        return None
    found = unpack_lowered(graph, program)
    if found is not None and order is not None and keys_of(found) == named:
        expect(found, order)
    return found


def _settings() -> dict[str, Any]:
    """Return the settings that differ in a new process. The signature shows whether any other matters."""
    return {
        "threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "precision": torch.get_float32_matmul_precision(),
    }


def _set(settings: dict[str, Any]) -> None:
    if settings["threads"] != torch.get_num_threads():  # starts threads, which a process that forks must not have
        torch.set_num_threads(settings["threads"])
    torch.set_default_dtype(settings["dtype"])
    torch.use_deterministic_algorithms(settings["deterministic"], warn_only=settings["warn_only"])
    torch.set_float32_matmul_precision(settings["precision"])


def lower_request(request: bytes) -> bytes:
    """Return the graph of the program in ``request`` (see ``Lowering.request``), packed for unpack_made; or, pickled,
    why there is none. Raises NotLowered where this process would lower it under other settings, or cannot send the
    graph."""
    _, settings, keys, text, packed = pickle.loads(request)
    _set(settings)
    program = unpack_program(packed)
    if signature(program) != text:
        raise NotLowered("another process would lower it under other settings")
    try:
        with own_keys(keys):
            lowered = lower_whole(program)
        made = pack_made(lowered, program, keys, ordered=True)
    except NotBatched as unrolled:
        return pickle.dumps(("unrolled", unrolled.refusal))
    except Refused as refused:
        return pickle.dumps(refused.refusal)
    except Fixed as fixed:
        return pickle.dumps(fixed.dimensions)
    if made is None:
        raise NotLowered("its graph holds more than can be sent")
    return made


def main(folder: Path, parent: int) -> None:
    """The child: lower the program in the folder."""
    begin(folder, parent, SERVER)
    request = (folder / "program").read_bytes()
    bound(pickle.loads(request)[0])
    try:
        made = lower_request(request)
    except NotLowered as failure:
        sys.exit(str(failure))
    (folder / "graph").write_bytes(made)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
