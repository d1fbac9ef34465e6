"""Shadow checks: an entry's graph makes a call on copies, the program makes it for real, and the outcomes are compared.

The user gets eager's outcome. The comparison covers the result, every object and container that the commit would write,
tensors that change in place, tensors that must not change, gradients, and torch's generator. Extern calls that the
graph needs are made through the journal, from which eager's run takes their results; those of the commit are left to
eager's run. This module does not decide when a call is verified.

Replay has to equal eager bitwise. A compiled artifact is compared with replay, by the tolerances of ``execute.trust``,
and replay with eager. Batched recursive calls, and gradients through a rolled loop, sum in another order than eager, so
their results may differ by rounding. Other threads must not change the state of the step meanwhile.
"""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchjanus.core.access_path import RESULTS
from torchjanus.core.kinds import is_one_of
from torchjanus.execute.comparing import same_bits
from torchjanus.execute.staged import StagedRun
from torchjanus.execute.trust import Trial
from torchjanus.graph.generalize.generalize import Effect
from torchjanus.host.deferred_writes import write_all
from torchjanus.host.journal import Journal
from torchjanus.rewrite.hooks.lookup import attributes_of
from torchjanus.runtime.entries.entry import Entry
from torchjanus.runtime.entries.path_tree import PathTree
from torchjanus.runtime.launch.outcomes import LATE, MISS, RAISED, Violation
from torchjanus.trace.actions import ContainerMutation, Extern, HeapWrite, HostLoop
from torchjanus.trace.values import Traced

__all__ = ["Shadow", "shadow_call"]

_SHOWN = 5
_ROUNDING = 1e-4  # relative
_PLAIN = (list, dict, set, collections.deque, collections.OrderedDict, collections.defaultdict, collections.Counter)
_CONTAINERS = (dict, list, tuple, collections.deque, set, frozenset)
_ATOMS = (int, float, complex, str, bytes, bool, type(None))


@dataclass(slots=True)
class Shadow:
    """What the graph would have done in this call, for comparison after eager's run."""

    entry: Entry
    result: Any
    inputs: Sequence[torch.Tensor]
    copies: Sequence[torch.Tensor]
    generator: torch.Tensor
    disagreements: list[str]
    # (description, live container, copy as it should be)
    containers: list[tuple[str, Any, Any]] = field(default_factory=list)
    fields: dict[tuple[int, str], tuple[str, Any, Any]] = field(default_factory=dict)  # by object and attribute
    gradients: list[tuple[int, Any]] = field(default_factory=list)
    memory: dict[int, Any] = field(default_factory=dict)  # memory that inputs would be moved to

    def differences(self, result: Any) -> list[str]:
        """Return where eager's outcome, of which ``result`` is the returned value, differs from the graph's."""
        same = _nearly if _sums_in_another_order(self.entry) else same_bits
        compare = _Comparison(same)
        if self.result is not LATE:
            compare.values("the result", self.result, result)
        for what, live, expected in self.containers:
            compare.values(what, expected, live, new=True)
        for (_, name), (what, obj, expected) in self.fields.items():
            if expected is LATE:
                continue
            met = getattr(obj, name, _MISSING)
            if (expected is _MISSING) is not (met is _MISSING):
                compare.found.append(f"{what} is {'there' if expected is _MISSING else 'missing'} after eager's run")
            elif met is not _MISSING:
                compare.values(what, expected, met)
        for index, expected in self.gradients:
            compare.values(f"the gradient of {self._name(index)}", expected, self.inputs[index].grad)
        for index, (live, copy) in enumerate(zip(self.inputs, self.copies, strict=True)):
            if self.entry.plan.is_overtaken and index not in self.entry.lowered.mutated:
                continue  # native code may have changed it since
            if not same(live, self.memory.get(index, copy)):
                compare.found.append(f"the contents of {self._name(index)}")
        for index, flag in self.entry.lowered.requires_grad_set:
            if self.inputs[index].requires_grad is not flag:
                compare.found.append(f"requires_grad of {self._name(index)}")
        if not torch.equal(torch.default_generator.get_state(), self.generator):
            compare.found.append("the state of torch's generator")
        return [*self.disagreements, *compare.found][:_SHOWN]

    def _name(self, index: int) -> str:
        return str(self.entry.plan.access_paths[index])


