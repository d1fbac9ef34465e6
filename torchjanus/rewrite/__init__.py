"""Python to Python: rewrites source so that every construct that matters calls a hook. It does not use torch."""

from __future__ import annotations

from torchjanus.rewrite.build import Anchor, Bind, code_of, is_rewritten, rewritten_source, sites_of, twin, with_code
from torchjanus.rewrite.census import CENSUS, Census, Entry
from torchjanus.rewrite.cutting import Span, asks_for_callers, cut, spans_of
from torchjanus.rewrite.source import forget as forget_sources
from torchjanus.rewrite.syntax.sites import Location, Site
from torchjanus.rewrite.variants import RUN, Run, call_sites, runs_of, variant

__all__ = [
    "CENSUS", "RUN", "Anchor", "Bind", "Census", "Entry", "Location", "Run", "Site", "Span", "asks_for_callers",
    "call_sites", "code_of", "cut", "forget_sources", "is_rewritten", "rewritten_source", "runs_of", "sites_of",
    "spans_of", "twin", "variant", "with_code",
]  # fmt: skip
