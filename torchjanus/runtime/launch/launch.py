"""One entry's whole call as generated Python: guards, inputs, host numbers, the graph, and the commit.

All that is known beforehand is a constant of the code, so a call costs little besides its graph.
"""

from __future__ import annotations

import operator
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.core.access_path import read_item
from torchjanus.core.errors import Refused
from torchjanus.execute.rollback import Rollback
from torchjanus.execute.running.base import Violated
from torchjanus.graph.generalize.generalize import EntryPlan
from torchjanus.graph.ir.lowered import GradState, Lowered
from torchjanus.graph.recursion.cells.invoke_op import laid_out
from torchjanus.graph.tracing.saved_tensors import undifferentiable
from torchjanus.host.assumption import AmbientState, Assumption
from torchjanus.host.checks import BROKEN, LeafHooks, same_keys, same_value
from torchjanus.host.embed import compile_with_constants
from torchjanus.host.journal import ExternRaised
from torchjanus.runtime.launch.completing import MAKING, WRITING, Completing
from torchjanus.runtime.launch.differentiable import Differentiable
from torchjanus.runtime.launch.emit import Emitter, Values
from torchjanus.runtime.launch.interrupts import hold_interrupts, release_interrupts
from torchjanus.runtime.launch.outcomes import LATE, MISS, RAISED, Failure, Violation

__all__ = ["Launch", "PrefixLaunch", "build_beginning", "build_launch"]

Run = Callable[..., Any]


@dataclass(slots=True)
class Launch:
    """The generated functions of one entry.

    ``call`` returns the call's result, MISS, RAISED, a Violation, or a Failure of the commit, and raises what is raised
    before the commit. The extern calls that it makes before the commit are in the journal that it is given. ``timed``
    does the same and appends four clock readings (ns: begin, guarded, run, committed). ``check`` evaluates only the
    guards. ``outcome`` runs the graph by another executor and returns what the commit would write, without writing:
    (result, writes of recursive calls, values of each effect, gradients by input, new memory of inputs), with LATE for
    what is not known. ``run`` in ``names`` is the executor in use, which may be exchanged at any time.
    """

    call: Callable[..., Any]  # (args, kwargs, journal, live)
    timed: Callable[..., Any]  # (args, kwargs, journal, ticks, live)
    check: Callable[[tuple[Any, ...], dict[str, Any]], Any]
    outcome: Callable[..., Any]  # (args, kwargs, journal, run, live)
    source: str
    names: dict[str, Any]
    journaled: bool  # whether extern calls are made before the commit
    differentiable: Differentiable | None = None  # hands results to autograd that have their backward pass to come

    def use(self, run: Callable[..., Any]) -> None:
        """Run the graph by ``run`` from the next call on."""
        self.names["run"] = run


def build_launch(
    plan: EntryPlan, lowered: Lowered, assumptions: Sequence[Assumption], live: Sequence[int] | None = None
) -> Launch:
    """Generate an entry's code. ``live``: positions of the values of earlier parts that the graph takes after its
    inputs. Raises Refused where its results cannot equal eager's."""
    _refuse_live(plan, lowered, assumptions)
    emitter = Emitter(plan, lowered, assumptions, live or ())
    source = emitter.source
    source.indent = "        "
    if emitter.results.differentiable is not None:
        source.fail_if(f"{source.constant(emitter.results.differentiable)}.doubled")
    emitter.guards.require()
    checking = _taken(source)
    parts = []
    for stage in range(len(plan.schedule.cuts) + 1):
        if stage:
            emitter.results.give_cut(stage)
        emitter.externs(stage)
        if not stage:
            emitter.follow()
        inputs, slots = emitter.inputs(stage), emitter.host_numbers(stage)
        emitter.results.slots = slots
        emitter.hold(stage)
        source.flush()
        parts.append(_Part([*(checking if not stage else ()), *_taken(source)], inputs, slots))
    values = emitter.values()
    making = _taken(source)
    result = emitter.effects(values)
    text = _LaunchSource(emitter, parts, values, making, _taken(source), result)
    texts = {
        "call": text.function("call(args, kwargs, journal, live=())"),
        "timed": text.function("timed(args, kwargs, journal, ticks, live=())", timed=True),
        "outcome": text.function("outcome(args, kwargs, journal, run, live=())", committing=False),
        "check": _checker(checking),
    }
    completing = Completing(*text.lines(), {name: "\n".join(lines) for name, lines in texts.items()}, source.names)
    scope = _names({"rollback": Rollback(lowered), "completing": completing})
    scope.update({name: _LazyFunction(name, "\n".join(lines), source.names, scope) for name, lines in texts.items()})
    code = "\n".join(line for lines in texts.values() for line in lines)
    journaled = bool(plan.schedule.early)
    later = scope["call"]

    def first(*args: Any) -> Any:
        # Not in the call in which the entry is made, which has taken long enough.
        launch.call = later.compiled()
        return launch.call(*args)

    handing = emitter.results.differentiable
    launch = Launch(first, scope["timed"], scope["check"], scope["outcome"], code, scope, journaled, handing)
    return launch


