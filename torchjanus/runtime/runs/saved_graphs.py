"""Finds the graph of a program among those of a saved step, which was made in other folders and for other sizes.

Knows nothing of the file that they come from.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from torchjanus.core.errors import Refused
from torchjanus.execute.compiled.store import store_in_use
from torchjanus.graph.ir.program import Input, Program
from torchjanus.runtime.runs.lowering_cache import key_of_graph, key_of_text, text_of_graph

__all__ = ["SavedGraphs", "geometries_of", "roots_of"]

# By the name of an input some of whose sizes vary, or that begins within its memory: sizes, strides and offset of its
# example. Which part of a batch's memory it is differs from call to call.
Examples = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SavedGraphs:
    """``graphs``: the examples of each graph, by its key; ``roots``: the folders there, and ``own``: those here, in
    whose place they stand in keys."""

    graphs: Mapping[str, Examples] = field(default_factory=dict)
    roots: tuple[str, ...] = ()
    own: tuple[str, ...] = ()

    def find(self, program: Program) -> Program | None:
        """Return the program as it is to be lowered, if its graph is one of these: the store then has it."""
        try:
            for key, made in self._variants(program):
                if (text := text_of_graph(made)) is None:
                    continue
                for here, there in zip(self.own, self.roots, strict=True):
                    text = text.replace(here, there)
                if key_of_text(text) == key and _copied(key, key_of_graph(made)):
                    return made
        except Refused:
            return None
        return None

    def _variants(self, program: Program) -> Iterator[tuple[str, Program]]:
        """Yield the keys, each with the program for the sizes of its examples."""
        memory = Counter(one.example.untyped_storage()._cdata for one in program.inputs)
        for key, examples in self.graphs.items():
            inputs = []
            for one in program.inputs:
                like, (sizes, strides, offset) = one.example, examples.get(one.name, (None, None, 0))
                varies = _varies(one) or (sizes == [*like.size()] and strides == [*like.stride()])
                # Inputs that share memory in the watched run would not, as blanks.
                alone = memory[like.untyped_storage()._cdata] == 1
                if sizes is not None and varies and alone and type(like) is torch.Tensor:
                    one = replace(one, example=_blank(like, sizes, strides, offset))
                inputs.append(one)
            yield key, replace(program, inputs=tuple(inputs))


def _blank(like: torch.Tensor, sizes: Sequence[int], strides: Sequence[int], offset: int) -> torch.Tensor:
    """Return a tensor without contents of this layout."""
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    with torch.no_grad():
        made = torch.empty(last + 1, dtype=like.dtype, device=like.device).as_strided(sizes, strides, offset)
    made.untyped_storage().resize_(0)
    return made.requires_grad_(like.requires_grad)


def _copied(key: str, own: str) -> bool:
    """Whether the store has what it has under ``key`` under the ``own`` key, too."""
    store = store_in_use()
    if store is None or not own:
        return False
    if key != own and store.read(own) is None:
        payload = store.read(key)
        if payload is None:
            return False
        store.write(own, payload)
    return store.read(own) is not None


def geometries_of(program: Program) -> dict[str, Any]:
    """Return sizes, strides and offset of the examples of inputs some of whose sizes vary, or that begin within their
    memory, by name."""
    found = (one for one in program.inputs if _varies(one) or one.example.storage_offset())
    return {one.name: ([*one.example.size()], [*one.example.stride()], one.example.storage_offset()) for one in found}


def _varies(given: Input) -> bool:
    """Whether some of its sizes vary."""
    return any(part is not None for part in given.symbols)


def roots_of(file: str) -> tuple[str, ...]:
    """Return the folders that places in keys begin with: the program's, and that of libraries."""
    above = [path for path in map(os.path.abspath, sys.path) if file.startswith(path + os.sep)]
    return max(above, key=len, default=os.path.dirname(file)), str(Path(torch.__file__).parents[1])
