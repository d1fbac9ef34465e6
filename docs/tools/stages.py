"""Stages of a step as text, for the page that prints one training step at each of them."""

from __future__ import annotations

import ast
from types import FunctionType
from typing import Any

from torchjanus.rewrite import build

__all__ = ["function_in", "rewritten_source"]


def rewritten_source(fn: FunctionType) -> str:
    """The source of ``fn`` as it is watched: ``hook`` stands for the object that asks the semantics, and the first
    argument of each method is the number of the site."""
    parts: list[str] = []
    compiled = build.compile_alone

    def noting(node: Any, *others: Any) -> Any:
        parts.append(ast.unparse(node))
        return compiled(node, *others)

    build.compile_alone = noting
    try:
        build._rewrite(fn)
    finally:
        build.compile_alone = compiled
    return "\n".join(parts).replace(repr(build.HOOK), "hook")


def function_in(source: str, name: str) -> str:
    """The function of this name in generated code."""
    (found,) = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == name)
    return ast.get_source_segment(source, found) or ""
