"""One entry's whole call as generated Python: guards, inputs, host numbers, the graph, and the commit.

Everything that can be known beforehand is a constant of the code, so a call costs little besides its graph.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.assumptions.assumption import (
    AmbientState,
    Assumption,
    Distinct,
    Memory,
    TensorKind,
    ValueOf,
    distinct,
)
from torchjanus.assumptions.checks import read_item, same_keys, same_value
from torchjanus.assumptions.embed import compile_with_constants
from torchjanus.assumptions.source import Source
from torchjanus.errors import NOWHERE, Refusal, Refused
from torchjanus.execute.base import Violated
from torchjanus.graph.generalise import Generalised, HostBatch
from torchjanus.graph.lowered import Fresh, FromInput, GradState, Lowered, Nothing, Result, ViewOf
from torchjanus.heap import Commit, numbers_in, origins_of
from torchjanus.trace.values import Apply, Fetch

__all__ = ["MISS", "Failure", "Launch", "Violation", "build_launch"]

_BROKEN = (KeyError, AttributeError, IndexError, TypeError, ValueError, NameError, ReferenceError)
_FREED_TEXT = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    "freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify "
    "retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors "
    "after calling backward."
)


class _Miss:
    def __repr__(self) -> str:
        return "<miss>"


MISS: Any = _Miss()


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
    """The generated functions of one entry. ``call`` returns the call's result, MISS, a Violation, or a Failure of the
    commit; what goes wrong before comes as an exception. ``timed``
    does the same and appends four clock readings (ns: begin, guarded, run, committed); ``check`` gives only the verdict
    of the guards. ``run`` is the executor in use, which may be exchanged at any time."""

    call: Callable[[tuple[Any, ...], dict[str, Any]], Any]
    timed: Callable[[tuple[Any, ...], dict[str, Any], list[int]], Any]
    check: Callable[[tuple[Any, ...], dict[str, Any]], Any]
    source: str
    names: dict[str, Any]

    def use(self, run: Callable[..., Any]) -> None:
        """From the next call on, the graph is run by this."""
        self.names["run"] = run


_used_up: Callable[[torch.Tensor], torch.Tensor] = torch._C._functions.DelayedError(_FREED_TEXT, 1)


def _freed(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as eager leaves it after backward(): it requires grad, and a second backward raises."""
    if torch.is_grad_enabled():
        return _used_up(tensor.requires_grad_())
    with torch.enable_grad():
        return _used_up(tensor.requires_grad_())


def _host_batch(batch: HostBatch) -> Callable[..., list[float | int]]:
    """Reads all numbers of a batch from their tensors with a few operations on one stacked tensor."""
    steps = batch.steps

    def read(*tensors: torch.Tensor) -> list[float | int]:
        with torch.no_grad():
            stacked = torch.stack(tensors)
            for func, amount in steps:
                stacked = func(stacked, amount)
            values: list[float | int] = stacked.tolist()
        return values

    return read


