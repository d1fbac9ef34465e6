"""The graphs of several paths, cut where the paths part: what they have in common is computed once, before.

A tensor decides which of several paths a call takes. Each path has been lowered as a whole, so it is exact by itself:
who gets a gradient, what the optimizer skips, what is written. Nodes that are equal in all of them (the same operator
on the same values, and the same draws before) go into a part that is run first and gives the flags to choose by; the
rest of each path goes on from its values. Knows nothing of guards or of what the host does in between.

JANUS 4.2.1 makes one conditional of both sides. Here the sides never have to meet again, so that nothing of the side
that was not taken is ever seen, not even a gradient of zero.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchjanus.errors import InternalFault
from torchjanus.graph.choice import Choice
from torchjanus.graph.flags import stack_flags
from torchjanus.graph.invoke_op import BACKWARD, FORWARD
from torchjanus.graph.loops import Loop
from torchjanus.graph.lowered import Lowered
from torchjanus.graph.passes import has_effect, is_random, is_view, protect_outside
from torchjanus.graph.program import Assertion, Input
from torchjanus.graph.verify import verify

__all__ = ["Path", "Rest", "Shared", "Tree", "share"]

_SMALL = 4096  # constants of so many elements are compared

Node = torch.fx.Node


@dataclass(frozen=True, slots=True)
class Path:
    """One path's graph. Inputs (slots) of two paths are the same thing where their keys are equal."""

    lowered: Lowered
    inputs: tuple[Any, ...]
    slots: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Tree:
    """Which way the paths part: ``arms`` are numbers of paths or further trees; ``flags[k]`` is the assertion that
    holds if arm k is to be taken: the number of a path in that arm, and the assertion's in it."""

    arms: tuple[Tree | int, ...]
    flags: tuple[tuple[int, int], ...]

    def paths(self) -> Iterator[int]:
        """The numbers of all paths in it."""
        for arm in self.arms:
            yield from (arm,) if isinstance(arm, int) else arm.paths()


@dataclass(frozen=True, slots=True)
class Shared:
    """What is run before a decision. Its graph gives one tensor with a flag for each arm, and then values that parts
    after it need; these are appended to the call's ``live`` values. ``live``: positions of those that it takes itself.
    ``inputs``, ``slots``: which of the path's with number ``path`` it uses; ``assertions``: one for each arm."""

    lowered: Lowered
    path: int
    inputs: tuple[int, ...]
    slots: tuple[int, ...]
    live: tuple[int, ...]
    arms: tuple[Shared | Rest, ...]
    assertions: tuple[Assertion, ...]


@dataclass(frozen=True, slots=True)
class Rest:
    """What of a path is left after the last decision: it takes all the path's inputs, and ``live`` values behind
    them."""

    lowered: Lowered
    path: int
    live: tuple[int, ...]


def share(paths: Sequence[Path], tree: Tree) -> Shared | None:
    """The parts, or None where what decides is not computed from what all paths have in common."""
    values = _Values(paths)
    root = _Cut(values, None, tree)
    if not root.plan():
        return None
    root.place(0)
    made = root.make()
    assert isinstance(made, Shared)
    return made


