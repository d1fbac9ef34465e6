"""Python to Python: rewrites source so that every construct that matters calls a hook. It does not use torch."""

from __future__ import annotations

from torchjanus.rewrite.build import Anchor, Bind, code_of, is_rewritten, rewritten_source, sites_of, twin
from torchjanus.rewrite.census import CENSUS, Census, Entry
from torchjanus.rewrite.cutting import Span, cut, spans_of
from torchjanus.rewrite.source import forget as forget_sources
from torchjanus.rewrite.syntax.sites import Site

__all__ = [
    "CENSUS",
    "Anchor",
    "Bind",
    "Census",
    "Entry",
    "Site",
    "Span",
    "code_of",
    "cut",
    "forget_sources",
    "is_rewritten",
    "rewritten_source",
    "sites_of",
    "spans_of",
    "twin",
]