class _LazyFunction:
    """A generated function that is compiled when it is first called: most entries are never profiled or verified."""

    _one = threading.Lock()

    def __init__(self, name: str, text: str, constants: dict[str, Any], scope: dict[str, Any]) -> None:
        self._name = name
        self._text = text
        self._constants = constants
        self._scope = scope

    def compiled(self) -> Callable[..., Any]:
        with self._one:  # calls may come from several threads
            if self._scope[self._name] is self:
                compile_with_constants(self._text, "<torchjanus launch>", self._constants, self._scope)
            made: Callable[..., Any] = self._scope[self._name]
            return made

    def __call__(self, *args: Any) -> Any:
        return self.compiled()(*args)


@dataclass(slots=True)
class PrefixLaunch:
    """The generated code of a part before a decision: ``begin`` returns MISS, RAISED, or the values of the part."""

    begin: Callable[..., Any]  # (args, kwargs, journal, live)
    source: str
    names: dict[str, Any]

    def use(self, run: Callable[..., Any]) -> None:
        """Run the part by ``run`` from the next call on."""
        self.names["run"] = run


def build_beginning(
    plan: EntryPlan, lowered: Lowered, assumptions: Sequence[Assumption], live: Sequence[int]
) -> PrefixLaunch:
    """Generate the code of a part before a decision: its guards, its inputs, its graph, and no commit."""
    emitter = Emitter(plan, lowered, assumptions, live)
    source = emitter.source
    source.indent = "        "
    emitter.guards.require()
    checking = _taken(source)
    emitter.externs(0)
    emitter.follow()
    inputs, slots = emitter.inputs(0), emitter.host_numbers(0)
    source.flush()
    run = f"among({inputs}, {slots}, run, forests)" if plan.call_groups else f"run({inputs}, {slots})"
    lines = [
        *("def begin(args, kwargs, journal, live):", "    try:", *checking, *_taken(source), "        pass"),
        *("    except BROKEN: return MISS", "    except ExternRaised: return RAISED"),
        *(f"    return {run}", *_checker(checking)),
    ]
    code = "\n".join(lines)
    scope = _names({})
    compile_with_constants(code, "<torchjanus beginning>", source.names, scope)
    return PrefixLaunch(scope["begin"], code, scope)


def _checker(checking: list[str]) -> list[str]:
    head = ["def check(args, kwargs):", "    try:", *checking, "        pass"]
    return [*head, "    except BROKEN: return MISS", "    return True", ""]


def _names(more: dict[str, Any]) -> dict[str, Any]:
    """Return what generated code refers to by name."""
    return {
        "MISS": MISS,
        "RAISED": RAISED,
        "LATE": LATE,
        "BROKEN": BROKEN,
        "ExternRaised": ExternRaised,
        "Violated": Violated,
        "Violation": Violation,
        "Failure": Failure,
        "same_keys": same_keys,
        "same_value": same_value,
        "item": read_item,
        "same": operator.is_,
        "run": None,
        "among": _among,
        "advance_among": _advance_among,
        "clock": time.perf_counter_ns,
        "hold_interrupts": hold_interrupts,
        "release_interrupts": release_interrupts,
        "set_versions": torch._C._autograd._unsafe_set_version_counter,
        **more,
    }


