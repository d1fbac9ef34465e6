"""The Python function that is watched where a callable is speculated on, or why there is none.

In: a function, a method, a module or another callable. Out: its function, with the arguments bound to it. Raises
nothing: what has no source, or makes a generator or coroutine, is refused and left to Python.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

from torchjanus.core.errors import Place, Refusal, SourceUnavailable, Unsupported
from torchjanus.rewrite.hooks import rewritten
from torchjanus.runtime.learning.policy import LearningPolicy
from torchjanus.runtime.runs.records import EventLog
from torchjanus.semantics.protocols.virtualize import underlying

__all__ = ["Target", "target_of"]

_SUSPENDED = {
    inspect.CO_COROUTINE: "coroutine",
    inspect.CO_ASYNC_GENERATOR: "asynchronous generator",
    inspect.CO_GENERATOR: "generator",
}
Target = tuple[types.FunctionType, tuple[Any, ...]]  # the function to watch, and the arguments bound to it


def target_of(fn: Callable[..., Any], event_log: EventLog, policy: LearningPolicy) -> Target | None:
    """Return the Python function to watch and the arguments bound to it; None, after reporting the reason, if there
    is none."""
    try:
        target, leading = underlying(fn)
        rewritten(target)
    except (SourceUnavailable, Unsupported) as error:
        event_log.refuse(Refusal("no-source", f"{fn!r} cannot be rewritten", str(error)))
        policy.give_up(str(error))
        return None
    kind = next((kind for flag, kind in _SUSPENDED.items() if target.__code__.co_flags & flag), None)
    if kind is not None:
        place = Place(target.__code__.co_filename, target.__code__.co_firstlineno)
        why = f"calling it makes a {kind} and runs nothing of it yet."
        remedy = "Speculate on a plain function that does the work between two awaits or yields."
        refusal = Refusal("step-suspends", f"the step is a {kind}", why, remedy, place)
        event_log.refuse(refusal)
        policy.give_up(str(refusal))
        return None
    return target, leading
