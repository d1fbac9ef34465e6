"""Whole steps by a back end of ``torch.compile``, or by a function of the user's own with the same interface: it takes
an FX graph and example inputs, and returns a function.

The graph is made and run as for Inductor. Like every artifact, what a back end makes is used after a Trial only.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from typing import Any

from torchjanus.core.errors import Unsupported
from torchjanus.core.kinds import isinstance
from torchjanus.execute.compiled.compiling import Compiled, examples_of, prepared_of
from torchjanus.execute.compiled.inductor import Inductor
from torchjanus.execute.running.gate import Ambience, below_autograd
from torchjanus.graph.ir.lowered import Lowered

__all__ = ["OTHER", "ByBackend", "backend_named", "executor_of"]

OTHER = "backend "  # how the names of these executors begin
_given: dict[str, Callable[..., Any]] = {}  # the user's own, by the names of their executors


def executor_of(backend: str | Callable[..., Any]) -> str:
    """Return the name of the executor that uses a back end: one of torchjanus's own, of
    ``torch._dynamo.list_backends()``, or a function. Raises Unsupported if there is none of this name."""
    if isinstance(backend, str):
        if backend in ("auto", "replay", "inductor"):
            return backend
        backend_named(OTHER + backend)
        return OTHER + backend
    if not callable(backend):
        raise Unsupported(f"backend={backend!r} is neither the name of a back end nor a function.")
    for known, one in [*_given.items()]:
        if one is backend:
            return known
    name = OTHER + getattr(backend, "__qualname__", type(backend).__qualname__)
    if name in _given:  # another function of this name
        name += f" {len(_given)}"
    _given[name] = backend
    return name


def backend_named(executor: str) -> Callable[..., Any]:
    """Return the back end that an executor of this name uses. Raises Unsupported."""
    known = _given.get(executor)
    if known is not None:
        return known
    name = executor.removeprefix(OTHER)
    registry = importlib.import_module("torch._dynamo.backends.registry")  # takes a second
    if name not in registry.list_backends(exclude_tags=()):
        raise Unsupported(
            f"there is no back end {name!r}: torchjanus has 'replay' and 'inductor', torch "
            f"{', '.join(map(repr, registry.list_backends(exclude_tags=())))}."
        )
    found: Callable[..., Any] = registry.lookup_backend(name)
    return found


class ByBackend(Inductor):
    """Runs a lowered graph by a back end. The graph is the one that Inductor gets: numbers of the program are elements
    of packed tensors, and it updates its inputs in place where its flags hold."""

    def __init__(self, lowered: Lowered, executor: str) -> None:
        """Raises Unsupported for graphs that only replay and Inductor can run, and Refused as Inductor does."""
        self.name = executor.removeprefix(OTHER)
        backend = backend_named(executor)
        if lowered.program.dimensions:
            raise Unsupported("sizes vary, and a back end compiles for the sizes of its examples")
        prepared = prepared_of(lowered)
        for node in prepared.graph.graph.nodes:
            if node.op == "call_function" and getattr(node.target, "namespace", "aten") not in ("aten", "prims"):
                raise Unsupported(f"the graph has {node.target}, an operator of torchjanus: a loop, switch or call")
        examples = examples_of(lowered, prepared)
        with Ambience(lowered), below_autograd():
            call = backend(copy.deepcopy(prepared.graph), examples)
        if not callable(call):
            raise Unsupported(f"the back end {self.name} has returned {call!r}, which is no function")
        self._fill(lowered, prepared, Compiled(call), [], [])
