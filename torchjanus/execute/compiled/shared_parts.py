"""Keeps compiled parts of recursions' cells while they are in use.

A recursion with a new variant keeps its other cells, whose parts are not compiled again. This module does not know the
recursions that run them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from torchjanus.execute.compiled.compiling import bare, compile_for_sizes, patches, taken_by
from torchjanus.execute.compiled.invoke import Part
from torchjanus.execute.compiled.store import Product
from torchjanus.execute.compiled.worker import Request
from torchjanus.graph.lowering.invoke_for_inductor import PreparedPart
from torchjanus.graph.lowering.prepared_bytes import fitting

__all__ = ["compile_part", "kept_part", "load_part", "part_key", "request_part"]

_PARTS: dict[Any, Part] = {}
_MOST_KEPT = 64


def part_key(writing: PreparedPart) -> Any:
    """Return a key that is equal for equal parts."""
    return writing.text(), torch.get_num_threads(), torch.get_default_dtype()


def kept_part(writing: PreparedPart) -> Part | None:
    """Return the part, if this process has it."""
    return _PARTS.get(part_key(writing))


def compile_part(writing: PreparedPart) -> Part:
    """Return the part, for any number of calls. Raises Refused."""
    found = kept_part(writing)
    if found is None:
        with torch.no_grad():
            made = compile_for_sizes(writing.prepared, taken_by(writing.prepared), _patches(writing))
        found = Part(made.call, fitting(writing.taken, made.conditions))
    return _keep(writing, found)


def request_part(writing: PreparedPart) -> Request:
    """Return the request with which another process compiles the part."""
    prepared = replace(writing.prepared, graph=bare(writing.prepared))
    return Request.of(prepared, taken_by(writing.prepared), _patches(writing), torch.get_default_dtype())


def load_part(writing: PreparedPart, product: Product) -> Part:
    """Return the part that another process has compiled."""
    return _keep(writing, Part(product.load(), fitting(writing.taken, product.conditions)))


def _keep(writing: PreparedPart, part: Part) -> Part:
    key = part_key(writing)
    _PARTS.pop(key, None)
    _PARTS[key] = part  # the most recently used ones are the last
    for old in list(_PARTS)[:-_MOST_KEPT]:
        _PARTS.pop(old, None)
    return part


def _patches(writing: PreparedPart) -> dict[str, Any]:
    # Row indices that the level schedule computes need no check.
    return {**patches(cpp_wrapper=True), "assert_indirect_indexing": writing.checked}
