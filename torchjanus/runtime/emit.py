"""Emits the pieces of one entry's call: guards, inputs, host numbers, extern calls, results, and the commit.

Owns what is read when and under which name. How the pieces are put together is ``launch``'s affair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.autograd.graph import increment_version

from torchjanus.assumptions.assumption import (
    AmbientState,
    Assumption,
    Condition,
    Distinct,
    Memory,
    TensorKind,
    ValueOf,
    apart,
    distinct,
)
from torchjanus.assumptions.checks import autocast_regions, same_value
from torchjanus.assumptions.source import TURN, Source
from torchjanus.default_device import default_device
from torchjanus.errors import NOWHERE, Refusal, Refused
from torchjanus.execute.choice import choices_of
from torchjanus.execute.loop import loops_of
from torchjanus.graph.dimensions import is_size
from torchjanus.graph.generalise import Effect, Generalised
from torchjanus.graph.loop_lists import rows_of
from torchjanus.graph.lowered import Fresh, FromInput, GradState, Lowered, Nothing, Replaced, Result, ViewOf
from torchjanus.graph.risks import cannot_fail_within
from torchjanus.graph.walk_text import given_text
from torchjanus.heap import Commit, numbers_in, origins_of, write_all
from torchjanus.origin import Floats, Ints, Origin, Step
from torchjanus.runtime.reading import reader
from torchjanus.semantics.backward_code import LEAF_HOOKS
from torchjanus.trace.actions import Each, Extern, Several, name_of
from torchjanus.trace.recipes import FoundAt, Recipe, parts_of
from torchjanus.trace.values import Apply, Expr, Fetch, Read, Size, Turn, leaves

__all__ = ["Emitter", "Values"]

_FREED_TEXT = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    "freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify "
    "retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors "
    "after calling backward."
)
_used_up: Callable[[torch.Tensor], torch.Tensor] = torch._C._functions.DelayedError(_FREED_TEXT, 1)


def _freed(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as eager leaves it after backward(): it requires grad, and a second backward raises."""
    if torch.is_grad_enabled():
        return _used_up(tensor.requires_grad_())
    with torch.enable_grad():
        return _used_up(tensor.requires_grad_())


def _inference(tensor: torch.Tensor) -> torch.Tensor:
    """A graph makes ordinary tensors; which kind a tensor is cannot be changed, so it is copied."""
    with torch.inference_mode():
        return tensor.clone()


@dataclass(frozen=True, slots=True)
class Values:
    """The texts of what a commit writes: the call's result, the values of each effect, gradients by input. None for
    what the results of extern calls at commit decide. ``memory``: where inputs lie from then on."""

    result: str | None
    effects: list[tuple[Effect, list[str] | None]]
    gradients: list[tuple[int, str]]
    memory: list[tuple[Replaced, str]]


