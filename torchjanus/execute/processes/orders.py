"""Makes Inductor executors by another process: the order that it gets, and the executor made of its products.

What an earlier run has stored is not compiled again. This module does not know who waits for an executor.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from subprocess import TimeoutExpired
from weakref import WeakKeyDictionary

import torch

from torchjanus.execute.compiled.child import Child
from torchjanus.execute.compiled.compiling import Compiled, examples_of, patches_for, prepared_of
from torchjanus.execute.compiled.inductor import Inductor
from torchjanus.execute.compiled.invoke import Part, PartToCompile, assembled, calls_to_compile, parts_to_compile
from torchjanus.execute.compiled.loop import CompiledLoop, PreparedBlock, loops_to_compile, prepared_blocks
from torchjanus.execute.compiled.shared_parts import kept_part, load_part, part_key, request_part
from torchjanus.execute.compiled.store import Product, Verdict, fingerprint, store_in_use
from torchjanus.execute.compiled.worker import Compilation, Request
from torchjanus.execute.processes.elsewhere import Awaited, Lease
from torchjanus.execute.regions.invoke import invocations_of
from torchjanus.execute.regions.loop import loops_of
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.graph.lowering.for_inductor import Prepared
from torchjanus.graph.recursion.cells.partition import Partition as CallPartition
from torchjanus.graph.regions.partition import Partition

__all__ = ["CompileOrder", "Pending", "expect", "order_of", "pack_order", "transfer_order"]


@dataclass(frozen=True, slots=True)
class CompileOrder:
    """An Inductor executor to be made by another process: of the step, of blocks of ``loops``, and of parts of
    ``recursions``' cells (without those that this process has already)."""

    lowered: Lowered
    prepared: Prepared
    requests: tuple[Request, ...]
    loops: tuple[tuple[Partition, list[PreparedBlock]], ...]
    recursions: tuple[tuple[CallPartition, tuple[tuple[PartToCompile, Part | None], ...]], ...] = ()

    def start(self) -> Pending:
        """Look for products in the store, and start a process that compiles the others."""
        found = self._found()
        missing = self._missing(found)
        return Pending(self, found, Compilation(missing) if missing else None)

    def start_once(self) -> Pending | Awaited:
        """Do so, unless another process of this user compiles the same just now: then wait for that."""
        if store_in_use() is None:
            return self.start()
        return self._started() or Awaited(self._started)

    def _started(self) -> Pending | None:
        """Return None while another process compiles what is missing."""
        store, found = store_in_use(), self._found()
        missing = self._missing(found)
        if store is None or not missing:
            return Pending(self, found, Compilation(missing) if missing else None)
        lease = Lease(store, missing[0].key())
        if not lease.taken:
            return None
        found = self._found()  # another process may have ended meanwhile
        missing = self._missing(found)
        return Pending(self, found, Compilation(missing) if missing else None, lease)

    def _found(self) -> list[Product | None]:
        store = store_in_use()
        return [None if store is None else store.get(request.key()) for request in self.requests]

    def _missing(self, found: list[Product | None]) -> list[Request]:
        return [request for request, product in zip(self.requests, found, strict=True) if product is None]

    @property
    def is_stored(self) -> bool:
        """Whether an earlier run has stored all products."""
        store = store_in_use()
        return store is not None and all(store.has(request.key()) for request in self.requests)

    @property
    def needs_inductor(self) -> bool:
        """Whether products have to be loaded with Inductor: code around the kernels that is Python."""
        return not all(request.patches["cpp_wrapper"] for request in self.requests)

    def verdict(self) -> Verdict | None:
        """Return where it is stored whether the products agree with replay; None without a store."""
        store = store_in_use()
        parts = [part_key(part.writing) for _, some in self.recursions for part, _ in some]
        keys = [request.key() for request in self.requests]
        return None if store is None else Verdict(store, fingerprint(("agrees with replay", *keys, *parts)))


def order_of(lowered: Lowered) -> CompileOrder:
    """Return all that another process needs to compile the graph. Raises Refused where Inductor cannot take it."""
    if (packed := _ORDERED.pop(lowered.graph, None)) is not None:
        return _unpack_order(packed, lowered)
    prepared, patches, dtype = prepared_of(lowered), patches_for(lowered), lowered.default_dtype
    requests = [Request.of(prepared, examples_of(lowered, prepared), patches, dtype)]
    loops = []
    for partition, counts in loops_to_compile(lowered):
        made = prepared_blocks(partition, counts)
        requests += [Request.of(w.prepared, [*w.examples, *w.prepared.constants], patches, dtype) for w in made]
        loops.append((partition, made))
    recursions = []
    for recursion in calls_to_compile(lowered):
        parts = tuple((part, kept_part(part.writing)) for part in parts_to_compile(recursion))
        requests += [request_part(part.writing) for part, kept in parts if kept is None]
        recursions.append((recursion, parts))
    return CompileOrder(lowered, prepared, tuple(requests), tuple(loops), tuple(recursions))


