"""Traces of one path become one program with assumptions (JANUS 4.2: what stayed equal is assumed).

Where the traces agree there is an assumption; where a number or an object differs there is an input. The traces must
have taken the same path (equal tokens); which path a call will take is what the assumptions decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchjanus.assumptions.assumption import (
    Assumption,
    Condition,
    ContainerKeys,
    Emptiness,
    Identity,
    Kept,
    KeyPresence,
    SameObject,
    TensorKind,
    TypeOf,
    ValueOf,
)
from torchjanus.errors import Place, Refusal, Refused
from torchjanus.graph.program import Assertion, Input, Node, Program, Ref, Slot, SlotKind
from torchjanus.graph.tensorise import Tensorised, as_operand, snapshot, tensorise
from torchjanus.origin import Origin, Step
from torchjanus.trace.events import (
    Absent,
    Asserted,
    Extern,
    Filled,
    Found,
    Held,
    Keys,
    Mutation,
    Op,
    Pinned,
    Same,
    Stored,
    TensorRef,
    Trace,
)
from torchjanus.trace.recipes import Build, FoundAt, Number, Recipe, TensorOf
from torchjanus.trace.values import Apply, Expr, Fetch, Read, leaves

__all__ = ["Effect", "Generalised", "HostBatch", "generalise"]

# In-place arithmetic on a one-element counter that the host can carry out beside the graph (an optimizer's step).
_COUNTING: dict[str, Callable[..., Any]] = {
    "Tensor.add_": torch.add,
    "Tensor.__iadd__": torch.add,
    "Tensor.sub_": torch.sub,
    "Tensor.__isub__": torch.sub,
    "Tensor.mul_": torch.mul,
    "Tensor.__imul__": torch.mul,
    "torch._foreach_add_": torch.add,
}


@dataclass(frozen=True, slots=True)
class HostBatch:
    """Numbers that are read from small input tensors before the graph runs, all in one go.

    ``inputs``: positions in the program's inputs of 0-d tensors of one dtype; ``steps``: what the program does to each
    before it is fetched; ``fetches[k]`` is what becomes of ``inputs[k]``.
    """

    inputs: tuple[int, ...]
    steps: tuple[tuple[Callable[..., Any], float | int], ...]
    fetches: tuple[Fetch, ...]


@dataclass(frozen=True, slots=True)
class Effect:
    """A held-back write or extern call, with the recipes of its values."""

    event: Stored | Mutation | Extern
    recipes: tuple[Recipe, ...]


@dataclass(frozen=True, slots=True)
class Generalised:
    """One path, ready to be lowered and guarded."""

    program: Program
    assumptions: tuple[Assumption, ...]
    origins: tuple[Origin, ...]  # of the program's inputs
    pinned: tuple[torch.Tensor | None, ...]  # the very tensor, where the assumptions say that it is
    slots: tuple[Expr, ...]
    batches: tuple[HostBatch, ...]
    outputs: dict[Any, int]  # ("tensor", number) or a fetch's token -> position in the program's outputs
    effects: tuple[Effect, ...]
    result: Recipe
    varying: tuple[Origin, ...] = ()


@dataclass(slots=True)
class _Work:
    """State of one generalisation."""

    traces: Sequence[Trace]
    relaxed: frozenset[Any]
    constants: dict[Origin, Any] = field(default_factory=dict)
    varying: set[Origin] = field(default_factory=set)
    needed: dict[Origin, None] = field(default_factory=dict)  # constants that something was computed from
    host: dict[Any, Fetch] = field(default_factory=dict)  # fetches that the host can make before the graph runs
    made_of_constants: dict[int, float | int] = field(default_factory=dict)  # torch.tensor(1.0), by the tensor's number


def generalise(
    traces: Sequence[Trace],
    relaxed: frozenset[Any] = frozenset(),
    describe: Callable[[torch.Tensor], Any] | None = None,
) -> Generalised:
    """The program and the assumptions that all of these runs share. Raises Refused where no graph can have them."""
    last = traces[-1]
    if any(trace.refusals for trace in traces):
        raise Refused(next(trace.refusals[0] for trace in traces if trace.refusals))
    work = _Work(traces, relaxed)
    _split_numbers(work)
    ops = [event for event in last.events if isinstance(event, Op)]
    _find_host_fetches(work, last, ops)
    for expr in _used_expressions(last):
        _need(work, expr)
    for event in last.events:
        if isinstance(event, Pinned) and not _varies(work, event.expr):
            _need(work, event.expr)
    builder = _Builder(work, last, ops)
    program = builder.build()
    assumptions = tuple(_assumptions(work, builder, describe or (lambda t: None)))
    effects = tuple(_effects(last))
    return Generalised(
        program,
        assumptions,
        tuple(builder.origins),
        tuple(builder.pinned),
        tuple(builder.slots),
        tuple(builder.batches()),
        builder.outputs,
        effects,
        last.result,
        tuple(sorted(work.varying, key=str)),
    )


def _effects(trace: Trace) -> Iterator[Effect]:
    touched: set[Any] = set()
    for event in trace.events:
        if not isinstance(event, Stored | Mutation | Extern):
            continue
        recipes = trace.recipes.get(id(event), ())
        if isinstance(event, Stored) and event.how == "item":
            place = event.base.item(event.key)
            if place not in touched and recipes and isinstance(recipes[0], FoundAt) and recipes[0].origin == place:
                continue  # what was found there is put back
            touched.add(place)
        elif not isinstance(event, Extern):
            touched.add(event.base.item(event.key) if isinstance(event, Stored) else event.base)
        yield Effect(event, recipes)


# -- numbers ------------------------------------------------------------------------------------------------------


def _same_number(values: Sequence[Any]) -> bool:
    return len({(type(v).__name__, repr(v)) for v in values}) == 1


def _split_numbers(work: _Work) -> None:
    """Which numbers stayed equal over the runs, and which are inputs."""
    for row in zip(*(trace.events for trace in work.traces), strict=True):
        first = row[-1]
        if isinstance(first, Found) and first.kind == "number":
            values = [event.value for event in row]
            if _same_number(values) and first.origin.token not in work.relaxed:
                work.constants[first.origin] = first.value
            else:
                work.varying.add(first.origin)


def _varies(work: _Work, expr: Any) -> bool:
    return isinstance(expr, Read | Fetch | Apply) and any(
        isinstance(leaf, Fetch) or leaf.origin in work.varying for leaf in leaves(expr)
    )


def _need(work: _Work, expr: Expr) -> None:
    for leaf in leaves(expr):
        if isinstance(leaf, Read) and leaf.origin in work.constants:
            work.needed[leaf.origin] = None


def _expressions_in(value: Any) -> Iterator[Expr]:
    if isinstance(value, Read | Fetch | Apply):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _expressions_in(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _expressions_in(part)
    elif isinstance(value, slice):
        yield from _expressions_in((value.start, value.stop, value.step))
    elif isinstance(value, Number):
        yield value.expr
    elif isinstance(value, Build):
        yield from _expressions_in(value.items)
        yield from _expressions_in(tuple(recipe for _, recipe in value.attributes))


def _used_expressions(trace: Trace) -> Iterator[Expr]:
    for event in trace.events:
        if isinstance(event, Op):
            yield from _expressions_in(event.args)
            yield from _expressions_in(event.kwargs)
    yield from _expressions_in(trace.result)
    for recipes in trace.recipes.values():
        yield from _expressions_in(recipes)


def _value(work: _Work, expr: Any, run: int = -1) -> Any:
    """What the expression was in a run."""
    if isinstance(expr, Read):
        if expr.origin in work.constants:
            return work.constants[expr.origin]
        return next(e.value for e in work.traces[run].events if isinstance(e, Found) and e.origin == expr.origin)
    if isinstance(expr, Fetch):
        return work.traces[run].fetched[expr.token]
    if isinstance(expr, Apply):
        return expr.func(*(_value(work, a, run) for a in expr.args))
    return expr


# -- numbers that the host can know before the graph runs ------------------------------------------------------------


def _takes(value: Any, number: int) -> bool:
    if isinstance(value, TensorRef):
        return value.number == number
    if isinstance(value, list | tuple):
        return any(_takes(v, number) for v in value)
    return isinstance(value, dict) and any(_takes(v, number) for v in value.values())


def _find_host_fetches(work: _Work, trace: Trace, ops: list[Op]) -> None:
    wanted: dict[Any, Fetch] = {}
    for expr in _used_expressions(trace):
        wanted.update((leaf.token, leaf) for leaf in leaves(expr) if isinstance(leaf, Fetch))
    for event in trace.events:
        if isinstance(event, Held | Pinned):
            wanted.update((leaf.token, leaf) for leaf in leaves(event.expr) if isinstance(leaf, Fetch))
    if not wanted:
        return
    work.made_of_constants = dict(_amounts(ops))
    touched: dict[int, list[tuple[int, Op]]] = {}
    for index, op in enumerate(ops):
        for number in {ref.number for ref in _refs((op.args, op.kwargs))}:
            touched.setdefault(number, []).append((index, op))
    for token, fetch in wanted.items():
        tensor = trace.tensors[fetch.ref] if fetch.ref in trace.origins else None
        if tensor is None or tensor.dim() != 0 or tensor.device.type != "cpu" or tensor.requires_grad:
            continue
        before = [op for index, op in touched.get(fetch.ref, []) if index < fetch.after]
        if all(_counting_step(work, op) is not None for op in before):
            work.host[token] = fetch


def _refs(value: Any) -> Iterator[TensorRef]:
    if isinstance(value, TensorRef):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _refs(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _refs(part)
    elif isinstance(value, slice):
        yield from _refs((value.start, value.stop, value.step))


def _amounts(ops: list[Op]) -> Iterator[tuple[int, float | int]]:
    """Tensors made of one constant number that do nothing but tell a counter how far to go."""
    for op in ops:
        if op.name == "torch.tensor" and len(op.args) == 1 and type(op.args[0]) in (int, float):
            number = op.outs[0].number
            takers = [other for other in ops if _takes((other.args, other.kwargs), number)]
            if all(t.name in _COUNTING and len(t.args) == 2 and t.args[1] == op.outs[0] for t in takers):
                yield number, op.args[0]


def _counting_step(work: _Work, op: Op) -> tuple[Callable[..., Any], float | int] | None:
    func = _COUNTING.get(op.name)
    if func is None or len(op.args) != 2 or (op.kwargs and op.kwargs != {"alpha": 1}):
        return None
    amount = op.args[1]
    if isinstance(amount, TensorRef):
        amount = work.made_of_constants.get(amount.number)
    if isinstance(amount, Read | Apply) and not _varies(work, amount):
        _need(work, amount)
        amount = _value(work, amount)
    return (func, amount) if type(amount) in (int, float) else None


# -- the program ----------------------------------------------------------------------------------------------------


class _Builder:
    """Numbers the tensors anew, decides what each expression becomes, and makes the nodes."""

    def __init__(self, work: _Work, trace: Trace, ops: list[Op]) -> None:
        self.work = work
        self.trace = trace
        self.ops = ops
        self.origins: list[Origin] = []
        self.pinned: list[torch.Tensor | None] = []
        self.slots: list[Expr] = []
        self.outputs: dict[Any, int] = {}
        self.unfolded: list[tuple[Expr, Any, Place]] = []
        self._slot_numbers: dict[Any, int] = {}
        self._refs: dict[int, Ref] = {}
        self._nodes: list[Node] = []
        self._assertions: list[Assertion] = []
        self._next = 0
        self._position: dict[int, int] = {}  # op index -> nodes before it
        self._snapshots: dict[Any, Tensorised] = {}
        self._found = {e.origin: e for e in trace.events if isinstance(e, Found)}
        self.identical = {
            row[-1].origin
            for row in zip(*(t.events for t in work.traces), strict=True)
            if isinstance(row[-1], Found)
            and row[-1].kind in ("tensor", "object")
            and len({id(e.value) for e in row}) == 1
            and row[-1].origin.token not in work.relaxed
        }
        names = {op.name for op in ops}
        self.backward = any(name.rpartition(".")[2] == "backward" for name in names)
        self.grads_used = self.backward or any(name.startswith("Tensor.grad.") for name in names)

    def build(self) -> Program:
        inputs = self._inputs()
        in_graph = self._fetches_in_graph()
        op_index = 0
        for event in self.trace.events:
            self._snap(op_index, in_graph)
            if isinstance(event, Op):
                self._position[op_index] = len(self._nodes)
                self._node(event)
                op_index += 1
            elif isinstance(event, Asserted):
                self._assertions.append(
                    Assertion(self._ref(event.ref.number), event.outcome, len(self._nodes), event.place)
                )
            elif isinstance(event, Held | Pinned) and self._decided_in_graph(event.expr):
                self._assert_in_graph(event)
        self._snap(op_index, in_graph)
        self._position[op_index] = len(self._nodes)
        outputs, after = self._collect_outputs()
        leaves_ = tuple(
            Ref(i) for i, entry in enumerate(inputs) if entry.requires_grad and entry.is_leaf and self.grads_used
        )
        kinds = tuple(
            SlotKind(
                type(_value(self.work, e)), tuple(_value(self.work, e, r) for r in range(len(self.work.traces))), str(e)
            )
            for e in self.slots
        )
        return Program(inputs, kinds, tuple(self._nodes), outputs, after, tuple(self._assertions), leaves_)

    # inputs

    def _inputs(self) -> tuple[Input, ...]:
        trace = self.trace
        used = self._used_numbers()
        numbers = sorted(number for number in trace.origins if number in used)
        grads: dict[int, int | Origin | None] = {}
        if self.backward:
            for number in numbers:
                grads[number] = self._live_grad(number)
        extra = [origin for origin in grads.values() if isinstance(origin, Origin)]
        for number in numbers:
            self._add_input(trace.origins[number], number)
        by_origin = {origin: index for index, origin in enumerate(self.origins)}
        for origin in extra:
            if origin not in by_origin:
                by_origin[origin] = len(self.origins)
                self._add_input(origin, None)
        entries: list[Input] = []
        for index, origin in enumerate(self.origins):
            example = self._found[origin].value
            grad = grads.get(numbers[index]) if index < len(numbers) else None
            bound = Ref(by_origin[grad]) if isinstance(grad, Origin) else None
            with torch._C.DisableTorchFunction():
                entries.append(Input(example, example.requires_grad, example.is_leaf, bound, str(origin)))
        return tuple(entries)

    def _used_numbers(self) -> set[int]:
        """The tensors that the graph computes with. Others were only looked at: guards are enough for them."""
        used = {ref.number for op in self.ops for ref in _refs((op.args, op.kwargs))}
        for event in self.trace.events:
            if isinstance(event, Asserted):
                used.add(event.ref.number)
            elif isinstance(event, Held | Pinned):
                used.update(leaf.ref for leaf in leaves(event.expr) if isinstance(leaf, Fetch))
        for recipe in (self.trace.result, *(r for rs in self.trace.recipes.values() for r in rs)):
            used.update(ref.number for ref in _tensors_in(recipe))
            for expr in _expressions_in(recipe):
                used.update(leaf.ref for leaf in leaves(expr) if isinstance(leaf, Fetch))
        return used

    def _add_input(self, origin: Origin, number: int | None) -> None:
        if number is not None:
            self._refs[number] = Ref(len(self.origins))
        self.origins.append(origin)
        self.pinned.append(self._found[origin].value if origin in self.identical else None)
        self._next = len(self.origins)

    def _live_grad(self, number: int) -> Origin | None:
        """The origin of the gradient that backward() adds to, or None if there is none by then."""
        origin = self.trace.origins[number].then(Step.FIELD, "grad")
        found = self._found.get(origin)
        if found is None or found.value is None:
            return None
        for op in self.ops:
            if op.name.rpartition(".")[2] == "backward":
                return origin
            if op.name == "Tensor.grad.__set__" and op.args[0] == TensorRef(number):
                return origin if any(_takes(o.args, n) for n in self._numbers_of(origin) for o in self.ops) else None
        return origin

    def _numbers_of(self, origin: Origin) -> list[int]:
        return [number for number, where in self.trace.origins.items() if where == origin]

    def _ref(self, number: int) -> Ref:
        ref = self._refs.get(number)
        if ref is None:
            ref = self._refs[number] = Ref(self._next)
            self._next += 1
        return ref

    def new_ref(self) -> Ref:
        ref = Ref(self._next)
        self._next += 1
        return ref

    # nodes

    def _node(self, op: Op) -> None:
        args = self._symbols(op.args, op)
        kwargs = self._symbols(op.kwargs, op)
        outs = tuple(self._ref(out.number) for out in op.outs)
        self._nodes.append(Node(op.func, args, kwargs, outs, op.modes, op.place))

    def _symbols(self, value: Any, op: Op) -> Any:
        if isinstance(value, TensorRef):
            return self._ref(value.number)
        if isinstance(value, Read | Fetch | Apply):
            return self._operand(value, op)
        if isinstance(value, tuple):
            parts = [self._symbols(v, op) for v in value]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if isinstance(value, list):
            return [self._symbols(v, op) for v in value]
        if isinstance(value, dict):
            return {k: self._symbols(v, op) for k, v in value.items()}
        if isinstance(value, slice):
            return slice(*(self._symbols(v, op) for v in (value.start, value.stop, value.step)))
        return value

    def _operand(self, expr: Expr, op: Op) -> Any:
        if not _varies(self.work, expr):
            return _value(self.work, expr)
        if self._decided_in_graph(expr):
            others = [self._ref(ref.number) for ref in _refs((op.args, op.kwargs))]
            ref, node = as_operand(self._tensorised(expr, op.place), others, op.modes, self.new_ref, op.place)
            self._nodes.append(node)
            return ref
        number = self._slot_numbers.get(expr.token)
        if number is None:
            number = self._slot_numbers[expr.token] = len(self.slots)
            self.slots.append(expr)
        return Slot(number)

    # numbers fetched from tensors that the graph goes on with

    def _decided_in_graph(self, expr: Expr) -> bool:
        return any(isinstance(leaf, Fetch) and leaf.token not in self.work.host for leaf in leaves(expr))

    def _fetches_in_graph(self) -> dict[int, list[Fetch]]:
        """Fetches whose value the graph itself needs, by the position at which they are made."""
        wanted: dict[Any, Fetch] = {}
        for event in self.trace.events:
            expressions: Iterator[Expr] = iter(())
            if isinstance(event, Op):
                expressions = _expressions_in((event.args, event.kwargs))
            elif isinstance(event, Held | Pinned):
                expressions = iter((event.expr,))
            for expr in expressions:
                if self._decided_in_graph(expr):
                    wanted.update((leaf.token, leaf) for leaf in leaves(expr) if isinstance(leaf, Fetch))
        by_position: dict[int, list[Fetch]] = {}
        for fetch in wanted.values():
            by_position.setdefault(fetch.after, []).append(fetch)
        return by_position

    def _snap(self, op_index: int, in_graph: dict[int, list[Fetch]]) -> None:
        for fetch in in_graph.pop(op_index, ()):
            taken, nodes = snapshot(self._ref(fetch.ref), fetch, self.new_ref)
            self._nodes.extend(nodes)
            self._snapshots[fetch.token] = taken

    def _tensorised(self, expr: Expr, place: Place) -> Tensorised:
        def constant(leaf: Any) -> Any:
            if isinstance(leaf, Read) and leaf.origin in self.work.varying:
                raise Refused(
                    Refusal(
                        place,
                        f"computes {expr} from a tensor and from {leaf}",
                        "a number fetched from the graph and one that changes between calls meet.",
                        "Make the second a tensor.",
                    )
                )
            return _value(self.work, leaf)

        result, nodes = tensorise(expr, self._snapshots, constant, self.new_ref, place)
        self._nodes.extend(nodes)
        return result

    def _assert_in_graph(self, event: Held | Pinned) -> None:
        if isinstance(event, Pinned):
            if isinstance(event.value, str):
                raise Refused(
                    Refusal(event.place, f"text made of {event.expr} is {event.why}", "it differs at each call.", "")
                )
            expr: Expr = Apply(_EQUAL, (event.expr, event.value))
            outcome = True
        else:
            expr, outcome = event.expr, event.outcome
        condition = self._tensorised(expr, event.place)
        self._assertions.append(Assertion(condition.ref, outcome, len(self._nodes), event.place))

    # outputs

    def _collect_outputs(self) -> tuple[tuple[Ref, ...], tuple[int, ...]]:
        refs: list[Ref] = []
        after: list[int] = []

        def want(key: Any, ref: Ref, position: int) -> None:
            if key not in self.outputs:
                self.outputs[key] = len(refs)
                refs.append(ref)
                after.append(position)

        for recipe in (self.trace.result, *(r for rs in self.trace.recipes.values() for r in rs)):
            for ref in _tensors_in(recipe):
                want(("tensor", ref.number), self._ref(ref.number), len(self._nodes))
            for expr in _expressions_in(recipe):
                for leaf in leaves(expr):
                    if isinstance(leaf, Fetch) and leaf.token not in self.work.host:
                        position = self._position.get(leaf.after, len(self._nodes))
                        want((leaf.ref, leaf.after), self._ref(leaf.ref), position)
        return tuple(refs), tuple(after)

    def batches(self) -> Iterator[HostBatch]:
        """The host's fetches, grouped so that each group is one tensor operation."""
        groups: dict[Any, list[Fetch]] = {}
        for fetch in self.work.host.values():
            tensor = self.trace.tensors[fetch.ref]
            steps = tuple(
                step
                for index, op in enumerate(self.ops)
                if index < fetch.after and _takes((op.args, op.kwargs), fetch.ref)
                if (step := _counting_step(self.work, op)) is not None
            )
            groups.setdefault((tensor.dtype, steps), []).append(fetch)
        for (_, steps), fetches in groups.items():
            yield HostBatch(tuple(self._refs[f.ref].index for f in fetches), steps, tuple(fetches))


