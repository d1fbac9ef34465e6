"""S-expressions: text to nested lists of atoms and back. Knows nothing of graphs."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

__all__ = ["Symbol", "TextError", "Vector", "quoted", "read"]


class TextError(ValueError):
    """The text is no tree in text form; the message says where."""


class Symbol(str):
    """A word that is no text in quotes and no number."""

    __slots__ = ()


@dataclass(slots=True)
class Vector:
    """What stands in square brackets."""

    items: list[Any]


_TOKEN = re.compile(r'[()\[\]]|"(?:[^"\\]|\\.)*"|[^\s()\[\]";]+|;[^\n]*|["]')
_NUMBER = re.compile(r"[+-]?\d")
_WORDS: dict[str, Any] = {
    "true": True,
    "false": False,
    "none": None,
    "nan": float("nan"),
    "inf": float("inf"),
    "-inf": float("-inf"),
}


def quoted(text: str) -> str:
    """Return a text in quotes."""
    return json.dumps(text, ensure_ascii=True)


def read(text: str) -> Any:
    """Return the one expression that the text holds. Raises TextError."""
    stack: list[list[Any]] = [[]]
    openers: list[str] = []
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token in "([":
            stack.append([])
            openers.append(token)
        elif token in ")]":
            if not openers or openers.pop() + token not in ("()", "[]"):
                raise TextError(f"line {_line(text, match.start())}: {token} closes nothing")
            inner = stack.pop()
            stack[-1].append(inner if token == ")" else Vector(inner))
        elif token == '"':
            raise TextError(f"line {_line(text, match.start())}: a text in quotes does not end")
        elif token[0] != ";":
            stack[-1].append(_atom(token))
    if openers or len(stack[0]) != 1:
        raise TextError(f"line {_line(text, len(text))}: the text ends too early or goes on after its end")
    return stack[0][0]


def _atom(token: str) -> Any:
    if token[0] == '"':
        return json.loads(token)
    if token in _WORDS:
        return _WORDS[token]
    if _NUMBER.match(token):
        try:
            return int(token)
        except ValueError:
            return float(token)
    return Symbol(token)


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
