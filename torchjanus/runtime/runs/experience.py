"""Keeps what a run has seen of a step, for later runs of the same code: how often it was called, how long a call takes,
whether graphs were made and how fast they were, and which graphs of the store they were.

It only helps to decide when a graph is made, so its key is the step's code, and not what the code reads; what graphs
assume is made and checked again. It is read before anything of torchjanus but this is imported: each step is a small
file of JSON in the store's folder, beside what is compiled. This module does not know how anything is decided.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import marshal
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import CodeType
from typing import Any

import torch

from torchjanus.core.cache_folder import NotPrivate, folder_in_use, make_private
from torchjanus.core.kinds import isinstance
from torchjanus.core.logs import logger

__all__ = ["Experience", "given_arguments"]

log = logger("store")

_FOLDER = "steps-1"  # with the version of the format
MOST = 1000  # files that are kept
_SHAPES: Mapping[str, type | tuple[type, ...]] = {
    "made": bool, "share": (float, int, type(None)), "calls": int, "eager": (float, int), "price": (float, int),
    "arguments": str, "varying": list, "graphs": dict,
}  # fmt: skip


@dataclass(slots=True)
class Experience:
    """``made``: whether a graph was made; ``share``: the time of a call by graphs as a share of that in eager, None if
    that was not measured; ``calls``: how many calls there were with these ``arguments`` of the program, 0 if that is
    unknown; ``eager``: seconds of a call in eager; ``price``: seconds that learning took until there was a graph, or is
    expected to take, imports included, 0 if no call was watched; ``varying``: names of numbers and sizes that are
    inputs of its graphs, and of tensors that differ from call to call; ``graphs``: their keys in the store, each with
    the sizes it was made for (see SavedGraphs)."""

    key: str
    made: bool = False
    share: float | None = None
    calls: int = 0
    eager: float = 0.0
    price: float = 0.0
    arguments: str = ""
    varying: list[str] = field(default_factory=list)
    graphs: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, code: CodeType) -> Experience:
        """Return what earlier runs have kept of this code, with as many threads."""
        with_threads = f"{torch.__version__} {torch.get_num_threads()}".encode()
        kept = cls(hashlib.sha256(with_threads + marshal.dumps(code)).hexdigest())
        folder = folder_in_use()
        if folder is None:
            return kept
        try:
            found = json.loads((folder / _FOLDER / f"{kept.key}.json").read_bytes())
        except (OSError, ValueError):  # there is none, or it is damaged
            return kept
        if isinstance(found, dict) and all(isinstance(found.get(name), kind) for name, kind in _SHAPES.items()):
            for name in _SHAPES:
                setattr(kept, name, found[name])
        return kept

    def keep(self, share: float | None = None) -> None:
        """Keep that a graph was made, and its share where that was measured."""
        if self.made and share in (None, self.share):
            return
        self.made, self.share = True, self.share if share is None else share
        self._write()

    def keep_graphs(self, varying: Sequence[str], graphs: Mapping[str, Any]) -> None:
        """Keep which graphs are in use."""
        self.varying, self.graphs = [*varying], dict(graphs)
        self._write()

    def keep_calls(self, calls: int, eager: float, price: float) -> None:
        """Keep how many calls there were in this run, which is over, the seconds of one in eager, and the price of
        learning."""
        self.calls, self.eager, self.price, self.arguments = calls, eager, price, given_arguments()
        self._write()

    @property
    def expected(self) -> int:
        """How many calls there will be, if the program does what it did before; 0 where that is unknown, or it was
        given other arguments."""
        return self.calls if self.arguments == given_arguments() else 0

    def _write(self) -> None:
        folder = folder_in_use()
        if folder is None:
            return
        place = folder / _FOLDER
        try:
            make_private(place)
            _thin_out(place)
            with tempfile.NamedTemporaryFile("w", dir=place, suffix=".new", delete=False) as file:
                json.dump({name: value for name, value in asdict(self).items() if name in _SHAPES}, file)
            Path(file.name).replace(place / f"{self.key}.json")  # atomically: another process may read it
        except (NotPrivate, OSError) as error:
            log.debug("what was seen of a step is not kept: %s", error)


assert {one.name for one in fields(Experience)} == {"key", *_SHAPES}


def given_arguments() -> str:
    """Return a digest of the program's arguments."""
    return hashlib.sha256(repr(sys.argv[1:]).encode()).hexdigest()


def _thin_out(place: Path) -> None:
    """Remove the oldest half of the files, where there are too many."""
    files = [*os.scandir(place)]
    if len(files) <= MOST:
        return
    with contextlib.suppress(OSError):  # another process removes them, too
        for file in sorted(files, key=lambda one: one.stat().st_mtime)[: MOST // 2]:
            os.unlink(file.path)