def _equal(a: Any, b: Any) -> bool:
    return bool(a == b)


_EQUAL = _equal
_HEAP_TYPE = 1 << 9  # a class made by a class statement


def _tensors_in(recipe: Any) -> Iterator[TensorRef]:
    if isinstance(recipe, TensorOf):
        yield recipe.ref
    elif isinstance(recipe, Build):
        for part in recipe.items:
            for piece in part if isinstance(part, tuple) else (part,):
                yield from _tensors_in(piece)
        for _, value in recipe.attributes:
            yield from _tensors_in(value)


# -- assumptions ----------------------------------------------------------------------------------------------------


def _assumptions(work: _Work, builder: _Builder, describe: Callable[[torch.Tensor], Any]) -> Iterator[Assumption]:
    inputs = {*builder.origins, *builder.trace.origins.values()}
    found = builder._found
    for event in work.traces[-1].events:
        match event:
            case Found():
                yield from _of_read(work, builder, event, inputs, describe)
            case Absent(base=base, key=key, present=present, place=place):
                if not (present and base.item(key) in found):
                    yield KeyPresence(place, base, key, present)
            case Filled(origin=origin, filled=filled, place=place):
                yield Emptiness(place, origin, filled)
            case Keys(origin=origin, keys=keys, place=place):
                yield ContainerKeys(place, origin, keys)
            case Same(first=first, second=second, same=same, place=place):
                if not (first in builder.identical and second in builder.identical):
                    yield SameObject(place, first, second, same)
            case Held(expr=expr, outcome=outcome, place=place):
                if not builder._decided_in_graph(expr) and not _implied(work, expr):
                    yield Condition(place, expr, outcome)
            case Pinned(expr=expr, value=value, place=place):
                if not builder._decided_in_graph(expr) and _varies(work, expr):
                    yield Condition(place, expr, value)