# Orders that another process has prepared, by graph.
_ORDERED: WeakKeyDictionary[torch.fx.GraphModule, bytes] = WeakKeyDictionary()


def expect(lowered: Lowered, order: bytes) -> None:
    """Use this order, which another process has prepared (see pack_order), in ``order_of``."""
    _ORDERED[lowered.graph] = order


def transfer_order(whole: Lowered, part: Lowered) -> None:
    """Move the whole graph's prepared order to its last part, which is what is compiled."""
    if (order := _ORDERED.pop(whole.graph, None)) is not None:
        _ORDERED[part.graph] = order


def pack_order(order: CompileOrder) -> bytes | None:
    """Return an order for another process that has the same graph; None where it holds tensors, or compiled parts."""
    parts = [pair for _, some in order.recursions for pair in some]
    prepared_blocks = [writing for _, made in order.loops for writing in made]
    prepared = [
        order.prepared,
        *(one.prepared for one in prepared_blocks),
        *(part.writing.prepared for part, _ in parts),
    ]
    if any(kept is not None for _, kept in parts) or any(one.constants for one in prepared):
        return None
    requests = tuple(request.packed() for request in order.requests)
    program = order.lowered.program
    places = [*loops_of(program)]
    loops = [(_place(partition, places), [writing.bare() for writing in made]) for partition, made in order.loops]
    calls = [*invocations_of(program)]
    recursions = [(_place(partition, calls), [part.bare() for part, _ in some]) for partition, some in order.recursions]
    return pickle.dumps((order.prepared.bare(), requests, loops, recursions))


def _place(partition: object, places: Sequence[object]) -> int:
    return next(place for place, one in enumerate(places) if one is partition)


def _unpack_order(packed: bytes, lowered: Lowered) -> CompileOrder:
    """Return the order, for this graph."""
    prepared, asked, loops, recursions = pickle.loads(packed)
    threads, places = torch.get_num_threads(), [*loops_of(lowered.program)]
    calls = [*invocations_of(lowered.program)]
    requests = [replace(request, threads=threads) for request in asked]
    found = [(calls[place], tuple((part, kept_part(part.writing)) for part in some)) for place, some in recursions]
    # Requests of recursions are the last.
    there = [kept is not None for _, some in found for _, kept in some]
    first = len(requests) - len(there)
    left = [request for request, kept in zip(requests[first:], there, strict=True) if not kept]
    made = tuple((places[place], made) for place, made in loops)
    return CompileOrder(lowered, prepared, (*requests[:first], *left), made, tuple(found))


@dataclass(frozen=True, slots=True)
class Pending:
    """An Inductor executor that is being made. ``found``: the products that were in the store."""

    order: CompileOrder
    found: list[Product | None]
    compilation: Compilation | None
    lease: Lease | None = None

    @property
    def child(self) -> Child | None:
        """The compiler's process, if one is needed."""
        return None if self.compilation is None else self.compilation.child

    def ready(self) -> bool:
        """Whether ``result`` would not wait for the compiler (it still has to load the artifacts)."""
        return self.compilation is None or self.compilation.ready()

    def result(self, timeout: float | None = None) -> Inductor:
        """Return the executor. Raises Refused if the compiler failed, TimeoutExpired if it is not ready in time."""
        order, kept = self.order, self.compilation is None
        try:
            made = [] if self.compilation is None else self.compilation.result(timeout)
        except TimeoutExpired:
            raise
        except BaseException:
            self._end_lease()
            raise
        store = store_in_use()
        missing = [request for request, product in zip(order.requests, self.found, strict=True) if product is None]
        for request, product in zip(missing, made, strict=True):
            if store is not None:
                store.put(request.key(), product)
        self._end_lease()
        new = iter(made)
        products = iter([product or next(new) for product in self.found])
        first = next(products)
        step = Compiled(first.load(), first.conditions)
        loops = [
            CompiledLoop(partition, prepared_blocks, [next(products).load() for _ in prepared_blocks])
            for partition, prepared_blocks in order.loops
        ]
        recursions = []
        for recursion, parts in order.recursions:
            compiled = [known or load_part(part.writing, next(products)) for part, known in parts]
            recursions.append(assembled(recursion, [part for part, _ in parts], compiled))
        verdict = order.verdict()
        there = [request_part(part.writing) for _, some in order.recursions for part, known in some if known]
        keys = [request.key() for request in (*order.requests, *there)]
        return Inductor.loaded(
            order.lowered,
            order.prepared,
            step,
            loops,
            recursions,
            kept=kept,
            verdict=verdict,
            keys=(*keys, *([] if verdict is None else [verdict.key])),
        )

    def kill(self) -> None:
        """Stop the compilation; ``result`` raises then."""
        if self.compilation is not None:
            self.compilation.kill()

    def cancel(self) -> None:
        """Stop the compilation, and remove its files."""
        if self.compilation is not None:
            self.compilation.cancel()
        self._end_lease()

    def _end_lease(self) -> None:
        if self.lease is not None:
            self.lease.end()
