"""``load()``: begins with what was saved of a step. Does not know the file's format."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from torchjanus.core.errors import Unsupported
from torchjanus.core.logs import logger
from torchjanus.execute.compiled.store import store_in_use
from torchjanus.runtime.decorators import speculate
from torchjanus.runtime.learning.saved import surroundings
from torchjanus.runtime.runs.saved_graphs import SavedGraphs, roots_of
from torchjanus.runtime.runs.step_file import read_step
from torchjanus.runtime.speculated_function import Speculated
from torchjanus.semantics.protocols.virtualize import home_of

__all__ = ["load"]

log = logger("store")

P = ParamSpec("P")
R = TypeVar("R")


def load(
    path: str | os.PathLike[str], fn: Callable[P, R], *, digest: str | None = None, **options: Any
) -> Speculated[P, R]:
    """Return ``fn`` as a speculated function that begins with what ``Speculated.save`` wrote to ``path``.

    Numbers and sizes that varied there are inputs from the first graph on. A graph that is in the file is made of one
    watched call, and neither lowered nor compiled again. What does not fit (versions, settings, the processor, another
    program) is made again, as without the file; the log says what differs. All assumptions are made and checked again,
    and compiled code is tried against replay on a call before it is used.

    The file holds native code. It is read where ``digest`` is what ``save`` returned, or where only you could have
    written to it. ``options``: see speculate. Raises Unsupported where the file may not be trusted, is none, or
    where there is no store (TORCHJANUS_CACHE) to put its graphs into.
    """
    saved = read_step(Path(path), digest)
    store = store_in_use()
    if store is None:
        raise Unsupported("load(): there is no store to put its graphs into: TORCHJANUS_CACHE names the folder.")
    here = surroundings()
    other = [name for name in here if saved.environment.get(name) != here[name]]
    if other:
        log.warning("%s was saved with another %s: graphs are made again", path, ", ".join(other))
    for key, payload in saved.entries.items():
        if store.read(key) is None:
            store.write(key, payload)
    step = speculate(fn, **options)
    step.expect(saved.varying, SavedGraphs(saved.graphs, saved.roots, roots_of(home_of(fn).file)))
    return step
