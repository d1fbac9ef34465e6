"""Compiled parts of recursions' cells, kept while they are in use.

A recursion that has learnt one more way has its other cells as they were: they are not compiled again. Knows nothing of
the recursions that run them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from torchjanus.execute.compiled.compiling import bare, compile_for_sizes, patches, taken_by
from torchjanus.execute.compiled.invoke import Part
from torchjanus.execute.compiled.store import Product
from torchjanus.execute.compiled.worker import Request
from torchjanus.graph.lowering.invoke_for_inductor import Writing
from torchjanus.graph.lowering.prepared_bytes import fitting

__all__ = ["compile_part", "kept_part", "load_part", "part_key", "request_part"]

_PARTS: dict[Any, Part] = {}
_MOST_KEPT = 64


def part_key(writing: Writing) -> Any:
    """Equal keys, equal parts."""
    return writing.text(), torch.get_num_threads(), torch.get_default_dtype()


def kept_part(writing: Writing) -> Part | None:
    """The part, if this process has it."""
    return _PARTS.get(part_key(writing))


def compile_part(writing: Writing) -> Part:
    """The part, for any number of calls. Raises Refused."""
    found = kept_part(writing)
    if found is None:
        with torch.no_grad():
            made = compile_for_sizes(writing.prepared, taken_by(writing.prepared), _patches(writing))
        found = Part(made.call, fitting(writing.taken, made.conditions))
    return _keep(writing, found)


def request_part(writing: Writing) -> Request:
    """What another process has to know to compile the part."""
    prepared = replace(writing.prepared, graph=bare(writing.prepared))
    return Request.of(prepared, taken_by(writing.prepared), _patches(writing), torch.get_default_dtype())


def load_part(writing: Writing, product: Product) -> Part:
    """The part that another process has compiled."""
    return _keep(writing, Part(product.load(), fitting(writing.taken, product.conditions)))


def _keep(writing: Writing, part: Part) -> Part:
    key = part_key(writing)
    _PARTS.pop(key, None)
    _PARTS[key] = part  # the last used are the last
    for old in list(_PARTS)[:-_MOST_KEPT]:
        _PARTS.pop(old, None)
    return part


def _patches(writing: Writing) -> dict[str, Any]:
    # What a forest says of its own rows need not be checked.
    return {**patches(cpp_wrapper=True), "assert_indirect_indexing": writing.checked}