class _Values:
    """The values of all graphs by number: equal nodes of different graphs are one value."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths
        self.numbers: dict[Node, int] = {}
        self.nodes: list[Node] = []  # for each number some node that computes it
        self.constants: dict[int, Any] = {}
        self._known: dict[Any, int] = {}
        self.calls = [self._number_path(path) for path in paths]  # in the order of each path's graph
        self.inputs = [
            [self.numbers[node] for node in path.lowered.graph.graph.nodes if node.op == "placeholder"]
            for path in paths
        ]

    def _number_path(self, path: Path) -> list[int]:
        module = path.lowered.graph
        nodes = list(module.graph.nodes)
        placeholders = [node for node in nodes if node.op == "placeholder"]
        keys = [*(("input", key) for key in path.inputs), *(("slot", key) for key in path.slots)]
        for node, given in zip(placeholders, keys, strict=True):
            self._number(node, given)
        calls, met, drawn = [], dict[Any, int](), -1
        for node in nodes:
            if node.op == "get_attr":
                constant = getattr(module, str(node.target))
                self.constants[self._number(node, ("constant", _constant(constant)))] = constant
            elif node.op == "call_function":
                key: Any = (node.target, self._key(node.args), self._key(node.kwargs))
                if is_random(node):
                    key = (*key, "after draw", drawn)
                # Equal nodes of one graph were kept apart for a reason: their results are tensors of their own.
                met[key] = met.get(key, 0) + 1
                calls.append(self._number(node, (key, met[key])))
                if is_random(node):
                    drawn = calls[-1]
        return calls

    def _number(self, node: Node, key: Any) -> int:
        number = self._known.setdefault(key, len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append(node)
        self.numbers[node] = number
        return number

    def _key(self, value: Any) -> Any:
        if isinstance(value, Node):
            return "value", self.numbers[value]
        if isinstance(value, list | tuple):
            return ("parts", *(self._key(part) for part in value))
        if isinstance(value, dict):
            return ("names", *((name, self._key(part)) for name, part in value.items()))
        if isinstance(value, slice):
            return ("slice", *(self._key(part) for part in (value.start, value.stop, value.step)))
        if isinstance(value, float):
            return float, value.hex()  # -0.0 and 0.0 are equal, and not the same
        return type(value), value

    def used_by(self, number: int) -> list[int]:
        """The values that this one is computed from."""
        return [self.numbers[used] for used in self.nodes[number].all_input_nodes]

    def may_live(self, number: int) -> bool:
        """Whether the value may be handed from part to part: a tensor with memory of its own."""
        node = self.nodes[number]
        return isinstance(node.meta.get("val"), torch.Tensor) and not is_view(node)

    def is_call(self, number: int) -> bool:
        return self.nodes[number].op == "call_function"

    def common(self, tree: Tree) -> set[int]:
        """What all paths of the tree compute; of an operation with several results all that any of them uses."""
        members = list(tree.paths())
        found = set.intersection(*(set(self.calls[path]) for path in members))
        for path in members:
            for number in self.calls[path]:
                node = self.nodes[number]
                if node.target is operator.getitem and self.numbers[node.args[0]] in found:  # type: ignore[index]
                    found.add(number)
        return found

    def output(self, path: int) -> list[Node]:
        """The flat output of a path."""
        last: Any = next(iter(reversed(self.paths[path].lowered.graph.graph.nodes)))
        return list(last.args[0])

    def flags(self, path: int) -> list[int]:
        """The values of the flags of a path's assertions."""
        position = self.paths[path].lowered.flags
        if position is None:
            return []
        stacked: Any = self.output(path)[position]
        if stacked.target is not torch.ops.aten.stack.default:
            raise InternalFault(f"the flags are not stacked but made by {stacked.target}")
        return [self.numbers[flag] for flag in stacked.args[0]]