class _Missing:
    def __repr__(self) -> str:
        return "<missing>"


_MISSING = _Missing()


class _Rehearsal:
    """Runs an entry's graph on copies of its inputs, in one part or in several."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.inputs: dict[int, torch.Tensor] = {}
        self.copies: dict[int, torch.Tensor] = {}
        self.disagreements: list[str] = []
        self.began: torch.Tensor | None = None  # state of torch's generator when the graph began
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._work: StagedRun | None = None

    def __call__(self, *given: Any) -> Any:
        """See Executable.run; without arguments, see Staged.begin."""
        self.began = torch.default_generator.get_state()
        if not given:
            staged = self.entry.engine.staged
            assert staged is not None
            self._work = staged.begin(exact=True)
            return self
        inputs, slots = given
        copies = self._copied(range(len(inputs)), inputs)
        compiled = self.entry.engine.compiled
        if compiled is None:
            return self.entry.launch.names["run"](copies, slots)
        trial = Trial(compiled, self.entry.engine.replay, needed=1, thorough=True)
        values = trial.run(copies, slots)
        while trial.doubts:
            trial.ask()
        self.disagreements.extend(map(str, trial.disagreements))
        return values

    def advance(self, inputs: Sequence[torch.Tensor], slots: Sequence[float | int], stage: int) -> Any:
        """See StagedRun.advance."""
        assert self._work is not None
        if self.entry.plan.is_overtaken:  # this part sees what native code has changed since
            for index, copy in self.copies.items():
                copy.untyped_storage().copy_(self.inputs[index].untyped_storage())
        entries = self.entry.lowered.program.inputs
        indices = [index for index, entry in enumerate(entries) if entry.stage == stage]
        return self._work.advance(self._copied(indices, inputs), slots, stage)

    def abandon(self) -> None:
        """See StagedRun.abandon."""
        assert self._work is not None
        self._work.abandon()

    def _copied(self, indices: Sequence[int], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        self.inputs.update(zip(indices, inputs, strict=True))
        copies = [_copy(tensor, self._storages) for tensor in inputs]
        self.copies.update(zip(indices, copies, strict=True))
        return copies


def shadow_call(
    route: Entry | PathTree, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None = None
) -> Any:
    """Run the graph for this call on copies of its inputs, and change nothing.

    Extern calls that it needs are made through the journal, so that the program's own run does not repeat them. Returns
    a Shadow, or what the launch returns instead: MISS, RAISED or a Violation. Raises what the graph raises.
    """
    before = torch.default_generator.get_state() if isinstance(route, PathTree) else None
    rehearsal = None
    try:
        chosen = route.choose(args, kwargs, journal)
        if type(chosen) is not tuple:
            return chosen
        entry, live = chosen
        rehearsal = _Rehearsal(entry)
        outcome = entry.launch.outcome(args, kwargs, journal, rehearsal, live)
        after = torch.default_generator.get_state()
    finally:
        # What a cached function draws while the graph asks whether its result is kept is drawn once: eager's run finds
        # it kept.
        began = before if before is not None or rehearsal is None else rehearsal.began
        if began is not None:
            torch.default_generator.set_state(began)
    if type(outcome) is Violation:
        return Violation(outcome.violated, entry)
    if outcome is MISS or outcome is RAISED:
        return outcome
    result, by_calls, effects, gradients, memory = outcome
    count = range(len(rehearsal.inputs))
    inputs, copies = [rehearsal.inputs[n] for n in count], [rehearsal.copies[n] for n in count]
    shadow = Shadow(
        entry, result, inputs, copies, after, rehearsal.disagreements, gradients=gradients, memory=dict(memory)
    )
    results = {} if journal is None else journal.results()
    _expect(shadow, by_calls, effects, args, {**kwargs, RESULTS: results})
    return shadow


def _expect(
    shadow: Shadow,
    by_calls: Sequence[tuple[HeapWrite | ContainerMutation, Any, Any]],
    effects: Sequence[tuple[Any, ...]],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Make the commit's writes on copies of the containers. ``by_calls``: see ``write_all``."""
    copied: dict[int, Any] = {}
    unknown: set[int] = set()  # containers whose contents are not known

    def copy_of(what: str, container: Any) -> Any:
        copy = copied.get(id(container))
        if copy is None:
            copy = copied[id(container)] = _shallow(container)
            if copy is not None:
                shadow.containers.append((what, container, copy))
        return copy

    for event, target, value in by_calls:
        what = f"{event.base}, which recursive calls write,"
        if isinstance(event, HeapWrite) and event.how == "field":
            shadow.fields[id(target), event.key] = (f"{what} .{event.key}", target, value)
        elif (container := copy_of(what, target)) is not None:
            write_all([(event, container, value)])
    for event, values in _in_order(shadow.entry.plan.effects, effects):
        if isinstance(event, Extern):
            continue
        if event.base.waits_for and event.base.waits_for - 1 not in kwargs[RESULTS]:
            continue  # the base is the result of an extern call at commit
        what = str(event.base)
        of_cell = isinstance(event, HeapWrite) and event.how in ("cell", "delete-cell")
        owner = None if of_cell else event.base.read(args, kwargs)  # a cell may be empty
        late = values is LATE
        match event:
            case HeapWrite(how="cell" | "delete-cell" as how, base=base):
                value = values[0] if how == "cell" and not late else _MISSING
                shadow.fields[id(base.key), "cell_contents"] = (what, base.key, LATE if late else value)
            case HeapWrite(how="field" | "delete-field" as how, base=base, key=key):
                value = values[0] if how == "field" and not late else _MISSING
                shadow.fields[id(owner), key] = (f"{what}.{key}", owner, LATE if late else value)
            case _ if late or id(owner) in unknown:
                unknown.add(id(owner))
            case HeapWrite(how="item", key=key):
                if (container := copy_of(what, owner)) is not None:
                    container[values[1] if isinstance(key, Traced) else key] = values[0]
            case HeapWrite(how="delete-item", key=key):
                if (container := copy_of(what, owner)) is not None:
                    del container[values[0] if isinstance(key, Traced) else key]
            case ContainerMutation(method=method):
                if (container := copy_of(what, owner)) is not None:
                    getattr(container, method)(*values)
    shadow.containers[:] = [known for known in shadow.containers if id(known[1]) not in unknown]


