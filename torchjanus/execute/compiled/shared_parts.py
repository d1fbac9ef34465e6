"""Keeps compiled parts of recursions' cells while they are in use.

A recursion with a new variant keeps its other cells, whose parts are not compiled again. This module does not know the
recursions that run them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from torchjanus.core.caches import Recent
from torchjanus.execute.compiled.compiling import bare, compile_for_sizes, patches, taken_by
from torchjanus.execute.compiled.invoke import Part
from torchjanus.execute.compiled.store import Product
from torchjanus.execute.compiled.worker import Request
from torchjanus.graph.lowering.invoke_for_inductor import PreparedPart
from torchjanus.graph.lowering.prepared_bytes import fitting

__all__ = ["compile_part", "kept_part", "load_part", "part_key", "request_part"]

_PARTS: Recent[Part] = Recent(64)


def part_key(writing: PreparedPart) -> Any:
    """Return a key that is equal for equal parts."""
    return writing.text(), torch.get_num_threads(), torch.get_default_dtype()


def kept_part(writing: PreparedPart) -> Part | None:
    """Return the part, if this process has it."""
    return _PARTS.find(part_key(writing))


def compile_part(writing: PreparedPart) -> Part:
    """Return the part, for any number of calls. Raises Refused."""

    def make() -> Part:
        with torch.no_grad():
            made = compile_for_sizes(writing.prepared, taken_by(writing.prepared), _patches(writing))
        return Part(made.call, fitting(writing.taken, made.conditions))

    return _PARTS.get(part_key(writing), make)


def request_part(writing: PreparedPart) -> Request:
    """Return the request with which another process compiles the part."""
    prepared = replace(writing.prepared, graph=bare(writing.prepared))
    return Request.of(prepared, taken_by(writing.prepared), _patches(writing), torch.get_default_dtype())


def load_part(writing: PreparedPart, product: Product) -> Part:
    """Return the part that another process has compiled."""
    return _PARTS.put(part_key(writing), Part(product.load(), fitting(writing.taken, product.conditions)))


def _patches(writing: PreparedPart) -> dict[str, Any]:
    # Row indices that the level schedule computes need no check.
    return {**patches(cpp_wrapper=True), "assert_indirect_indexing": writing.checked}