def _among(inputs: Any, slots: Any, run: Run, forests: Any) -> Any:
    """Run a graph that makes recursive calls."""
    with laid_out(forests):
        return run(inputs, slots)


def _advance_among(inputs: Any, slots: Any, stage: int, work: Any, forests: Any) -> Any:
    """Run one part of a graph that makes recursive calls."""
    with laid_out(forests):
        return work.advance(inputs, slots, stage)


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


class _LaunchSource:
    """Puts an entry's functions together from their pieces."""

    def __init__(
        self, emitter: Emitter, parts: list[_Part], values: Values, making: list[str], writing: list[str], result: str
    ) -> None:
        """``making``: the lines that make the values of the commit; ``writing``: the lines that write them; ``result``:
        the text of the call's result after that."""
        self.emitter = emitter
        self.parts = parts
        self.values = values
        self.making = making
        self.writing = writing
        self.result = result
        self.staged = len(parts) > 1
        self.raised = ["    except ExternRaised: return RAISED"] if emitter.schedule.early else []

    def function(self, head: str, *, timed: bool = False, committing: bool = True) -> list[str]:
        """Return the lines of one function that makes a call of the entry, or returns what it would write."""
        tick = ["    ticks.append(clock())"] if timed else []
        *others, last = self.parts
        opening = [] if self.staged else self._guarded(last)
        body: list[str] = []
        for stage, part in enumerate(others):
            body += [*self._guarded(part), *([] if stage else tick), *self._run(part, stage, "cut")]
        body += self._guarded(last) if self.staged else tick
        if committing and (self.emitter.changes > 1 or self.emitter.lowered.mutated):
            thrown = [f"    {line}" for line in self.emitter.thrown()]
            closing = _uninterrupted([*thrown, *self._run(last, len(others), "values"), *tick, *self._commit(tick)])
        elif committing:
            closing = [*self._run(last, len(others), "values"), *tick, *self._commit(tick)]
        else:
            run = [*self._run(last, len(others), "values"), *(line[4:] for line in self._checking("values"))]
            closing = [*run, *self._rehearsed(), self._outcome()]
        if self.staged:
            body = ["    work = run()", *_or_abandon([*body, *closing])]
        else:
            body += closing
        return [f"def {head}:", *tick, *opening, *body, ""]

    def _guarded(self, part: _Part) -> list[str]:
        # A guard may read an access path that no longer exists, which is a miss; no exception after the guards is one.
        return ["    try:", *part.before, "        pass", "    except BROKEN: return MISS", *self.raised]

    def _run(self, part: _Part, stage: int, name: str) -> list[str]:
        """Run one part of the graph."""
        saving = []
        if name == "values" and self.emitter.plan.risky:
            saving = [f"    saved = rollback.save(({''.join(f'{name}, ' for _, name in self.emitter.mutated())}))"]
        if name == "values" and (kept := self.emitter.uncounted()):
            saving.append(f"    versions = [one._version for one in ({kept})]")
        call = (
            f"advance_among({part.inputs}, {part.slots}, {stage}, work, forests)"
            if self.staged and self.emitter.plan.call_groups
            else f"work.advance({part.inputs}, {part.slots}, {stage})"
            if self.staged
            else f"among({part.inputs}, {part.slots}, run, forests)"
            if self.emitter.plan.call_groups
            else f"run({part.inputs}, {part.slots})"
        )
        run = [*saving, f"    {name} = {call}"]
        # The last part has updated tensors: what follows belongs to the commit.
        return run if name == "values" else [*run, *(line[4:] for line in self._checking(name))]

    def _checking(self, name: str) -> list[str]:
        if self.emitter.lowered.flags is None:
            return []
        return [f"        if type({name}) is Violated: return Violation({name})"]

    def _commit(self, tick: list[str]) -> list[str]:
        # Tensors have been updated, so the call cannot be repeated: it is completed, or the caller gets a Failure.
        giving_up = [
            "    except BaseException as error:",
            "        done = completing.complete(error, globals())",
            *([f"    {line}" for line in tick]),
            "        return Failure(error, True) if done is None else done[0]",
        ]
        undoing, lowered = giving_up, self.emitter.lowered
        if not lowered.mutated and not lowered.random and not self.staged:
            undoing = ["    except Exception as error: return Failure(error, False)", *giving_up]
        if self.emitter.plan.risky:
            undoing = [
                "    except Exception as error:",
                "        rollback.restore(saved)",
                *(["        work.rewind()"] if self.staged else []),
                "        return Failure(error, False)",
            ]
        made, written = self.lines()
        if kept := self.emitter.uncounted():
            made.insert(len(self._checking("values")), f"        set_versions(({kept}), versions)")
        making = [f"    {MAKING}", *made, "        pass", *undoing]
        writing = [f"    {WRITING}", *written, "        pass", *giving_up] if written else []
        return [*making, *writing, *tick, "    return result"]

    def lines(self) -> tuple[list[str], list[str]]:
        """Return the lines that make the values of the commit, and those that write them. One of the two sets
        ``result``."""
        making, ending = [*self._checking("values"), *self.making], [f"        result = {self.result}"]
        if self.values.result is None:
            return making, [*self.writing, *ending]
        return [*making, *ending], self.writing

    def _rehearsed(self) -> list[str]:
        """Return the lines that make the values, with copies of the inputs that the graph updates."""
        lines = [line[4:] for line in self.making]
        for index, name in self.emitter.mutated():
            lines = [re.sub(rf"\b{name}\b", f"run.copies[{index}]", line) for line in lines]
        return lines

    def _outcome(self) -> str:
        texts = {id(effect): values for effect, values in self.values.effects}
        effects = (texts.get(id(effect)) for effect in self.emitter.plan.effects)
        written = ", ".join("LATE" if e is None else f"({''.join(f'{text}, ' for text in e)})" for e in effects)
        gradients = ", ".join(f"({index}, {text})" for index, text in self.values.gradients)
        memory = ", ".join(f"({one.index}, {text})" for one, text in self.values.memory)
        result = "LATE" if self.values.result is None else self.result
        by_calls = "".join(
            f"*written{n}, " for n, call_group in enumerate(self.emitter.plan.call_groups) if call_group.writes
        )
        return f"    return {result}, [{by_calls}], [{written}], [{gradients}], [{memory}]"