def _in_order(effects: Sequence[Effect], values: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield each write and extern call that is made, with its values; those of a loop iteration by iteration."""
    for event, given in _all_in_order(effects, values):
        if not event.chosen or given is LATE:
            yield event, given
        elif given[-1]:
            yield event, given[:-1]


def _all_in_order(effects: Sequence[Effect], values: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    for effect, given in zip(effects, values, strict=True):
        if not isinstance(effect.event, HostLoop):
            yield effect.event, given
        elif given is LATE:
            yield from ((event, LATE) for event in effect.event.events)
        else:
            for row in given[0]:
                parts = iter(row)
                for event, count in zip(effect.event.events, effect.parts, strict=True):
                    yield event, tuple(itertools.islice(parts, count))


def _shallow(container: Any) -> Any:
    """Return a copy of a container without running the user's code; None if it is not a container of Python's."""
    if is_one_of(type(container), _PLAIN):
        return container.copy()
    kind: Any = next((one for one in (dict, list, set) if isinstance(container, one)), None)
    return None if kind is None else kind.copy(container)


def _copy(tensor: torch.Tensor, storages: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    """Return a copy of a tensor that shares memory with other copies where the originals share it."""
    source = tensor.detach()
    storage = source.untyped_storage()
    copy = storages.get(storage._cdata)
    if copy is None:
        copy = storages[storage._cdata] = storage.clone()
    new = torch.empty(0, dtype=source.dtype, device=source.device)
    new.set_(copy, source.storage_offset(), source.size(), source.stride())
    return new.requires_grad_(tensor.requires_grad)


class _Comparison:
    """Collects the differences of two structures. ``same`` compares two tensors."""

    def __init__(self, same: Callable[[torch.Tensor, torch.Tensor], bool]) -> None:
        self._same = same
        self.found: list[str] = []
        self._met: dict[tuple[int, int], tuple[Any, Any]] = {}

    def values(self, what: str, expected: Any, met: Any, new: bool = False) -> None:
        """Compare what the graph made with what eager made. ``new``: ``expected`` is a copy, so its class may be a base
        class."""
        if expected is met or len(self.found) >= _SHOWN or (id(expected), id(met)) in self._met:
            return
        self._met[id(expected), id(met)] = (expected, met)
        if type(expected) is not type(met) and not (new and isinstance(met, type(expected))):
            self.found.append(f"{what} is a {type(expected).__name__}, eager's a {type(met).__name__}")
        elif isinstance(expected, torch.Tensor):
            self._tensors(what, expected, met)
        elif isinstance(expected, _ATOMS):
            close = self._same is _nearly and isinstance(expected, float) and isinstance(met, float)
            rounded = close and abs(expected - met) <= _ROUNDING * abs(met)
            if not rounded and (not (expected == met or _both_nan(expected, met)) or repr(expected) != repr(met)):
                self.found.append(f"{what} is {expected!r}, eager's {met!r}")
        else:
            for name, one, other in self._parts(what, expected, met):
                self.values(f"{what}{name}", one, other)

    def _tensors(self, what: str, expected: torch.Tensor, met: torch.Tensor) -> None:
        for name in ("shape", "dtype", "requires_grad"):
            one, other = getattr(expected, name), getattr(met, name)
            if one != other:
                self.found.append(f"{what} has {name} {one}, eager's {other}")
                return
        if expected.stride() != met.stride():
            self.found.append(f"{what} has strides {expected.stride()}, eager's {met.stride()}")
        elif not self._same(expected, met):
            self.found.append(f"the contents of {what}")

    def _parts(self, what: str, expected: Any, met: Any) -> Iterator[tuple[str, Any, Any]]:
        # Python's own methods: those of a program's class would be called once more than in eager.
        kind: Any = next((one for one in _CONTAINERS if isinstance(expected, one)), None)
        if kind is dict:
            keys = [*dict.keys(expected)]
            if keys != [*dict.keys(met)]:
                self.found.append(f"the keys of {what}")
                return
            yield from ((f"[{key!r}]", dict.__getitem__(expected, key), dict.__getitem__(met, key)) for key in keys)
        elif kind in (set, frozenset):
            if not kind.__eq__(expected, met):
                self.found.append(f"the elements of {what}")
        elif kind is not None:
            count, other_count = kind.__len__(expected), kind.__len__(met)
            if count != other_count:
                self.found.append(f"{what} has {count} elements, eager's {other_count}")
                return
            pairs = zip(kind.__iter__(expected), kind.__iter__(met), strict=True)
            yield from ((f"[{i}]", *pair) for i, pair in enumerate(pairs))
        one, other = attributes_of(expected), attributes_of(met)
        if isinstance(one, dict) and isinstance(other, dict) and one is not other:
            yield ".__dict__", one, other


def _sums_in_another_order(entry: Entry) -> bool:
    targets = (node.target for node in entry.whole.graph.graph.nodes)
    operators = [str(target) for target in targets if getattr(target, "namespace", "") == "torchjanus"]
    return bool(entry.plan.call_groups) or any("backward" in name for name in operators)


def _nearly(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether tensors are equal up to rounding."""
    if same_bits(one, other):
        return True
    if not one.is_floating_point() or one.shape != other.shape:
        return False
    one, other = one.detach(), other.detach()
    bound = _ROUNDING * float(other.abs().max())
    return torch.allclose(one, other, rtol=_ROUNDING, atol=bound, equal_nan=True)


def _both_nan(one: Any, other: Any) -> bool:
    return isinstance(one, float) and math.isnan(one) and math.isnan(other)
