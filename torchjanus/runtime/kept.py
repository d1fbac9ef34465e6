"""Lowered graphs of earlier runs: a program that was lowered before is not lowered again.

A graph is found by all that lowering depends on (see graph.keeping), this torchjanus' own source included. Knows
nothing of entries.
"""

from __future__ import annotations

import hashlib
import logging
from functools import cache
from pathlib import Path

from torchjanus.execute.store import fingerprint, store_in_use
from torchjanus.graph.keeping import pack_lowered, signature, unpack_lowered
from torchjanus.graph.lower import lower_rolled
from torchjanus.graph.lowered import Lowered
from torchjanus.graph.program import Program
from torchjanus.graph.verify import verify

__all__ = ["lowered_or_kept"]

log = logging.getLogger("torchjanus")


def lowered_or_kept(program: Program) -> Lowered:
    """``lower_rolled(program)``, or what an earlier run has kept of an equal one. Raises what lower_rolled does."""
    store = store_in_use()
    text = None if store is None else signature(program)
    if store is None or text is None:
        return lower_rolled(program)
    key = fingerprint(("lowered", _own_source(), text))
    packed = store.read(key)
    if packed is not None:
        try:
            found = unpack_lowered(packed, program)
            if found is not None:
                verify(found)
                return found
        except Exception as error:  # it costs time only
            log.warning("a graph of an earlier run cannot be used: %s: %s", type(error).__name__, error)
    made = lower_rolled(program)
    try:
        packed = pack_lowered(made, program)
    except Exception as error:
        log.debug("a graph cannot be kept: %s: %s", type(error).__name__, error)
    else:
        if packed is not None:
            store.write(key, packed)
    return made


@cache
def _own_source() -> str:
    """A digest of what lowers."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent.parent
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