def _uninterrupted(lines: list[str]) -> list[str]:
    """Return the lines with Ctrl-C deferred."""
    return [
        "    waiting = hold_interrupts()",
        "    try:",
        *(f"    {line}" for line in lines),
        "    finally: release_interrupts(waiting)",
    ]


def _or_abandon(lines: list[str]) -> list[str]:
    """Return the lines of a run in several parts, which is abandoned if they end early (after its end that does
    nothing)."""
    return ["    try:", *(f"    {line}" for line in lines), "    finally: work.abandon()"]


def _refuse_live(plan: EntryPlan, lowered: Lowered, assumptions: Sequence[Assumption]) -> None:
    """Raise Refused where results have their backward pass still to come, and it would not be eager's."""
    places = (position for key, position in plan.outputs.items() if key[0] == "tensor")
    if not any(lowered.outputs[position].state is GradState.LIVE for position in places):
        return
    if lowered.pullback is None:
        if lowered.undifferentiable is not None:
            raise Refused(lowered.undifferentiable)
        raise undifferentiable("there is no graph of it", "it is one with the step.")
    modes = next(one.modes for one in assumptions if isinstance(one, AmbientState))
    if any(cached for _, _, cached in modes.autocast):
        raise undifferentiable(
            "autocast was entered before the call",
            "gradients of parameters that are cast once for all calls are added before they are cast back.",
            "Enter autocast inside the function, or call backward() inside the step.",
        )
    entries = zip(plan.pinned, plan.program.inputs, strict=True)
    leaves = [tensor for tensor, entry in entries if tensor is not None and entry.requires_grad and entry.is_leaf]
    if LeafHooks(tuple(leaves)).are_several():
        raise undifferentiable(
            "several parameters have hooks",
            "a graph gives all gradients at once, and eager calls hooks in the order in which gradients are made.",
        )
