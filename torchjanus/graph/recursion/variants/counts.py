"""Counters on objects that recursive calls increment: ``node.visits += 1``.

Nothing else in a call depends on such a number, so it does not matter that calls are followed before anything is
written: the commit computes each new number from the one it finds. The host knows the initial value of a counter that
the step itself has set (see ``semantics.record.accumulator``). Independent of how calls are followed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torchjanus.trace.actions import ContainerMutation, HeapWrite, HostLoop, InvokeOp, Op, place_of
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HeapRead, HostComputation, NumberPredicate, Specialization
from torchjanus.trace.operands import expressions_in
from torchjanus.trace.values import Apply, Read, leaves

__all__ = ["counted", "counting_text", "read_place"]


def read_place(event: HeapWrite, target: Any) -> Any:
    """Return the value before the write."""
    return getattr(target, event.key) if event.how == "field" else target[event.key]


def counted(trace: Trace) -> frozenset[Any]:
    """Return the tokens of the places whose number a call only uses to compute the number it writes there: once, and
    without other calls in between, which may count there too."""
    found: dict[Any, int] = {}  # number of calls made before it was read
    written: dict[Any, list[bool]] = {}
    calls = 0
    for event in trace.events:
        calls += isinstance(event, InvokeOp)
        if isinstance(event, HeapRead):
            found.setdefault(event.access_path.token, calls)
        elif isinstance(event, HeapWrite) and event.how in ("field", "item"):
            place = place_of(event).token
            written.setdefault(place, []).append(found.get(place) == calls)
    counts = {place for place, fitting in written.items() if fitting == [True]}
    return frozenset(counts - set(_used(trace))) if counts else frozenset()


def _used(trace: Trace) -> Iterator[Any]:
    """Yield the tokens of places whose numbers are used for anything else."""
    exprs = list(expressions_in(trace.result))
    for event in trace.events:
        match event:
            case (
                NumberPredicate(expr=expr)
                | Specialization(expr=expr)
                | HostComputation(expr=expr)
                | HostLoop(count=expr)
            ):
                exprs += expressions_in(expr)
            case HeapWrite():
                own = place_of(event).token
                yield from (place for place in _places(expressions_in(trace.recipes[id(event)])) if place != own)
            case ContainerMutation():
                exprs += expressions_in(trace.recipes[id(event)])
            case Op():
                exprs += expressions_in((event.args, event.kwargs))
        if isinstance(event, InvokeOp):
            exprs += expressions_in([recipe for _, recipe in event.given])
        access_path = getattr(event, "access_path", None) or getattr(event, "base", None)
        exprs += expressions_in([at.key for at in access_path.prefixes()] if access_path is not None else ())
    yield from _places(exprs)


def _places(exprs: Any) -> Iterator[Any]:
    return (leaf.access_path.token for expr in exprs for leaf in leaves(expr) if isinstance(leaf, Read))


def counting_text(expr: Any, place: Any, number: Callable[[Any], str], function: Callable[[Any], str]) -> str:
    """Return the text of a function from the old number to the new one. ``number`` returns the text of any other
    number, with its value when the call is followed; ``function`` that of a function."""
    given: list[str] = []

    def text(part: Any) -> str:
        if isinstance(part, Read) and part.access_path.token == place:
            return "c"
        if isinstance(part, Apply):
            return f"{function(part.func)}({', '.join(map(text, part.args))})"
        given.append(f"x{len(given)}={number(part)}")
        return f"x{len(given) - 1}"

    body = text(expr)
    return f"lambda {', '.join(['c', *given])}: {body}"
