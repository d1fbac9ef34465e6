"""Finds the compiled code within an artifact, below the wrappers that torch puts around it.

The wrappers repeat their checks at each call. That matters, since a part of a cell is called many times in a step and
does little. This module knows neither what is compiled nor when such a call is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torchjanus.core.lazy import deferred
from torchjanus.execute.compiled.extension import CompiledExtension
from torchjanus.execute.compiled.loading import Loaded

__all__ = ["bare_call"]

inductor = deferred("torch._inductor")
output_code = deferred("torch._inductor.output_code")

_DEEPEST = 12  # depth of nested wrappers


def bare_call(artifact: Any) -> Callable[[list[Any]], Any] | None:
    """Return the function that the artifact calls in the end, which takes a list of arguments; None where it cannot be
    found.

    The two are equivalent only for code that returns nothing: results may be views, which the wrappers make.
    """
    if isinstance(artifact, CompiledExtension):
        return artifact.bare
    if not isinstance(artifact, inductor.CompiledArtifact | Loaded):
        return None
    seen: dict[int, Any] = {id(artifact): artifact}
    found: dict[int, Any] = {}
    reached = [artifact]
    for _ in range(_DEEPEST):
        reached = [inner for outer in reached for inner in _within(outer) if id(inner) not in seen]
        seen.update((id(inner), inner) for inner in reached)
        found.update((id(inner), inner) for inner in reached if isinstance(inner, output_code.CompiledFxGraph))
        reached = [inner for inner in reached if id(inner) not in found]
    calls = [one.current_callable for one in found.values()]
    return calls[0] if len(calls) == 1 and callable(calls[0]) else None


def _within(outer: Any) -> Iterator[Any]:
    """Yield the functions that a function, or a callable object, may call."""
    for name in ("_compiled_fn", "compiled_fn"):
        inner = getattr(outer, "__dict__", {}).get(name)
        if callable(inner):
            yield inner
    for cell in getattr(outer, "__closure__", None) or ():
        try:
            inner = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        if callable(inner):
            yield inner
