"""What is within a compiled artifact: the code itself, past the wrappers that torch puts around it.

They ask at each call what can be known once: a part of a cell is called many times in a step, and does little. Knows
nothing of what is compiled, nor of when it may be called so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch._inductor import CompiledArtifact  # type: ignore[attr-defined]
from torch._inductor.output_code import CompiledFxGraph

from torchjanus.execute.compiled.loading import Loaded

__all__ = ["bare_call"]

_DEEPEST = 12  # wrappers around each other


def bare_call(artifact: Any) -> Callable[[list[Any]], Any] | None:
    """What the artifact calls in the end, with a list of what it is given. None where that cannot be told.

    That is the same only for code that returns nothing: what is returned may be views, which the wrappers make.
    """
    if not isinstance(artifact, CompiledArtifact | Loaded):
        return None
    seen: dict[int, Any] = {id(artifact): artifact}
    found: dict[int, CompiledFxGraph] = {}
    reached = [artifact]
    for _ in range(_DEEPEST):
        reached = [inner for outer in reached for inner in _within(outer) if id(inner) not in seen]
        seen.update((id(inner), inner) for inner in reached)
        found.update((id(inner), inner) for inner in reached if isinstance(inner, CompiledFxGraph))
        reached = [inner for inner in reached if id(inner) not in found]
    calls = [one.current_callable for one in found.values()]
    return calls[0] if len(calls) == 1 and callable(calls[0]) else None


def _within(outer: Any) -> Iterator[Any]:
    """The functions that a function, or a callable object, may call."""
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
