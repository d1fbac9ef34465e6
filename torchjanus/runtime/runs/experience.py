"""Keeps what a run has measured of a step, for later runs of the same code: whether graphs were made, and how fast they
were.

It only helps to decide when a graph is made, so its key is the step's code, and not what the code reads. This module
does not know how that is decided.
"""

from __future__ import annotations

import hashlib
import json
import marshal
from dataclasses import dataclass
from types import CodeType

import torch

from torchjanus.execute.compiled.store import store_in_use

__all__ = ["Experience"]


@dataclass(slots=True)
class Experience:
    """``made``: whether a graph was made; ``share``: the time of a call by graphs as a share of that in eager, None if
    that was not measured."""

    key: str
    made: bool = False
    share: float | None = None

    @classmethod
    def of(cls, code: CodeType) -> Experience:
        """Return what earlier runs have kept of this code, with as many threads."""
        with_threads = f"{torch.__version__} {torch.get_num_threads()}".encode()
        kept = cls(hashlib.sha256(b"experience" + with_threads + marshal.dumps(code)).hexdigest())
        store = store_in_use()
        found = None if store is None else store.read(kept.key)
        if found is not None:
            values = json.loads(found)
            kept.made, kept.share = values["made"], values["share"]
        return kept

    def keep(self, share: float | None = None) -> None:
        """Keep that a graph was made, and its share where that was measured."""
        if self.made and share in (None, self.share):
            return
        self.made, self.share = True, self.share if share is None else share
        store = store_in_use()
        if store is not None:
            store.write(self.key, json.dumps({"made": True, "share": self.share}).encode())
