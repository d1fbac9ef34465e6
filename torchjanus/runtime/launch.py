"""One entry's whole call as generated Python: guards, inputs, host numbers, the graph, and the commit.

Everything that can be known beforehand is a constant of the code, so a call costs little besides its graph.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torchjanus.assumptions.assumption import Assumption
from torchjanus.assumptions.checks import read_item, same_keys, same_value
from torchjanus.assumptions.embed import compile_with_constants
from torchjanus.errors import NOWHERE, Refusal, Refused
from torchjanus.execute.base import Violated
from torchjanus.graph.generalise import Generalised
from torchjanus.graph.lowered import GradState, Lowered
from torchjanus.journal import ExternRaised, Journal
from torchjanus.runtime.emit import Emitter

__all__ = ["MISS", "RAISED", "Failure", "Launch", "Violation", "build_launch"]

_BROKEN = (KeyError, AttributeError, IndexError, TypeError, ValueError, NameError, ReferenceError)


class _Outcome:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<{self._name}>"


MISS: Any = _Outcome("miss")
RAISED: Any = _Outcome("raised")  # an extern call raised; the journal has its error


@dataclass(frozen=True, slots=True)
class Violation:
    """The graph ran, some assertion did not hold, and nothing was changed."""

    violated: Violated


@dataclass(frozen=True, slots=True)
class Failure:
    """Something raised. Before the commit nothing has been changed; in it (``committing``) the tensors have been."""

    error: BaseException
    committing: bool


@dataclass(slots=True)
class Launch:
    """The generated functions of one entry. ``call`` returns the call's result, MISS, RAISED, a Violation, or a Failure
    of the commit; what goes wrong before comes as an exception. The extern calls that it makes before the commit are in
    the journal it is given. ``timed`` does the same and appends four clock readings (ns: begin, guarded, run,
    committed); ``check`` gives only the verdict of the guards. ``run`` is the executor in use, which may be
    exchanged at any time."""

    call: Callable[[tuple[Any, ...], dict[str, Any], Journal | None], Any]
    timed: Callable[[tuple[Any, ...], dict[str, Any], Journal | None, list[int]], Any]
    check: Callable[[tuple[Any, ...], dict[str, Any]], Any]
    source: str
    names: dict[str, Any]
    journaled: bool  # whether extern calls are made before the commit

    def use(self, run: Callable[..., Any]) -> None:
        """From the next call on, the graph is run by this."""
        self.names["run"] = run


def build_launch(plan: Generalised, lowered: Lowered, assumptions: Sequence[Assumption]) -> Launch:
    """Generate an entry's code. Raises Refused where its results cannot be what eager's are."""
    _refuse_live(plan, lowered)
    emitter = Emitter(plan, lowered, assumptions)
    source = emitter.source
    source.indent = "        "
    emitter.guards()
    checking = _taken(source)
    journaled = bool(plan.schedule.early)
    parts = [_Part(checking, "", "")]
    cuts = len(plan.schedule.cuts)
    for stage in range(cuts + 1):
        if stage:
            source.otherwise = "return work.abandon() or MISS"
            emitter.give_cut(stage, "cut")
        emitter.externs(stage)
        inputs, slots = emitter.inputs(stage), emitter.host_numbers(stage)
        emitter.hold(stage)
        source.flush()
        before = [*(parts.pop().before if not stage else ()), *_taken(source)]
        parts.append(_Part(before, inputs, slots))
    emitter.commit()
    *commit, last = _taken(source)
    returned = last.strip().removeprefix("return ")
    text = "\n".join(
        [
            *_function("call(args, kwargs, journal)", parts, commit, returned, lowered, journaled, timed=False),
            *_function("timed(args, kwargs, journal, ticks)", parts, commit, returned, lowered, journaled, timed=True),
            "def check(args, kwargs):",
            "    try:",
            *checking,
            "        pass",
            "    except BROKEN: return MISS",
            "    return True",
            "",
        ]
    )
    scope: dict[str, Any] = {
        "MISS": MISS,
        "RAISED": RAISED,
        "BROKEN": _BROKEN,
        "ExternRaised": ExternRaised,
        "Violated": Violated,
        "Violation": Violation,
        "Failure": Failure,
        "same_keys": same_keys,
        "same_value": same_value,
        "item": read_item,
        "same": operator.is_,
        "run": None,
        "clock": time.perf_counter_ns,
    }
    compile_with_constants(text, "<torchjanus launch>", source.names, scope)
    return Launch(scope["call"], scope["timed"], scope["check"], text, scope, journaled)


@dataclass(frozen=True, slots=True)
class _Part:
    """One part of the graph: the lines before it, and the texts of its inputs and slots."""

    before: list[str]
    inputs: str
    slots: str


def _taken(source: Any) -> list[str]:
    lines = list(source.lines)
    source.lines.clear()
    return lines


def _function(
    head: str, parts: list[_Part], commit: list[str], result: str, lowered: Lowered, journaled: bool, *, timed: bool
) -> list[str]:
    """The text of one function that makes a call of the entry."""
    tick = ["    ticks.append(clock())"] if timed else []
    raised = ["    except ExternRaised: return RAISED"] if journaled else []
    lines = [f"def {head}:", *tick]
    staged = len(parts) > 1
    for stage, part in enumerate(parts):
        # Guards may meet a path that has broken off; nothing after them may be taken for a miss.
        lines += ["    try:", *part.before, "        pass"]
        if not stage:
            lines += ["    except BROKEN: return MISS", *raised]
            lines += ["    work = run()"] if staged else []
            lines += tick
        else:
            lines += [
                "    except BROKEN: return work.abandon() or MISS",
                "    except ExternRaised: return work.abandon() or RAISED",
                "    except BaseException:",
                "        work.abandon()",
                "        raise",
            ]
        name = "values" if stage == len(parts) - 1 else "cut"
        call = f"work.advance({part.inputs}, {part.slots}, {stage})" if staged else f"run({part.inputs}, {part.slots})"
        lines.append(f"    {name} = {call}")
        if lowered.flags is not None:
            lines.append(f"    if type({name}) is Violated: return Violation({name})")
    lines += tick
    lines += ["    try:", *commit]
    lines.append(f"        result = {result}" if timed else f"        return {result}")
    # The tensors are updated by now, so the call cannot be made again: the caller must know.
    lines.append("    except BaseException as error: return Failure(error, True)")
    lines += [*tick, "    return result"] if timed else []
    return [*lines, ""]


def _refuse_live(plan: Generalised, lowered: Lowered) -> None:
    for key, position in plan.outputs.items():
        if key[0] == "tensor" and lowered.outputs[position].state is GradState.LIVE:
            raise Refused(
                Refusal(
                    NOWHERE,
                    "a tensor leaves the step with its backward pass still to come",
                    "the graph holds forward, backward and update as one.",
                    "Call backward() inside the step, or return loss.detach().",
                )
            )