class _Emitter:
    """Writes one entry's code."""

    def __init__(self, plan: Generalised, lowered: Lowered, assumptions: Sequence[Assumption]) -> None:
        self.plan = plan
        self.lowered = lowered
        self.assumptions = assumptions
        self.source = Source()
        self.inputs: list[str] = []
        self._tensors: dict[Any, str] = {}
        self._raw: dict[Any, str] = {}
        self._owner: dict[str, int] = {}  # the tensor of the trace that each text stands for
        self._aliases: dict[int, str] = {}

    def guards(self) -> None:
        """Check every assumption; leave each input's name in ``inputs``."""
        source = self.source
        kinds: dict[Any, TensorKind] = {}
        for assumption in self.assumptions:
            if isinstance(assumption, TensorKind):
                kinds[assumption.origin] = assumption
            elif isinstance(assumption, AmbientState):
                self._ambient(assumption)
            elif isinstance(assumption, Distinct):
                pass
            elif not self._waits(assumption):
                source.require(assumption)
                if isinstance(assumption, ValueOf) and type(assumption.value) in (int, float):
                    source.give_number(assumption.origin, assumption.value)
        source.require_alike()
        held = (tensor for tensor in self.plan.pinned if tensor is not None)
        source.hookless.extend(tensor for tensor in held if tensor.requires_grad)
        source.require_empty()
        source.require_same_items()
        for origin, tensor in zip(self.plan.origins, self.plan.pinned, strict=True):
            self.inputs.append(source.constant(tensor) if tensor is not None else source.value(origin))
        checked = list(kinds.values())
        if checked:
            guards = torch._C._dynamo.guards.TensorGuards(
                *(k.example for k in checked), dynamic_dims_sizes=None, dynamic_dims_strides=None
            )
            names = [source.value(k.origin) for k in checked]
            source.fail_if(f"not {source.constant(guards.check)}({', '.join(names)})")
        for assumption in self.assumptions:
            if isinstance(assumption, Distinct):
                self._distinct(assumption)
        source.flush()

    def _distinct(self, assumption: Distinct) -> None:
        source = self.source
        fresh = [source.value(o) for o in assumption.fresh]
        held = source.constant(Memory(assumption.pinned))
        source.fail_if(" or ".join(f"{held}.holds({name}.data_ptr())" for name in fresh))
        if assumption.mutually:
            source.fail_if(f"not {source.constant(distinct)}([{', '.join(fresh)}])")

    def _waits(self, assumption: Assumption) -> bool:
        """Conditions on numbers that are first fetched from small input tensors."""
        expr = getattr(assumption, "expr", None)
        return expr is not None and bool(_fetches(expr))

    def _ambient(self, assumption: AmbientState) -> None:
        source, modes = self.source, assumption.modes
        source.fail_if(f"{source.constant(torch.is_grad_enabled)}() is not {modes.grad}")
        source.fail_if(f"{source.constant(torch.is_inference_mode_enabled)}() is not {modes.inference}")
        source.fail_if(f"{source.constant(torch._C._is_any_autocast_enabled)}() is not {bool(modes.autocast)}")
        dtype = source.constant(modes.default_dtype)
        source.fail_if(f"{source.constant(torch.get_default_dtype)}() is not {dtype}")
        deterministic = source.constant(torch._C._get_deterministic_algorithms)
        source.fail_if(f"{deterministic}() is not {assumption.deterministic}")
        source.fail_if(f"{source.constant(torch._C._len_torch_function_stack)}()")
        source.fail_if(f"{source.constant(torch._C._len_torch_dispatch_stack)}()")

    def host_numbers(self) -> str:
        """Fetch what the host needs before the graph runs; return the text of the list of slots."""
        source = self.source
        for batch in self.plan.batches:
            name = source.fresh("h")
            tensors = ", ".join(self.inputs[i] for i in batch.inputs)
            source.line(f"{name} = {source.constant(_host_batch(batch))}({tensors})")
            for position, fetch in enumerate(batch.fetches):
                source.give_fetch(fetch, f"{name}[{position}]")
        for assumption in self.assumptions:
            if self._waits(assumption):
                source.require(assumption)
        texts = [source.number(expr) for expr in self.plan.slots]
        source.flush()
        return f"[{', '.join(texts)}]"

    def hold(self) -> None:
        """Read everything that the commit needs of the heap as it is before the call."""
        events = [effect.event for effect in self.plan.effects]
        recipes = [self.plan.result, *(r for effect in self.plan.effects for r in effect.recipes)]
        for origin in origins_of(recipes, events):
            self.source.value(origin)
        # What depends on no tensor is computed now: if Python raises, nothing has happened yet.
        for recipe in recipes:
            for expr in numbers_in(recipe):
                self._number_early(expr)

    def _number_early(self, expr: Any) -> None:
        if isinstance(expr, Apply):
            if _fetches(expr):
                for part in expr.args:
                    self._number_early(part)
            else:
                self.source.number(expr)

    # -- after the run --------------------------------------------------------------------------------------------

    def raw(self, result: Result) -> str:
        """A result's tensor without its autograd dressing."""
        match result.source:
            case Fresh(index=index):
                return f"values[{index}]"
            case FromInput(index=index):
                return self.inputs[index]
            case ViewOf(base=base, size=size, stride=stride, offset=offset):
                key = (base, size, stride, offset)
                name = self._raw.get(key)
                if name is None:
                    name = self._raw[key] = self.source.fresh("w")
                    below = self.raw(Result(base))
                    source = self.source
                    if isinstance(base, FromInput):
                        # The commit runs in the caller's grad mode: a view of a parameter would have a history.
                        below = f"{below}.detach()"
                    source.line(
                        f"{name} = {below}.as_strided({size!r}, {stride!r}, {below}.storage_offset() + {offset})"
                    )
                return name
            case Nothing():
                return "None"

    def dressed(self, result: Result) -> str:
        """A result's tensor as eager would return it."""
        if isinstance(result.source, FromInput | Nothing) or result.state is GradState.PLAIN:
            return self.raw(result)
        name = self._tensors.get(result.source)
        if name is None:
            name = self._tensors[result.source] = self.source.fresh("t")
            self.source.line(f"{name} = {self._dress(self.raw(result), result.state)}")
        return name

    def _dress(self, raw: str, state: GradState) -> str:
        if state is GradState.PLAIN:
            return raw
        return f"{self.source.constant(_freed)}({raw})" if state is GradState.FREED else f"{raw}.requires_grad_()"

    def fetch(self, fetch: Fetch) -> str:
        result = self.lowered.outputs[self.plan.outputs[fetch.ref, fetch.after]]
        name = self.source.fresh("f")
        call = "item()" if fetch.index is None else f"reshape(-1)[{fetch.index}].item()"
        raw = f"{self.raw(result)}.{call}"
        self.source.line(f"{name} = {'int' if fetch.type is int else 'float'}({raw})")
        return name

    def tensor(self, number: int) -> str:
        result = self.lowered.outputs[self.plan.outputs["tensor", number]]
        name = self.dressed(result)
        if isinstance(result.source, Nothing) or self._owner.setdefault(name, number) == number:
            return name
        # To eager these are two objects on one memory (y and y.detach()).
        known = self._aliases.get(number)
        if known is None:
            known = self._aliases[number] = self.source.fresh("a")
            alias = f"{self.raw(result)}.detach()"
            self.source.line(f"{known} = {self._dress(alias, result.state)}")
        return known

    def commit(self) -> None:
        source = self.source
        commit = Commit(source, self.tensor, self.fetch)
        # All values first: an error while making one leaves the heap as it was.
        values = [[commit.value(r) for r in effect.recipes] for effect in self.plan.effects]
        result = commit.value(self.plan.result)
        for leaf in self.lowered.leaves:
            if leaf.changed:
                source.line(f"{self.inputs[leaf.index]}.grad = {self.dressed(leaf.result)}")
        for index, flag in self.lowered.requires_grad_set:
            source.line(f"{self.inputs[index]}.requires_grad_({flag})")
        for effect, texts in zip(self.plan.effects, values, strict=True):
            commit.effect(effect.event, texts)
        source.line(f"return {result}")


