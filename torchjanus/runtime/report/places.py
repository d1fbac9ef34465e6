"""How reports write places, refusals and counts."""

from __future__ import annotations

import linecache
import os

from torchjanus.core.errors import NOWHERE, Place, Refusal
from torchjanus.semantics.known.trusted import is_trusted_module

__all__ = ["count", "is_library", "outer", "refusal_text", "source", "where"]


def count(number: int, what: str) -> str:
    """Return "1 graph", "2 graphs"."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def where(place: Place) -> str:
    """Return file and line, relative to the current folder where that is shorter."""
    if not place.line:
        return "(call)"
    try:
        name = os.path.relpath(place.file)
    except ValueError:  # another drive
        name = place.file
    return f"{name if not name.startswith('..') else place.file}:{place.line}"


def is_library(place: Place) -> bool:
    """Whether the source is not the program's own."""
    return place.is_library or is_trusted_module(place.file.replace(os.sep, "/"))


def source(place: Place) -> str:
    """Return the source line."""
    return linecache.getline(place.file, place.line).strip()


def outer(refusal: Refusal) -> Place:
    """Return the program's line at which something was refused."""
    return refusal.place if refusal.caller == NOWHERE else refusal.caller


def refusal_text(refusal: Refusal) -> str:
    """Return a refusal on one line."""
    place = outer(refusal)
    inner = "" if place is refusal.place else f" (in {where(refusal.place)})"
    return f"{where(place)}{inner}  {refusal.what}: {refusal.why} [{refusal.reason}]"