class Emitter:
    """Writes one entry's code, piece by piece, into ``source``."""

    def __init__(
        self, plan: Generalised, lowered: Lowered, assumptions: Sequence[Assumption], live: Sequence[int] = ()
    ) -> None:
        """``live``: which values of earlier parts the graph takes behind its inputs; they are in a list ``live``."""
        self.plan = plan
        self.live = live
        self.lowered = lowered
        self.assumptions = assumptions
        self.source = Source()
        self.schedule = plan.schedule
        self._inputs: dict[int, str] = {}
        self._tensors: dict[Any, str] = {}
        self._raw: dict[Any, str] = {}
        self._owner: dict[str, int] = {}  # the tensor of the trace that each text stands for
        self._aliases: dict[int, str] = {}
        self._inference: dict[int, str] = {}  # values that leave as inference tensors
        self._known: dict[int, str] = {}  # outputs that a cut has given already
        recipes = [plan.result, *(r for effect in plan.effects for r in effect.recipes)]
        self.source.sizes.update(plan.sizes)
        self.source.sizes.update((s.token, e) for s, e in zip(plan.measures, lowered.measures, strict=True))
        self._place = NOWHERE  # of the write or call whose values are made
        self._columns: dict[int, str] = {}  # lists of the rows that leave the call, by their stack
        self.commit_code = Commit(self.source, self._tensor, self._tensor_at, self._fetch, self._rows, recipes)

    # -- what is assumed ------------------------------------------------------------------------------------------

    def guards(self, after: int = 0, followed: bool = False) -> None:
        """Check the assumptions that wait for exactly this many extern calls; after the last one of a stage, its inputs
        can be taken. ``followed``: those that speak of what recursive calls append to lists."""
        source = self.source
        kinds: dict[Any, TensorKind] = {}
        of_sizes: list[Condition] = []  # asked when it is known that there are tensors of so many dimensions
        for assumption in self.assumptions:
            waiting = self.schedule.last(origin.waits_for for origin in assumption.origins())
            known = any(origin.is_grown for origin in assumption.origins()) == followed
            if isinstance(assumption, Distinct) or waiting != after or not known:
                continue
            if isinstance(assumption, TensorKind):
                kinds[assumption.origin] = assumption
            elif isinstance(assumption, AmbientState):
                self._ambient(assumption)
            elif isinstance(assumption, Condition) and any(is_size(origin) for origin in assumption.origins()):
                if not self._waits(assumption):
                    of_sizes.append(assumption)
            elif not self._waits(assumption):
                source.require(assumption)
                if isinstance(assumption, ValueOf) and type(assumption.value) in (int, float):
                    source.give_number(assumption.origin, assumption.value)
        if not after and not followed:
            places = [a.origin for a in self.assumptions if hasattr(a, "origin")]
            hooked = {place.base for place in places if place.key in LEAF_HOOKS}
            inputs = zip(self.plan.origins, self.plan.pinned, self.plan.program.inputs, strict=True)
            for origin, tensor, entry in inputs:
                if origin in hooked or origin.waits_for or origin.is_grown:
                    continue
                if tensor is not None and tensor.requires_grad:
                    source.hookless.append(tensor)
                elif tensor is None and entry.requires_grad:
                    name = source.value(origin)
                    source.fail_if(f"{name}._backward_hooks or {name}._post_accumulate_grad_hooks")
        source.require_collected()
        checked = list(kinds.values())
        if checked:
            sizes, strides = map(list, zip(*map(_held_geometry, checked), strict=True))
            guards = torch._C._dynamo.guards.TensorGuards(
                *map(_as_found, checked), dynamic_dims_sizes=sizes, dynamic_dims_strides=strides
            )
            names = [source.value(k.origin) for k in checked]
            source.fail_if(f"not {source.constant(guards.check)}({', '.join(names)})")
        source.flush()
        for kind in checked:
            for dim, stride in enumerate(kind.strides):
                if not isinstance(stride, int):
                    parts = (source.value(kind.origin.then(Step.SIZE, inner)) for inner in stride)
                    source.fail_if(f"{source.value(kind.origin)}.stride({dim}) != {' * '.join(parts)}")
        for condition in of_sizes:
            source.require(condition)
        source.flush()

    def _distinct(self, assumption: Distinct) -> None:
        source = self.source
        # A copy may lie anywhere, what it is made of may not.
        copied = [source.value(o.base) for o in assumption.fresh if o.key is rows_of and o.base is not None]
        fresh = [source.value(o) for o in assumption.fresh if o.key is not rows_of]
        held = source.constant(Memory(assumption.pinned))
        shared = [f"{held}.holds({name}.data_ptr())" for name in fresh]
        shared += [f"any([{held}.holds(part.data_ptr()) for part in {name}])" for name in copied]
        if assumption.moving:
            found = ", ".join([*fresh, *(f"*{name}" for name in copied)])
            source.fail_if(f"not {source.constant(apart)}([{found}], {source.constant(assumption.moving)})")
        source.fail_if(" or ".join(shared))
        if assumption.mutually:
            fresh += [f"*{name}" for name in copied]
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
        if modes.autocast:
            source.fail_if(f"{source.constant(autocast_regions)}() != {source.constant(modes.autocast)}")
        source.fail_if(f"{source.constant(torch.is_anomaly_enabled)}()")
        source.fail_if(f"{source.constant(torch._C._autograd._top_saved_tensors_default_hooks)}(True)")
        source.fail_if(f"{source.constant(torch._C._functorch.peek_interpreter_stack)}()")
        source.fail_if(f"{source.constant(torch.autograd.forward_ad)}._current_level >= 0")
        dtype = source.constant(modes.default_dtype)
        source.fail_if(f"{source.constant(torch.get_default_dtype)}() is not {dtype}")
        deterministic = source.constant(torch._C._get_deterministic_algorithms)
        source.fail_if(f"{deterministic}() is not {assumption.deterministic}")
        function_modes = source.constant(torch._C._len_torch_function_stack)
        if assumption.device is None:
            source.fail_if(f"{function_modes}()")
        else:
            device, now = source.constant(assumption.device), source.constant(default_device)
            source.fail_if(f"{function_modes}() != 1 or {now}() != {device}")
        source.fail_if(f"{source.constant(torch._C._len_torch_dispatch_stack)}()")

    def follow(self) -> None:
        """Follow the recursive calls of the step: where one takes a way that was not seen, the call misses."""
        source = self.source
        for number, grove in enumerate(self.plan.groves):
            step = "".join(f"{source.value(origin)}, " for origin in grove.reads)
            roots = [f"({''.join(f'{given_text(source, recipe)}, ' for _, recipe in given)})" for given in grove.given]
            starts = "".join(f"{given_text(source, recipe)}, " for recipe in grove.starts)
            follow = source.constant(grove.follow)
            source.line(f"forest{number} = {follow}(({step}), ({''.join(f'{root}, ' for root in roots)}), ({starts}))")
            source.fail_if(f"forest{number} is None")
        if self.plan.groves:
            owners = "".join(f"{source.constant(g.invocation)}: forest{n}, " for n, g in enumerate(self.plan.groves))
            source.line(f"forests = {{{owners}}}")
        lists = [(number, *one) for number, grove in enumerate(self.plan.groves) for one in grove.lists]
        for number, origin, which in lists:
            name = source.fresh("l")
            source.line(f"{name} = forest{number}.results[{which}]")
            source.give(origin, name)
        numbers = [(number, *one) for number, grove in enumerate(self.plan.groves) for one in grove.numbers]
        for number, origin, call, which in numbers:
            name = source.fresh("l")
            source.line(f"{name} = forest{number}.numbers[{call}][{which}]")
            source.give(origin, name)
        counts = [(number, *count) for number, grove in enumerate(self.plan.groves) for count in grove.counts]
        for number, origin, which in counts:
            name = source.fresh("l")
            source.line(f"{name} = forest{number}.counts[{which}]")
            source.give(origin, name)
        if lists or numbers or counts:
            source.flush()
            self.guards(followed=True)

    # -- before a part of the graph ---------------------------------------------------------------------------------

    def externs(self, stage: int) -> None:
        """Make this stage's extern calls, each followed by the assumptions on what it gave."""
        source = self.source
        events = self.schedule.stages[stage]
        for event in events:
            effect = next(e for e in self.plan.effects if e.event is event)
            texts = [self.commit_code.value(recipe) for recipe in effect.recipes]
            text = self.commit_code.extern_text(event, texts, self._making(event))
            name = f"x{event.number}"
            source.line(f"{name} = {text}")
            source.give(Origin.extern(event.number, ""), name)
            self.guards(event.number + 1)
        if any(event.effects.world for event in events):
            self._check_again()

    def _making(self, event: Extern) -> str:
        effects = self.source.constant(event.effects)
        if isinstance(event, Several):
            return f"journal.several({event.number}, {self.source.number(event.count)}, {effects}, {event.draws}, "
        return f"journal.make({event.number}, {effects}, {event.draws}, "

    def _check_again(self) -> None:
        """Unknown code has run: what was found before must still be there."""
        source = self.source
        source.fail_if("check(args, kwargs) is MISS")
        fresh = [o for o, t in zip(self.plan.origins, self.plan.pinned, strict=True) if t is None]
        for origin in (*self.plan.varying, *fresh):
            if not origin.waits_for and not origin.is_grown:
                same = source.constant(_same)
                source.fail_if(f"not {same}({source.constant(origin.read)}(args, kwargs), {source.value(origin)})")
        source.flush()

    def inputs(self, stage: int) -> str:
        """The text of the list of inputs that this stage brings."""
        source = self.source
        for index, (origin, tensor) in enumerate(zip(self.plan.origins, self.plan.pinned, strict=True)):
            if self.plan.program.inputs[index].stage == stage:
                self._inputs[index] = source.constant(tensor) if tensor is not None else source.value(origin)
        if stage == len(self.schedule.cuts):
            for assumption in self.assumptions:
                if isinstance(assumption, Distinct):
                    self._distinct(assumption)
        source.flush()
        taken = len(self.lowered.program.inputs) - len(self.live)  # others are only read for numbers
        entries = self.plan.program.inputs[:taken]
        texts = [self._inputs[index] for index, entry in enumerate(entries) if entry.stage == stage]
        return f"[{', '.join([*texts, *(f'live[{position}]' for position in self.live)])}]"

    def host_numbers(self, stage: int) -> str:
        """Fetch what the host needs before this part of the graph; return the text of the list of its slots."""
        source = self.source
        if stage == 0:
            for batch in self.plan.batches:
                name = source.fresh("h")
                tensors = ", ".join(self._inputs[i] for i in batch.inputs)
                source.line(f"{name} = {source.constant(reader(batch))}({tensors})")
                for position, fetch in enumerate(batch.fetches):
                    source.give_fetch(fetch, f"{name}[{position}]")
            for assumption in self.assumptions:
                if self._waits(assumption):
                    source.require(assumption)
        kinds = self.lowered.program.slots
        texts = [source.number(e) for e, kind in zip(self.plan.slots, kinds, strict=True) if kind.stage == stage]
        source.flush()
        return f"[{', '.join(texts)}]"

    def hold(self, stage: int) -> None:
        """Read everything that the commit needs of the heap as it is before the call, and of what this stage's extern
        calls gave."""
        recipes = [self.plan.result, *(r for effect in self.plan.effects for r in effect.recipes)]
        for origin in origins_of(recipes, [effect.event for effect in self.plan.effects]):
            if self.schedule.stage_of(origin.waits_for) == stage:
                self.source.value(origin)
        # What depends on no tensor is computed now: if Python raises, nothing has happened yet.
        for expr in (*self.plan.computed, *(expr for recipe in recipes for expr in numbers_in(recipe))):
            self._number_early(expr, stage)

    def _number_early(self, expr: Any, stage: int) -> None:
        if isinstance(expr, Apply):
            known = max((self._stage_of(leaf) for leaf in leaves(expr)), default=0)
            by_turn = any(isinstance(leaf, Turn) for leaf in leaves(expr))
            if by_turn or known != stage or not all(map(self.source.knows, _fetches(expr))):
                for part in expr.args:
                    self._number_early(part, stage)
            else:
                self.source.number(expr)

    def _stage_of(self, leaf: Expr) -> int:
        told = self.source.sizes.get(leaf.token) if isinstance(leaf, Size) else None
        if isinstance(told, Expr):  # a size of what the graph makes, which may follow that of an extern call's result
            return max(map(self._stage_of, leaves(told)), default=0)
        return self.schedule.stage_of(leaf.origin.waits_for) if isinstance(leaf, Read) else 0

    def give_cut(self, stage: int, name: str) -> None:
        """What the graph gave at the cut before this stage is in this list."""
        for position, number in enumerate(self.lowered.program.cuts[stage - 1].outputs):
            self._known[number] = f"{name}[{position}]"

    # -- results of the graph ---------------------------------------------------------------------------------------

    def raw(self, result: Result) -> str:
        """A result's tensor without its autograd dressing."""
        match result.source:
            case Fresh(index=index):
                return self._as_inference(index) if result.inference else f"values[{index}]"
            case FromInput(index=index):
                return self._inputs[index]
            case ViewOf(base=base, size=size, stride=stride, offset=offset):
                key = (base, size, stride, offset, result.inference)
                name = self._raw.get(key)
                if name is None:
                    name = self._raw[key] = self.source.fresh("w")
                    below = self.raw(Result(base, inference=result.inference))
                    source = self.source
                    if isinstance(base, FromInput):
                        # The commit runs in the caller's grad mode: a view of a parameter would have a history.
                        below = f"{below}.detach()"
                    shape, step = (f"({''.join(f'{source.number(part)}, ' for part in p)})" for p in (size, stride))
                    at = source.number(offset)
                    source.line(f"{name} = {below}.as_strided({shape}, {step}, {below}.storage_offset() + {at})")
                return name
            case Nothing():
                return "None"

    def _as_inference(self, index: int) -> str:
        """Value ``index`` as eager's inference mode makes it."""
        name = self._inference.get(index)
        if name is None:
            name = self._inference[index] = self.source.fresh("i")
            self.source.line(f"{name} = {self.source.constant(_inference)}(values[{index}])")
        return name

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

    def _output(self, number: int) -> str:
        known = self._known.get(number)
        if known is not None:
            return known
        result = replace(self.lowered.outputs[number], inference=False)
        # What is fetched from an input that lies elsewhere from now on is what is there.
        moved = (one.result for one in self.lowered.replaced if FromInput(one.index) == result.source)
        return self.raw(next(moved, result))

    def _fetch(self, fetch: Fetch) -> str:
        if fetch.each:
            name, output = self.source.fresh("c"), self._output(self.plan.outputs[fetch.ref, fetch.after])
            listed = f"{output}.unbind(0)"
            if fetch.type in (int, float, bool):
                kind, index = fetch.type.__name__, fetch.index or 0
                listed = f"list(map({kind}, {output}.reshape({output}.size(0), -1)[:, {index}].tolist()))"
            self.source.line(f"{name} = {listed}")
            return name
        if fetch.type not in (int, float, bool):  # the tensor itself, to be shown
            return self._output(self.plan.outputs[fetch.ref, fetch.after])
        name = self.source.fresh("f")
        call = "item()" if fetch.index is None else f"reshape(-1)[{fetch.index}].item()"
        raw = f"{self._output(self.plan.outputs[fetch.ref, fetch.after])}.{call}"
        self.source.line(f"{name} = {fetch.type.__name__}({raw})")
        return name

    def _rows(self, number: int, alone: bool) -> str:
        """The name of a list of tensors of their own: the rows of what is stacked. ``alone``: see RowOf."""
        name = self._columns.get(number)
        if name is None:
            result = self.lowered.outputs[self.plan.outputs["tensor", number]]
            if result.state is not GradState.PLAIN and not alone:
                what = "tensors that rounds of a loop hand out have a backward graph"
                why = "The loop is one function of torch, with one backward graph for all rounds."
                raise Refused(Refusal(self._place, what, why, "Hand out tensor.detach()."))
            name = self._columns[number] = self.source.fresh("r")
            row = self._dress("row.clone()", result.state)
            self.source.line(f"{name} = [{row} for row in {self.raw(result)}.unbind(0)]")
        return name

    def _tensor_at(self, number: int, after: int) -> str:
        return self._output(self.plan.outputs["at", number, after])

    def _tensor(self, number: int) -> str:
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

    # -- the commit -------------------------------------------------------------------------------------------------

    def values(self) -> Values:
        """Make all values of the commit: an error while making one leaves the heap as it was. What an extern call at
        commit gives is not known before that call."""
        for expr in self.plan.risky:
            self.commit_code.number(expr)
        for number, grove in enumerate(self.plan.groves):
            if grove.writes:
                self.source.line(f"written{number} = {self.source.constant(grove.written)}(forest{number})")
        effects = [e for e in self.plan.effects if not self._is_made(e)]
        texts = [None if self._comes_late(e.recipes) else self._texts(e) for e in effects]
        result = None if self._comes_late((self.plan.result,)) else self.commit_code.value(self.plan.result)
        gradients = [(leaf.index, self.dressed(leaf.result)) for leaf in self.lowered.leaves if leaf.changed]
        memory = [(one, self.raw(one.result)) for one in self.lowered.replaced]
        for output in self.lowered.outputs if memory else ():
            if isinstance(output.source, ViewOf):
                self.raw(output)  # now: where inputs lie is about to change
        return Values(result, list(zip(effects, texts, strict=True)), gradients, memory)

    def effects(self, values: Values) -> str:
        """The writes and the extern calls that are left, in program order. Returns the text of the call's result."""
        source = self.source
        for one, text in values.memory:
            source.line(f"{self._inputs[one.index]}.data = {text}")
            if one.changed and one.index not in self.lowered.mutated:
                source.line(f"{source.constant(increment_version)}({self._inputs[one.index]})")
        for index in self.lowered.restored:
            source.line(f"{source.constant(increment_version)}({self._inputs[index]})")
        for index, text in values.gradients:
            source.line(f"{self._inputs[index]}.grad = {text}")
        for index, flag in self.lowered.requires_grad_set:
            source.line(f"{self._inputs[index]}.requires_grad_({flag})")
        for number, grove in enumerate(self.plan.groves):
            if grove.writes:
                source.line(f"{source.constant(write_all)}(written{number})")
        later = ""  # extern calls that rounds make, beside those of the first ones
        for effect, known in values.effects:
            event, texts = effect.event, self._texts(effect) if known is None else known
            if isinstance(event, Each):
                self._rounds(effect, texts[0], later)
                if event.externs:
                    later += f" + {event.externs} * len({texts[0]})"
                continue
            name = f"x{event.number}" if isinstance(event, Extern) else None
            self.commit_code.effect(event, texts, name, later)
            if isinstance(event, Extern):
                source.give(Origin.extern(event.number, name_of(event.func)), f"x{event.number}")
        return self.commit_code.value(self.plan.result) if values.result is None else values.result

    def _rounds(self, effect: Effect, rows: str, later: str) -> None:
        """The writes and extern calls of a loop's rounds. ``rows``: a list of the values of each."""
        assert isinstance(effect.event, Each)
        names = [f"u{number}" for number in range(len(effect.recipes))]
        more = f" + {effect.event.externs} * {TURN}"
        with self.source.block(f"for {TURN}, ({''.join(f'{name}, ' for name in names)}) in enumerate({rows}):"):
            given = iter(names)
            for event, count in zip(effect.event.events, effect.parts, strict=True):
                self.commit_code.effect(event, [next(given) for _ in range(count)], None, f"{later}{more}")

    @property
    def changes(self) -> int:
        """How many things a call changes, one after the other."""
        lowered = self.lowered
        gradients = sum(leaf.changed for leaf in lowered.leaves)
        effects = sum(2 if effect.parts else not self._is_made(effect) for effect in self.plan.effects)
        calls = int(any(grove.writes for grove in self.plan.groves))
        flags = len(lowered.requires_grad_set) + len(lowered.replaced) + len(lowered.restored)
        return bool(lowered.mutated) + lowered.random + calls + gradients + flags + effects

    def thrown(self) -> list[str]:
        """The lines that throw large gradients away before the graph runs: they need not lie about while it makes the
        new ones. A call that fails is made again by Python, which throws them away, too: those that come after
        something else are let go only if that cannot fail."""
        if self.schedule.early:
            return []
        lowered, inputs = self.lowered, self.lowered.program.inputs
        leaves = [leaf for leaf in lowered.leaves if leaf.thrown and inputs[leaf.index].example.nbytes >= _LARGE]
        lines = [f"{self._inputs[leaf.index]}.grad = None" for leaf in leaves if not leaf.later]
        later = [f"{self._inputs[leaf.index]}.grad = None" for leaf in leaves if leaf.later]
        program = lowered.program
        limits = cannot_fail_within(lowered, loops_of(program), choices_of(program)) if later else None
        if limits is not None:
            asked = ", ".join(f"{number}: {self._inputs[number]}" for number in limits.inputs)
            held = f"{self.source.constant(limits.hold)}({{{asked}}})" if asked else "True"
            lines += [f"if {held}:", *(f"    {line}" for line in later)]
        return lines

    def mutated(self) -> list[tuple[int, str]]:
        """The numbers and the names of the inputs that the graph updates."""
        return [(index, self._inputs[index]) for index in self.lowered.mutated]

    def _is_made(self, effect: Effect) -> bool:
        return isinstance(effect.event, Extern) and effect.event.number in self.schedule.early

    def _texts(self, effect: Effect) -> list[str]:
        self._place = effect.event.place
        if isinstance(effect.event, Each):
            row = lambda texts: f"({''.join(f'{text}, ' for text in texts)})"  # noqa: E731
            return [self.commit_code.repeated(effect.event.count, effect.recipes, row)]
        return [self.commit_code.value(recipe) for recipe in effect.recipes]

    def _comes_late(self, recipes: Sequence[Recipe]) -> bool:
        last = len(self.schedule.stages)
        return any(self.schedule.stage_of(origin.waits_for) == last for origin in _read_by(recipes))