def _implied(work: _Work, expr: Expr) -> bool:
    return all(isinstance(leaf, Read) and leaf.origin in work.needed for leaf in leaves(expr))


# Functions of torch that look at a gradient only to throw it away.
_FORGETTING = frozenset({"Optimizer.zero_grad", "Module.zero_grad"})


def _owner_stays(builder: _Builder, origin: Origin) -> bool:
    """Whether the object whose attribute this is is assumed to be the very same at each call."""
    owner = origin.base.base if origin.base is not None else None
    return owner is not None and (owner.step is Step.CONST or owner in builder.identical)


def _may_change_class(cls: type) -> bool:
    """Whether ``x.__class__ = Other`` has to be expected: of the user's own classes."""
    return bool(cls.__flags__ & _HEAP_TYPE) and cls.__module__.partition(".")[0] not in ("torch", "collections")


def _of_read(
    work: _Work, builder: _Builder, event: Found, inputs: set[Origin], describe: Callable[[torch.Tensor], Any]
) -> Iterator[Assumption]:
    origin, value, place = event.origin, event.value, event.place
    is_grad = origin.step is Step.FIELD and origin.key == "grad" and isinstance(value, torch.Tensor | None)
    if is_grad and not builder.grads_used:
        return
    if is_grad and value is not None and origin not in inputs and place.function in _FORGETTING:
        return  # whether there is a gradient makes no difference: afterwards there is none
    if event.kind == "constant" and origin.step is Step.FIELD and origin.base in inputs and not is_grad:
        return  # a property of a tensor that is guarded as a whole
    match event.kind:
        case "number":
            if origin in work.needed:
                yield ValueOf(place, origin, value)
            elif origin in work.varying:
                yield TypeOf(place, origin, type(value))
        case "constant":
            yield ValueOf(place, origin, value)
        case "pinned":
            yield Identity(place, origin, value)
        case _:
            if origin in builder.identical and event.kept and _owner_stays(builder, origin):
                yield Kept(place, origin, value)
            # A gradient that was there is held constant only where the graph uses it: most steps throw it away.
            elif origin in builder.identical and (origin in inputs or not is_grad):
                yield Identity(place, origin, value)
                if event.kind == "object" and _may_change_class(type(value)):
                    yield TypeOf(place, origin, type(value))
            elif event.kind == "object" or origin not in inputs:
                yield TypeOf(place, origin, type(value))
            if origin in inputs:
                yield TensorKind(place, origin, value, event.detail, describe)