def _fetches(expr: Any) -> list[Fetch]:
    if isinstance(expr, Fetch):
        return [expr]
    found: list[Fetch] = []
    for part in getattr(expr, "args", ()):
        found.extend(_fetches(part))
    return found


def build_launch(plan: Generalised, lowered: Lowered, assumptions: Sequence[Assumption]) -> Launch:
    """Generate an entry's code. Raises Refused where its results cannot be what eager's are."""
    for result in (*lowered.outputs, *(leaf.result for leaf in lowered.leaves)):
        if result.inference:
            raise Refused(
                Refusal(
                    NOWHERE, "inference tensors leave the step", "a graph makes ordinary tensors.", "Use no_grad()."
                )
            )
    _refuse_live(plan, lowered)
    emitter = _Emitter(plan, lowered, assumptions)
    source = emitter.source
    source.indent = "        "
    emitter.guards()
    check_lines = list(source.lines)
    slots = emitter.host_numbers()
    emitter.hold()
    source.flush()
    guarded = list(source.lines)
    source.lines.clear()
    run_line = f"    values = run([{', '.join(emitter.inputs)}], {slots})"
    verdict = [] if lowered.flags is None else ["    if type(values) is Violated: return Violation(values)"]
    source.indent = "        "
    emitter.commit()
    # The tensors are updated by now, so the call cannot be made again: the caller must know.
    closing = ["    except BaseException as error: return Failure(error, True)"]
    # Guards may meet a path that has broken off; nothing after them may be taken for a miss.
    opening = ["    try:", *guarded, "        pass", "    except BROKEN: return MISS"]
    *commit_lines, return_line = source.lines
    tick = "    ticks.append(clock())"
    text = "\n".join(
        [
            "def call(args, kwargs):",
            *opening,
            run_line,
            *verdict,
            "    try:",
            *source.lines,
            *closing,
            "",
            "def timed(args, kwargs, ticks):",
            tick,
            *opening,
            tick,
            run_line,
            tick,
            *verdict,
            "    try:",
            *commit_lines,
            f"        result = {return_line.strip().removeprefix('return ')}",
            *closing,
            tick,
            "    return result",
            "",
            "def check(args, kwargs):",
            "    try:",
            *check_lines,
            "        pass",
            "    except BROKEN: return MISS",
            "    return True",
            "",
        ]
    )
    scope: dict[str, Any] = {
        "MISS": MISS,
        "BROKEN": _BROKEN,
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
    return Launch(scope["call"], scope["timed"], scope["check"], text, scope)


def _refuse_live(plan: Generalised, lowered: Lowered) -> None:
    fetched = {key for key in plan.outputs if key[0] != "tensor"}
    for key, position in plan.outputs.items():
        if key not in fetched and lowered.outputs[position].state is GradState.LIVE:
            raise Refused(
                Refusal(
                    NOWHERE,
                    "a tensor leaves the step with its backward pass still to come",
                    "the graph holds forward, backward and update as one.",
                    "Call backward() inside the step, or return loss.detach().",
                )
            )