_LARGE = 1 << 16  # bytes


def _as_found(kind: TensorKind) -> torch.Tensor:
    """The example as it was when the call began: the call may have asked for its gradient, or forbidden it."""
    example, requires_grad = kind.example, kind.detail[-2]
    if example.requires_grad == requires_grad:
        return example
    if isinstance(example, torch.nn.Parameter):
        return torch.nn.Parameter(example.detach(), requires_grad)
    return example.detach().requires_grad_(requires_grad)


def _held_geometry(kind: TensorKind) -> tuple[list[int | None], list[int | None]]:
    """The sizes and strides that a tensor is checked for; None where they may change."""
    sizes, strides = kind.detail[2:4]
    if not kind.free:
        return list(sizes), list(strides) if isinstance(strides, tuple) else []
    held = [None if free else size for free, size in zip(kind.free, sizes, strict=True)]
    return held, [stride if isinstance(stride, int) else None for stride in kind.strides]


def _read_by(recipes: Sequence[Recipe]) -> Iterator[Origin]:
    for recipe in recipes:
        yield from (part.origin for part in parts_of(recipe) if isinstance(part, FoundAt))
        for expr in numbers_in(recipe):
            yield from (leaf.origin for leaf in leaves(expr) if isinstance(leaf, Read))


def _same(now: Any, then: Any) -> bool:
    if isinstance(then, Ints | Floats):
        return type(now) is type(then) and repr(now) == repr(then)
    return now is then or (isinstance(then, int | float | str) and same_value(now, then))


def _fetches(expr: Any) -> list[Fetch]:
    if isinstance(expr, Fetch):
        return [expr]
    found: list[Fetch] = []
    for part in getattr(expr, "args", ()):
        found.extend(_fetches(part))
    return found