@dataclass(slots=True, eq=False)
class _Cut:
    """A part in the making, with the parts that come after it."""

    values: _Values
    above: _Cut | None
    tree: Tree | int
    here: list[int] = field(default_factory=list)  # what it computes
    arms: list[_Cut] = field(default_factory=list)
    given: dict[int, int] = field(default_factory=dict)  # value that parts after it need -> position in live
    needs: dict[int, None] = field(default_factory=dict)  # values it takes from parts before it

    @property
    def path(self) -> int:
        """The path whose graph it is cut out of."""
        return self.tree if isinstance(self.tree, int) else next(self.tree.paths())

    def before(self) -> Iterator[_Cut]:
        """The parts that ran before it, the first one first."""
        if self.above is not None:
            yield from self.above.before()
            yield self.above

    def flags(self) -> list[int]:
        """The values that decide."""
        assert isinstance(self.tree, Tree)
        return [self.values.flags(path)[flag] for path, flag in self.tree.flags]

    # -- which part needs what ---------------------------------------------------------------------------------------

    def plan(self) -> bool:
        """Decide what this part and those after it compute, take and give. False where a decision comes too late."""
        values = self.values
        known = {number for part in self.before() for number in part.here}
        if isinstance(self.tree, int):
            lowered = values.paths[self.tree].lowered
            stacked = set() if lowered.flags is None else {values.numbers[values.output(self.tree)[lowered.flags]]}
            self.here = [number for number in values.calls[self.tree] if number not in known | stacked]
            self.here = [*self._made_again(known), *self.here]
            self._need(known, self.results())
            return True
        common = values.common(self.tree)
        self.here = [number for number in values.calls[self.path] if number in common - known]
        self.here += sorted(common - known - set(self.here))
        extra = self._deciding(known | common)
        if extra is None:
            return False
        self.here += extra
        self.here = [*self._made_again(known), *self.here]
        for arm in self.tree.arms:
            self.arms.append(_Cut(values, self, arm))
            if not self.arms[-1].plan():
                return False
        self._need(known, self.flags())
        return True

    def _made_again(self, known: set[int]) -> list[int]:
        """Recursive calls that are made before and run backwards here: what they keep for that is freed by then."""
        values = self.values
        keys = {node.args[0] for number in self.here if (node := values.nodes[number]).target is BACKWARD}
        calls = [n for n in known if values.nodes[n].target is FORWARD and values.nodes[n].args[0] in keys]
        taken = [
            number
            for number in known
            if (node := values.nodes[number]).target is operator.getitem and values.numbers[node.args[0]] in calls  # type: ignore[index]
        ]
        return [*calls, *taken]

    def _deciding(self, known: set[int]) -> list[int] | None:
        """What else has to be computed for the flags; None if that is not for all paths to compute."""
        values = self.values
        assert isinstance(self.tree, Tree)
        inputs = set.intersection(*(set(values.inputs[path]) for path in self.tree.paths()))
        found: list[int] = []
        pending = self.flags()
        while pending:
            number = pending.pop()
            if number in known or number in found or number in values.constants:
                continue
            if not values.is_call(number):
                if number not in inputs:
                    return None
                continue
            if has_effect(values.nodes[number]):
                return None
            found.append(number)
            pending += values.used_by(number)
        return found

    def results(self) -> list[int]:
        """What the rest of a path gives in the end, but for decided flags."""
        assert isinstance(self.tree, int)
        values, lowered = self.values, self.values.paths[self.tree].lowered
        output = [values.numbers[node] for node in values.output(self.tree)]
        return [*output[: lowered.fresh], *self.flags_left().values(), *output[lowered.updates :]]

    def flags_left(self) -> dict[int, int]:
        """The assertions that no decision before stands for: number and flag."""
        assert isinstance(self.tree, int)
        decided = {flag for part in self.before() for flag in part.flags()}
        return {n: flag for n, flag in enumerate(self.values.flags(self.tree)) if flag not in decided}

    def _need(self, known: set[int], results: Iterable[int]) -> None:
        """Ask the parts before for what this one uses of them. Views are made again: nobody else sees their memory."""
        values, mine = self.values, set(self.here)
        pending = [*results, *(used for number in self.here for used in values.used_by(number))]
        seen = set()
        while pending:
            number = pending.pop()
            if number in seen or number in mine or not values.is_call(number):
                continue
            seen.add(number)
            if number in known and values.may_live(number):
                self.needs[number] = None
                giver = next(part for part in self.before() if number in part.here)
                giver.given.setdefault(number, -1)
            else:
                pending += values.used_by(number)

    def place(self, position: int) -> None:
        """Say where in the live values each given one is."""
        for number in self.given:
            self.given[number] = position
            position += 1
        for arm in self.arms:
            arm.place(position)

    # -- the parts themselves ----------------------------------------------------------------------------------------

    def make(self) -> Shared | Rest:
        """The part, and those after it."""
        positions = {number: place for part in self.before() for number, place in part.given.items()}
        live = tuple(positions[number] for number in self.needs)
        if isinstance(self.tree, int):
            return Rest(self._rest(self.tree), self.tree, live)
        writing = _Writing(self, self._used())
        results = [writing.stack(self.flags()), *map(writing.value, self.given)]
        loops = tuple(
            node for node in writing.program.nodes if isinstance(node.func, Loop | Choice)
        )  # to be kept ready
        program = replace(writing.program, outputs=(), output_after=(), assertions=(), leaves=(), nodes=loops)
        lowered = writing.finish(
            results, program=program, fresh=len(results), outputs=(), leaves=(), requires_grad_set=(), mutated=(),
            replaced=(), restored=(), pinned={}, pin_reasons={}, sized=(),
        )  # fmt: skip
        assertions = tuple(self.values.paths[path].lowered.assertions[flag] for path, flag in self.tree.flags)
        arms = tuple(arm.make() for arm in self.arms)
        return Shared(lowered, self.path, writing.inputs, writing.slots, live, arms, assertions)

    def _used(self) -> set[int]:
        """Inputs and slots that this part looks at."""
        pending, seen = [*self.flags(), *self.here, *self.given], set[int]()
        while pending:
            number = pending.pop()
            if number not in seen and number not in self.needs:
                seen.add(number)
                pending += self.values.used_by(number)
        return seen

    def _rest(self, path: int) -> Lowered:
        whole = self.values.paths[path].lowered
        writing = _Writing(self, set(self.values.inputs[path]))
        output = [self.values.numbers[node] for node in self.values.output(path)]
        results = [writing.value(number) for number in output[: whole.fresh]]
        left = self.flags_left()
        if left:
            results.append(writing.stack(list(left.values())))
        results += [writing.value(number) for number in output[whole.updates :]]
        assertions = tuple(whole.assertions[number] for number in left)
        return writing.finish(results, program=replace(writing.program, assertions=assertions), sized=())


