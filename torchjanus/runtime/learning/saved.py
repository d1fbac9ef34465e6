"""Saves what was learnt and compiled for a step. Does not know the file's format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torchjanus.core.access_path import Step
from torchjanus.core.errors import Unsupported
from torchjanus.execute.compiled.store import environment, store_in_use
from torchjanus.graph.ir.number_sizes import carries
from torchjanus.runtime.entries.entry import Entry
from torchjanus.runtime.runs.lowering_cache import key_of_graph, own_source
from torchjanus.runtime.runs.saved_graphs import geometries_of, roots_of
from torchjanus.runtime.runs.step_file import SavedStep, write_step

__all__ = ["learnt_of", "save", "surroundings"]


def save(name: str, file: str, entries: Sequence[Entry], path: Path) -> str:
    """Write the file of a step with these graphs; ``file``: its source. See Speculated.save. Raises Unsupported where
    there are none."""
    store = store_in_use()
    if store is None:
        raise Unsupported("save(): there is no store of compiled graphs: TORCHJANUS_CACHE names the folder.")
    if not entries:
        raise Unsupported(f"save(): there is no graph of {name} yet: call it more often, and step.wait().")
    varying, graphs = learnt_of(entries)
    compiled = [key for entry in entries for engine in entry.engines for key in engine.keys]
    kept = {key: payload for key in (*graphs, *compiled) if (payload := store.read(key)) is not None}
    found = {key: made for key, made in graphs.items() if key in kept}
    return write_step(SavedStep(name, tuple(varying), found, roots_of(file), surroundings(), kept), path)


def learnt_of(entries: Sequence[Entry]) -> tuple[list[str], dict[str, Any]]:
    """Return the names of the numbers and sizes that are inputs of these graphs, and the keys of the graphs in the
    store, each with the sizes it was made for."""
    programs = [entry.plan.program for entry in entries]
    graphs = {key: geometries_of(program) for program in programs if (key := key_of_graph(program))}
    return [*dict.fromkeys(name for entry in entries for name in _varying(entry))], graphs


def _varying(entry: Entry) -> Iterator[str]:
    """Yield the names of the numbers and sizes that are inputs of a graph, and of tensors that may be others in each
    call."""
    yield from map(str, entry.plan.varying)
    paths = zip(entry.plan.access_paths, entry.plan.pinned, strict=True)
    yield from (str(path) for path, held in paths if held is None)
    for members in entry.plan.dimensions.symbols:
        yield from (str(path.then(Step.SIZE, dim)) for path, dim in members if not carries(path))


def surroundings() -> dict[str, str]:
    """Return the versions and the processor that a file is made with."""
    return {"torchjanus": own_source(), **environment()}
