"""Stages of a step as text, for the page that prints one training step at each of them."""

from __future__ import annotations

import ast

__all__ = ["function_in"]


def function_in(source: str, name: str) -> str:
    """The function of this name in generated code."""
    (found,) = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == name)
    return ast.get_source_segment(source, found) or ""
