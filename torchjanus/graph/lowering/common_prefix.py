"""Split the graphs of several paths at their decisions, so that their common prefix is computed once.

A tensor decides which of several paths a call takes. Each path has been lowered as a whole, so it is exact by itself:
which tensors get a gradient, what the optimizer skips, what is written. Nodes that are equal in all paths (the same
operator on the same values, after the same draws) go into a part that runs first and returns the flags that decide. The
remainder of each path takes its values. Knows neither guards nor what the host does in between.

JANUS 4.2.1 makes one conditional of both sides. Here the paths never merge again, so the side that is not taken has no
effect at all, not even a gradient of zero.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchjanus.graph.aten.clean_up import has_effect, is_random, protect_outside
from torchjanus.graph.aten.flags import stack_flags
from torchjanus.graph.aten.verify import verify
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.graph.ir.program import Assertion, Input
from torchjanus.graph.lowering.value_numbering import Path, PathValues, Tree
from torchjanus.graph.recursion.cells.invoke_op import BACKWARD, FORWARD
from torchjanus.graph.regions.loop import Loop
from torchjanus.graph.regions.switch import Switch

__all__ = ["CommonPrefix", "PathRemainder", "split_paths"]

Node = torch.fx.Node


@dataclass(frozen=True, slots=True)
class CommonPrefix:
    """The part that runs before a decision. Its graph returns one tensor with a flag for each arm, then the values that
    later parts need, which are appended to the call's ``live`` values. ``live``: positions of those it takes.
    ``inputs``, ``slots``: which of those of path number ``path`` it takes; ``assertions``: one for each arm."""

    lowered: Lowered
    path: int
    inputs: tuple[int, ...]
    slots: tuple[int, ...]
    live: tuple[int, ...]
    arms: tuple[CommonPrefix | PathRemainder, ...]
    assertions: tuple[Assertion, ...]


@dataclass(frozen=True, slots=True)
class PathRemainder:
    """The remainder of a path after its last decision: it takes all inputs of the path, then these ``live`` values."""

    lowered: Lowered
    path: int
    live: tuple[int, ...]


def split_paths(paths: Sequence[Path], tree: Tree) -> CommonPrefix | None:
    """Return the parts, or None where the deciding flags cannot be computed from what all paths have in common."""
    values = PathValues(paths)
    root = _PrefixSplit(values, None, tree)
    if not root.plan():
        return None
    root.place(0)
    made = root.make()
    assert isinstance(made, CommonPrefix)
    return made


def _alone(flag: Node) -> Any:
    """Return a new tensor like a flag, without its fake mode: fakes of different paths have different modes."""
    like = flag.meta["val"]
    return torch.empty(like.size(), dtype=like.dtype, device=like.device) if isinstance(like, torch.Tensor) else like


@dataclass(slots=True, eq=False)
class _PrefixSplit:
    """A part under construction, with the parts that follow it."""

    values: PathValues
    above: _PrefixSplit | None
    tree: Tree | int
    here: list[int] = field(default_factory=list)  # the values that it computes
    arms: list[_PrefixSplit] = field(default_factory=list)
    given: dict[int, int] = field(default_factory=dict)  # value that later parts need -> position in live
    needs: dict[int, None] = field(default_factory=dict)  # values that it takes from earlier parts

    @property
    def path(self) -> int:
        """The path from whose graph it is cut."""
        return self.tree if isinstance(self.tree, int) else next(self.tree.paths())

    def before(self) -> Iterator[_PrefixSplit]:
        """Yield the parts that run before it, the first one first."""
        if self.above is not None:
            yield from self.above.before()
            yield self.above

    def flags(self) -> list[int]:
        """Return the values that decide."""
        assert isinstance(self.tree, Tree)
        return [self.values.flags(path)[flag] for path, flag in self.tree.flags]

    # -- planning

    def plan(self) -> bool:
        """Decide what this part and later ones compute, take and return. False where a decision comes too late."""
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
            self.arms.append(_PrefixSplit(values, self, arm))
            if not self.arms[-1].plan():
                return False
        self._need(known, self.flags())
        return True

    def _made_again(self, known: set[int]) -> list[int]:
        """Return the recursive calls of earlier parts whose backward pass is here: an earlier part would free what is
        saved for backward, so they are computed again."""
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
        """Return the further values that the flags need; None if not all paths may compute them."""
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
        """Return the results of the remainder of a path, without the flags that are decided."""
        assert isinstance(self.tree, int)
        values, lowered = self.values, self.values.paths[self.tree].lowered
        output = [values.numbers[node] for node in values.output(self.tree)]
        return [*output[: lowered.fresh], *self.flags_left().values(), *output[lowered.updates :]]

    def flags_left(self) -> dict[int, int]:
        """Return the assertions that no earlier decision checks, by number, with their flags."""
        assert isinstance(self.tree, int)
        decided = {flag for part in self.before() for flag in part.flags()}
        return {n: flag for n, flag in enumerate(self.values.flags(self.tree)) if flag not in decided}

    def _need(self, known: set[int], results: Iterable[int]) -> None:
        """Request from earlier parts the values that this one uses. Views are computed again: they own no memory."""
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
        """Assign each value for later parts its position among the live values."""
        for number in self.given:
            self.given[number] = position
            position += 1
        for arm in self.arms:
            arm.place(position)

    # -- emitting

    def make(self) -> CommonPrefix | PathRemainder:
        """Return this part with those that follow it."""
        positions = {number: place for part in self.before() for number, place in part.given.items()}
        live = tuple(positions[number] for number in self.needs)
        if isinstance(self.tree, int):
            return PathRemainder(self._rest(self.tree), self.tree, live)
        writing = _PartWriter(self, self._used())
        results = [writing.stack(self.flags()), *map(writing.value, self.given)]
        # The program keeps its loops and switches, whose graphs are prepared with this one.
        loops = tuple(node for node in writing.program.nodes if isinstance(node.func, Loop | Switch))
        program = replace(writing.program, outputs=(), output_after=(), assertions=(), leaves=(), nodes=loops)
        lowered = writing.finish(
            results, program=program, fresh=len(results), outputs=(), leaves=(), requires_grad_set=(), mutated=(),
            replaced=(), restored=(), pinned={}, pin_reasons={}, sized=(),
        )  # fmt: skip
        assertions = tuple(self.values.paths[path].lowered.assertions[flag] for path, flag in self.tree.flags)
        arms = tuple(arm.make() for arm in self.arms)
        return CommonPrefix(lowered, self.path, writing.inputs, writing.slots, live, arms, assertions)

    def _used(self) -> set[int]:
        """Return the inputs and slots that this part uses."""
        pending, seen = [*self.flags(), *self.here, *self.given], set[int]()
        while pending:
            number = pending.pop()
            if number not in seen and number not in self.needs:
                seen.add(number)
                pending += self.values.used_by(number)
        return seen

    def _rest(self, path: int) -> Lowered:
        whole = self.values.paths[path].lowered
        writing = _PartWriter(self, set(self.values.inputs[path]))
        output = [self.values.numbers[node] for node in self.values.output(path)]
        results = [writing.value(number) for number in output[: whole.fresh]]
        left = self.flags_left()
        if left:
            results.append(writing.stack(list(left.values())))
        results += [writing.value(number) for number in output[whole.updates :]]
        assertions = tuple(whole.assertions[number] for number in left)
        return writing.finish(results, program=replace(writing.program, assertions=assertions), sized=())


class _PartWriter:
    """Writes the graph of one part. ``used``: the inputs and slots that it takes."""

    def __init__(self, cut: _PrefixSplit, used: set[int]) -> None:
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
        """Return the node of a value; views of values from earlier parts are computed again."""
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
        """Return one tensor of all these flags."""
        made: Node = stack_flags([self.value(flag) for flag in flags], self._call)
        return made

    def _call(self, target: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Node:
        made = self.graph.call_function(target, args, kwargs)
        with pytree.tree_leaves(made.all_input_nodes[0].meta["val"])[0].fake_mode:
            made.meta["val"] = target(*torch.fx.node.map_arg(args, _alone), **kwargs)
        return made

    def finish(self, results: list[Node], **changes: Any) -> Lowered:
        """Return the path's Lowered with this graph and these changes."""
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
    """Return a size as it was in a watched run."""
    return number if isinstance(number, int) else int(number.node.hint)
