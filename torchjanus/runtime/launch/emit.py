"""Generates the pieces of one entry's call: guards, recursive calls, extern calls, inputs, host numbers, and the
commit.

It decides in which order the heap is read and written. ``launch`` puts the pieces together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch.autograd.graph import increment_version

from torchjanus.core.access_path import AccessPath, Floats, Ints
from torchjanus.execute.regions.loop import loops_of
from torchjanus.execute.regions.switch import switches_of
from torchjanus.graph.generalize.generalize import Effect, EntryPlan
from torchjanus.graph.ir.lowered import Lowered, Replaced, ViewOf
from torchjanus.graph.lowering.risks import cannot_fail_within
from torchjanus.graph.recursion.traversal.text import given_text
from torchjanus.host.assumption import Assumption
from torchjanus.host.checks import same_value
from torchjanus.host.deferred_writes import Commit, access_paths_of, write_all
from torchjanus.host.source import ITERATION, Source
from torchjanus.runtime.launch.guards import Guards
from torchjanus.runtime.launch.number_formulas import formulas
from torchjanus.runtime.launch.reading import reader
from torchjanus.runtime.launch.results import Results
from torchjanus.semantics.known.host_memory import Snapshot
from torchjanus.trace.actions import BatchedExtern, Extern, HostLoop, name_of
from torchjanus.trace.operands import numbers_in
from torchjanus.trace.recipes import Recipe, TensorOf, parts_of
from torchjanus.trace.values import Apply, Expr, Fetch, InductionVariable, Read, Size, depends_on, leaves

__all__ = ["Emitter", "Values"]

_LARGE = 1 << 16  # bytes


@dataclass(frozen=True, slots=True)
class Values:
    """Source texts of what a commit writes: the call's result, the values of each effect, gradients by input. None
    stands for values that depend on results of extern calls at commit. ``memory``: the new memory of inputs."""

    result: str | None
    effects: list[tuple[Effect, list[str] | None]]
    gradients: list[tuple[int, str]]
    memory: list[tuple[Replaced, str]]


class Emitter:
    """Writes one entry's code, piece by piece, into ``source``."""

    def __init__(
        self, plan: EntryPlan, lowered: Lowered, assumptions: Sequence[Assumption], live: Sequence[int] = ()
    ) -> None:
        """``live``: positions, in the list ``live`` of the generated code, of the values of earlier parts that the
        graph takes after its inputs."""
        self.plan = plan
        self.live = live
        self.lowered = lowered
        self.source = Source()
        self.source.sizes.update(plan.sizes)
        self.source.sizes.update((s.token, e) for s, e in zip(plan.measures, lowered.measures, strict=True))
        self.schedule = plan.schedule
        self.guards = Guards(self.source, plan, assumptions, lowered.pullback is not None)
        self._inputs: dict[int, str] = {}
        recipes = [plan.result, *(r for effect in plan.effects for r in effect.recipes)]
        tensors = [part for recipe in recipes for part in parts_of(recipe) if isinstance(part, TensorOf)]
        nodes = {tensor.ref.number: tensor.node for tensor in tensors}
        self.results = Results(self.source, plan, lowered, self._inputs, nodes)
        self._commit = Commit(self.source, self.results, recipes)

    # -- before a part of the graph ---------------------------------------------------------------------------------

    def follow(self) -> None:
        """Schedule the recursive calls of the step. The call misses if one takes a variant that was not seen."""
        source = self.source
        for number, call_group in enumerate(self.plan.call_groups):
            step = "".join(f"{source.value(access_path)}, " for access_path in call_group.reads)
            roots = [
                f"({''.join(f'{given_text(source, recipe)}, ' for _, recipe in given)})" for given in call_group.given
            ]
            starts = "".join(f"{given_text(source, recipe)}, " for recipe in call_group.starts)
            follow = source.constant(call_group.follow)
            source.line(f"forest{number} = {follow}(({step}), ({''.join(f'{root}, ' for root in roots)}), ({starts}))")
            source.fail_if(f"forest{number} is None")
        if self.plan.call_groups:
            owners = "".join(
                f"{source.constant(g.invocation)}: forest{n}, " for n, g in enumerate(self.plan.call_groups)
            )
            source.line(f"forests = {{{owners}}}")
        call_groups = [*enumerate(self.plan.call_groups)]
        found = [
            *((o, f"forest{n}.results[{which}]") for n, call_group in call_groups for o, which in call_group.lists),
            *(
                (o, f"forest{n}.numbers[{call}][{which}]")
                for n, call_group in call_groups
                for o, call, which in call_group.numbers
            ),
            *((o, f"forest{n}.counts[{which}]") for n, call_group in call_groups for o, which in call_group.counts),
        ]
        for access_path, text in found:
            name = source.fresh("l")
            source.line(f"{name} = {text}")
            source.give(access_path, name)
        if found:
            source.flush()
            self.guards.require(followed=True)

    def externs(self, stage: int) -> None:
        """Make this stage's extern calls, and check the assumptions on the result after each."""
        source = self.source
        events = self.schedule.stages[stage]
        unknown = any(event.effects.world or event.effects.user_code for event in events)
        if unknown:
            self._read_before()
        for event in events:
            effect = next(e for e in self.plan.effects if e.event is event)
            texts = [self._commit.value(recipe) for recipe in effect.recipes]
            text = self._commit.extern_text(event, texts, self._making(event))
            name = f"x{event.number}"
            source.line(f"{name} = {text}")
            source.give(AccessPath.extern(event.number, ""), name)
            self.guards.require(event.number + 1)
        if unknown:
            self._check_again()

    def _making(self, event: Extern) -> str:
        effects = self.source.constant(event.effects)
        if isinstance(event, BatchedExtern):
            return f"journal.several({event.number}, {self.source.number(event.count)}, {effects}, {event.draws}, "
        if event.overwrites:
            return f"journal.overwrite({self.source.constant(Snapshot)}, {event.number}, {effects}, {event.draws}, "
        return f"journal.make({event.number}, {effects}, {event.draws}, "

    def _read_before(self) -> None:
        """Read the graph's inputs before unknown code runs."""
        for access_path in self._given():
            self.source.value(access_path)
        self.source.flush()

    def _given(self) -> Iterator[AccessPath]:
        """Return the access paths, as of before the call, of what the graph is given."""
        fresh = [o for o, t in zip(self.plan.access_paths, self.plan.pinned, strict=True) if t is None]
        return (o for o in (*self.plan.varying, *fresh) if not o.waits_for and not o.is_grown)

    def _check_again(self) -> None:
        """Check that unknown code has not changed what was read before it."""
        source = self.source
        source.fail_if("check(args, kwargs) is MISS")
        for access_path in self._given():
            same = source.constant(_same)
            source.fail_if(
                f"not {same}({source.constant(access_path.read)}(args, kwargs), {source.value(access_path)})"
            )
        source.flush()

    def inputs(self, stage: int) -> str:
        """Return the text of the list of this stage's inputs."""
        source = self.source
        for index, (access_path, tensor) in enumerate(zip(self.plan.access_paths, self.plan.pinned, strict=True)):
            if self.plan.program.inputs[index].stage == stage:
                self._inputs[index] = source.constant(tensor) if tensor is not None else source.value(access_path)
        if stage == len(self.schedule.cuts):
            self.guards.require_apart()
        source.flush()
        taken = len(self.lowered.program.inputs) - len(self.live)  # further inputs are only read for numbers
        entries = self.plan.program.inputs[:taken]
        texts = [self._inputs[index] for index, entry in enumerate(entries) if entry.stage == stage]
        return f"[{', '.join([*texts, *(f'live[{position}]' for position in self.live)])}]"

    def host_numbers(self, stage: int) -> str:
        """Fetch the numbers that the host needs before this part of the graph. Returns the text of the list of its
        slots."""
        source = self.source
        names = [source.fresh("h") for _ in self.plan.batches] if stage == 0 else []
        if stage == 0:
            for name, batch in zip(names, self.plan.batches, strict=True):
                tensors = ", ".join(self._inputs[i] for i in batch.inputs)
                source.line(f"{name} = {source.constant(reader(batch))}({tensors})")
                for position, fetch in enumerate(batch.fetches):
                    source.give_fetch(fetch, f"{name}[{position}]")
            self.guards.require_fetched()
        wanted = [e for e, k in zip(self.plan.slots, self.lowered.program.slots, strict=True) if k.stage == stage]
        if stage == 0:
            for name, batch in zip(names, self.plan.batches, strict=True):
                self._compute(wanted, name, batch.fetches)
        texts = [source.number(expr) for expr in wanted]
        source.flush()
        return f"[{', '.join(texts)}]"

    def _compute(self, wanted: Sequence[Any], name: str, fetches: Sequence[Fetch]) -> None:
        """Compute the values of a formula for all of the fetched numbers ``name`` to which it is applied."""
        source = self.source
        for formula in formulas(fetches, wanted):
            given = [name, *(source.number(other) for other in formula.others)]
            rows = source.fresh("t")
            source.line(f"{rows} = {source.constant(formula.compiled(fetches))}({', '.join(given)})")
            for place, row in enumerate(formula.computed):
                for column, expr in enumerate(row):
                    source.give_expression(expr, f"{rows}[{place}][{column}]")

    def hold(self, stage: int) -> None:
        """Read all that the commit needs of the heap before the call, and of results of this stage's extern calls."""
        recipes = [self.plan.result, *(r for effect in self.plan.effects for r in effect.recipes)]
        for access_path in access_paths_of(recipes, [effect.event for effect in self.plan.effects]):
            if self.schedule.stage_of(access_path.waits_for) == stage:
                self.source.value(access_path)
        # What depends on no tensor is computed now: if Python raises here, nothing has happened yet.
        for expr in (*self.plan.computed, *(expr for recipe in recipes for expr in numbers_in(recipe))):
            self._number_early(expr, stage)

    def _number_early(self, expr: Any, stage: int) -> None:
        if isinstance(expr, Apply):
            known = max((self._stage_of(leaf) for leaf in leaves(expr)), default=0)
            by_iteration = depends_on(expr, InductionVariable)
            fetches = (leaf for leaf in leaves(expr) if isinstance(leaf, Fetch))
            if by_iteration or known != stage or not all(map(self.source.knows, fetches)):
                for part in expr.args:
                    self._number_early(part, stage)
            else:
                self.source.number(expr)

    def _stage_of(self, leaf: Expr) -> int:
        formula = self.source.sizes.get(leaf.token) if isinstance(leaf, Size) else None
        # a size of a value of the graph, which may depend on that of an extern call's result
        if isinstance(formula, Expr):
            return max(map(self._stage_of, leaves(formula)), default=0)
        return self.schedule.stage_of(leaf.access_path.waits_for) if isinstance(leaf, Read) else 0

    # -- the commit -------------------------------------------------------------------------------------------------

    def values(self) -> Values:
        """Make all values of the commit: an error here leaves the heap unchanged. Values that depend on an extern call
        at commit are not known before that call."""
        for expr in self.plan.risky:
            self._commit.number(expr)
        for number, call_group in enumerate(self.plan.call_groups):
            if call_group.writes:
                self.source.line(f"written{number} = {self.source.constant(call_group.written)}(forest{number})")
        effects = [e for e in self.plan.effects if not self._is_made(e)]
        texts = [None if self._comes_late(e.recipes) else self._texts(e) for e in effects]
        result = None if self._comes_late((self.plan.result,)) else self._commit.value(self.plan.result)
        gradients = [(leaf.index, self.results.dressed(leaf.result)) for leaf in self.lowered.leaves if leaf.changed]
        memory = [(one, self.results.raw(one.result)) for one in self.lowered.replaced]
        for output in self.lowered.outputs if memory else ():
            if isinstance(output.source, ViewOf):
                self.results.raw(output)  # now, since the memory of inputs is about to change
        return Values(result, list(zip(effects, texts, strict=True)), gradients, memory)

    def effects(self, values: Values) -> str:
        """Make the remaining writes and extern calls, in program order. Returns the text of the call's result."""
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
        for number, call_group in enumerate(self.plan.call_groups):
            if call_group.writes:
                source.line(f"{source.constant(write_all)}(written{number})")
        later = ""  # number of extern calls that iterations make, without those of the first iterations
        for effect, known in values.effects:
            event, texts = effect.event, self._texts(effect) if known is None else known
            if isinstance(event, HostLoop):
                self._iterations(effect, texts[0], later)
                if event.externs:
                    later += f" + {event.externs} * len({texts[0]})"
                continue
            name = f"x{event.number}" if isinstance(event, Extern) else None
            self._commit.effect(event, texts, name, later)
            if isinstance(event, Extern):
                source.give(AccessPath.extern(event.number, name_of(event.func)), f"x{event.number}")
        return self._commit.value(self.plan.result) if values.result is None else values.result

    def _iterations(self, effect: Effect, rows: str, later: str) -> None:
        """Make the writes and extern calls of a loop's iterations. ``rows``: the text of a list of each iteration's
        values."""
        assert isinstance(effect.event, HostLoop)
        names = [f"u{number}" for number in range(len(effect.recipes))]
        more = f" + {effect.event.externs} * {ITERATION}"
        each = self.source.fresh("i")  # an iterator, so that a commit can be completed from within an iteration
        self.source.line(f"{each} = enumerate({rows})")
        with self.source.block(f"for {ITERATION}, ({''.join(f'{name}, ' for name in names)}) in {each}:"):
            given = iter(names)
            for event, count in zip(effect.event.events, effect.parts, strict=True):
                self._commit.effect(event, [next(given) for _ in range(count)], None, f"{later}{more}")

    @property
    def changes(self) -> int:
        """How many separate changes a call makes."""
        lowered = self.lowered
        gradients = sum(leaf.changed for leaf in lowered.leaves)
        effects = sum(2 if effect.parts else not self._is_made(effect) for effect in self.plan.effects)
        calls = int(any(call_group.writes for call_group in self.plan.call_groups))
        flags = len(lowered.requires_grad_set) + len(lowered.replaced) + len(lowered.restored)
        return bool(lowered.mutated) + lowered.random + calls + gradients + flags + effects

    def thrown(self) -> list[str]:
        """Return the lines that release large gradients before the graph runs, so that they do not occupy memory beside
        the new ones. A call that fails is made by Python, which releases them too; gradients released later in the
        program are released early only if what comes before cannot fail."""
        if self.schedule.early:
            return []
        lowered, inputs = self.lowered, self.lowered.program.inputs
        leaves = [leaf for leaf in lowered.leaves if leaf.thrown and inputs[leaf.index].example.nbytes >= _LARGE]
        lines = [f"{self._inputs[leaf.index]}.grad = None" for leaf in leaves if not leaf.later]
        later = [f"{self._inputs[leaf.index]}.grad = None" for leaf in leaves if leaf.later]
        program = lowered.program
        limits = cannot_fail_within(lowered, loops_of(program), switches_of(program)) if later else None
        if limits is not None:
            asked = ", ".join(f"{number}: {self._inputs[number]}" for number in limits.inputs)
            held = f"{self.source.constant(limits.hold)}({{{asked}}})" if asked else "True"
            lines += [f"if {held}:", *(f"    {line}" for line in later)]
        return lines

    def uncounted(self) -> str:
        """Return the names of the inputs that the graph updates and whose versions do not increase, as in a tuple."""
        inputs = self.plan.program.inputs
        names = (self._inputs[k] for k in self.lowered.uncounted if not inputs[k].example.is_inference())
        return "".join(f"{name}, " for name in names)

    def mutated(self) -> list[tuple[int, str]]:
        """Return the numbers and the names of the inputs that the graph updates."""
        return [(index, self._inputs[index]) for index in self.lowered.mutated]

    def _is_made(self, effect: Effect) -> bool:
        return isinstance(effect.event, Extern) and effect.event.number in self.schedule.early

    def _texts(self, effect: Effect) -> list[str]:
        self.results.place = effect.event.place
        if isinstance(effect.event, HostLoop):
            row = lambda texts: f"({''.join(f'{text}, ' for text in texts)})"  # noqa: E731
            return [self._commit.repeated(effect.event.count, effect.recipes, row)]
        return [self._commit.value(recipe) for recipe in effect.recipes]

    def _comes_late(self, recipes: Sequence[Recipe]) -> bool:
        last = len(self.schedule.stages)
        return any(
            self.schedule.stage_of(access_path.waits_for) == last for access_path in access_paths_of(recipes, ())
        )


def _same(now: Any, then: Any) -> bool:
    if isinstance(then, Ints | Floats):
        return type(now) is type(then) and repr(now) == repr(then)
    return now is then or (isinstance(then, int | float | str) and same_value(now, then))
