"""The operands of events: tensors by number, expressions, constants; as tokens, which can be compared, and as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchjanus.core.access_path import token_of
from torchjanus.core.kinds import isinstance
from torchjanus.core.trees import tree_token
from torchjanus.trace.values import Expr, Traced

__all__ = ["TensorRef", "if_chosen", "key_token", "symbol_token", "text_of"]


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor of the run by its number, in the order in which the run met them."""

    number: int

    def __repr__(self) -> str:
        return f"%{self.number}"


def symbol_token(value: Any) -> Any:
    """Return the token of an argument structure whose leaves are TensorRefs, expressions and constants."""
    return tree_token(value, _leaf_token)


def _leaf_token(value: Any) -> Any:
    if isinstance(value, TensorRef):
        return ("tensor", value.number)
    return value.token if isinstance(value, Expr) else token_of(value)


def key_token(key: Any) -> Any:
    """Return the token of a key."""
    return key.expr.token if isinstance(key, Traced) else token_of(key)


def if_chosen(chosen: bool) -> tuple[str, ...]:
    """Return what is added to the token of what may not be done at all."""
    return ("chosen",) if chosen else ()


def text_of(value: Any) -> str:
    """Return how a person would write it, in short."""
    if isinstance(value, Traced):
        return str(value.expr)
    if isinstance(value, tuple | list):
        return "(" + ", ".join(text_of(v) for v in value) + ")"
    if isinstance(value, TensorRef | Expr):
        return str(value)
    text = repr(value) if isinstance(value, int | float | str | type(None)) else f"<{type(value).__name__}>"
    return text if len(text) <= 40 else text[:37] + "..."