class _Writing:
    """Writes the graph of one part."""

    def __init__(self, cut: _Cut, used: set[int]) -> None:
        """``used``: the inputs and slots that it takes."""
        self.cut = cut
        self.values = cut.values
        self.path = path = cut.values.paths[cut.path]
        self.graph = torch.fx.Graph()
        self._made: dict[int, Node] = {}
        self._constants: dict[str, Any] = {}
        given, count = cut.values.inputs[cut.path], len(path.inputs)
        self.inputs = tuple(index for index, number in enumerate(given[:count]) if number in used)
        self.slots = tuple(index for index, number in enumerate(given[count:]) if number in used)
        for index in self.inputs:
            self._placeholder(given[index])
        for number in cut.needs:
            self._placeholder(number)
        for index in self.slots:
            self._placeholder(given[count + index])
        live = tuple(_live_input(self.values.nodes[number]) for number in cut.needs)
        program = path.lowered.program
        self.program = replace(
            program,
            inputs=(*(program.inputs[index] for index in self.inputs), *live),
            slots=tuple(program.slots[index] for index in self.slots),
        )
        for number in cut.here:
            self.value(number)

    def _placeholder(self, number: int) -> None:
        node = self.values.nodes[number]
        made = self._made[number] = self.graph.placeholder(f"v{number}")
        made.meta["val"] = node.meta["val"]

    def value(self, number: int) -> Node:
        """The node of a value; views of what parts before gave are made again."""
        made = self._made.get(number)
        if made is None:
            node = self.values.nodes[number]
            if node.op == "get_attr":
                name = f"constant_{number}"
                self._constants[name] = self.values.constants[number]
                made = self.graph.create_node("get_attr", name)
                made.meta.update(node.meta)
            else:
                made = self.graph.node_copy(node, lambda used: self.value(self.values.numbers[used]))
            self._made[number] = made
        return made

    def stack(self, flags: list[int]) -> Node:
        """One tensor of all these flags."""
        made: Node = stack_flags([self.value(flag) for flag in flags], self._call)
        return made

    def _call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
        made = self.graph.call_function(target, args, kwargs)
        made.meta["val"] = target(*torch.fx.node.map_arg(args, lambda part: part.meta["val"]), **kwargs)
        return made

    def finish(self, results: list[Node], **changes: Any) -> Lowered:
        """The path's Lowered with this graph and what else is different."""
        self.graph.output(results)
        self.graph.eliminate_dead_code(is_impure_node=has_effect)
        protect_outside(self.graph)
        self.graph.lint()
        module = torch.fx.GraphModule(self._constants, self.graph)
        calls = [node for node in self.graph.nodes if node.op == "call_function"]
        random = any(map(is_random, calls))
        made = replace(self.path.lowered, graph=module, random=random, nodes=len(calls), **changes)
        verify(made)
        return made


def _live_input(node: Node) -> Input:
    value = node.meta["val"]
    size, stride = ([_hint(number) for number in numbers] for numbers in (value.size(), value.stride()))
    example = torch.empty_strided(size, stride, dtype=value.dtype, device=value.device)
    changing = tuple(None if isinstance(number, int) else 0 for number in value.size())
    symbols = changing if any(number is not None for number in changing) else ()
    return Input(example, False, True, None, "a value of the part before", symbols=symbols)


def _hint(number: Any) -> int:
    """A size as it was in a watched run."""
    return number if isinstance(number, int) else int(number.node.hint)


def _constant(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.numel() <= _SMALL and value.device.type == "cpu":
        return value.dtype, tuple(value.shape), value.stride(), repr(value.tolist())
    return id(value)
