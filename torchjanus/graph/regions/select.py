"""If-conversion: arms that differ in few cheap operations become one program that runs all and selects (JANUS 4.2.1).

The host then does not wait for the decision. Common operations before and after the difference occur once. A value that
is not selected has a zero gradient, and zero times a non-finite value is NaN; so no operation within the arms may have
a derivative that multiplies by a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchjanus.core.remarks import NotMergeable
from torchjanus.core.trees import leaves_of, map_leaves
from torchjanus.graph.ir.program import Node, Program, Ref
from torchjanus.graph.operators.switch_op import UNKNOWN
from torchjanus.graph.regions.speculation import ValueMetadata, looked
from torchjanus.trace.modes import Modes

__all__ = ["selecting"]

MOST = 12  # speculative operations


def selecting(arms: Sequence[Any], results: int, kinds: Sequence[tuple[Any, ...]]) -> Program:
    """Return one program for the arms (see ``switch.ArmProgram``) that outputs the results and the arm's number.

    Raises NotMergeable where the arms differ in more than cheap operations, or where these may not run speculatively.
    """
    return _ArmMerger(arms, results, kinds).program()


@dataclass(frozen=True, slots=True)
class _SelectedArm:
    """The number of the arm taken: ``yes`` or ``no`` as ``flag`` says."""

    flag: int
    yes: Any
    no: Any


@dataclass(slots=True)
class _Remainder:
    """The remainder of some arms from one point on: operations, results, and the number of the arm taken."""

    nodes: list[Node]
    results: list[int]
    arm: Any  # an int or _SelectedArm


class _ArmMerger:
    """Merges the arms into one program. Values are renumbered; equal values get one number."""

    def __init__(self, arms: Sequence[Any], results: int, kinds: Sequence[tuple[Any, ...]]) -> None:
        self.arms, self.inputs = arms, len(kinds)
        self.answers = [arm.answers for arm in arms]
        self.known: dict[int, ValueMetadata] = {}
        self.cheap: dict[int, bool] = {}  # by id of the node
        self.alive: list[Node] = []  # keeps the nodes alive whose ids are keys
        self.next = self.inputs
        self.bodies = [_trimmed(arm.body, results) for arm in arms]
        self.flags = [[ref.index for ref in arm.body.outputs[results:]] for arm in arms]
        self.looks = [looked(body.nodes, body.outputs, kinds) for body in self.bodies]
        self.names: list[dict[int, int]] = [{place: place for place in range(self.inputs)} for _ in arms]
        for place in range(self.inputs):
            self.known[place] = self.looks[0].known[place]

    def program(self) -> Program:
        """Return the merged program. Raises NotMergeable."""
        rest = self._rest(list(range(len(self.arms))), [0] * len(self.arms), frozenset())
        nodes, first = list(rest.nodes), self.bodies[0]
        modes = replace(nodes[0].modes, grad=any(node.modes.grad for node in nodes)) if nodes else Modes()
        outputs: list[int] = []
        for number in rest.results:
            if number < self.inputs or number in outputs:
                number = self._emit(nodes, torch.clone, (Ref(number),), modes)
            outputs.append(number)
        arm = self._arm(nodes, rest.arm, replace(modes, grad=False))
        outputs.append(arm)
        body: Program = self.arms[0].body
        return replace(
            body, nodes=tuple(nodes), outputs=tuple(map(Ref, outputs)),
            output_after=(len(nodes),) * len(outputs), assertions=(), leaves=(), inputs=first.inputs,
        )  # fmt: skip

    def _arm(self, nodes: list[Node], arm: Any, modes: Modes) -> int:
        if not isinstance(arm, _SelectedArm):
            return self._emit(nodes, _numbered, (arm,), modes)
        yes, no = self._arm(nodes, arm.yes, modes), self._arm(nodes, arm.no, modes)
        return self._emit(nodes, torch.where, (Ref(arm.flag), Ref(yes), Ref(no)), modes)

    def _emit(self, nodes: list[Node], func: Callable[..., Any], args: tuple[Any, ...], modes: Modes) -> int:
        number, self.next = self.next, self.next + 1
        nodes.append(Node(func, args, {}, (Ref(number),), modes))
        return number

    # -- common beginnings of arms ------------------------------------------------------------------------------------

    def _rest(self, arms: list[int], at: list[int], asked: frozenset[int]) -> _Remainder:
        """Merge what these arms do, each from its position in ``at`` on. Raises NotMergeable.

        ``asked``: the predicates that separate these arms from others."""
        nodes: list[Node] = []
        while all(at[arm] < len(self.bodies[arm].nodes) for arm in arms):
            made = [self._renamed(arm, self.bodies[arm].nodes[at[arm]]) for arm in arms]
            if any(_key(one) != _key(made[0]) for one in made):
                break
            nodes.append(self._done(arms, at, made[0]))
        first = arms[0]
        if len(arms) == 1:
            results = [self.names[first][ref.index] for ref in self.bodies[first].outputs]
            return _Remainder(nodes, results, self._number(first, asked))
        parting = [n for n, _ in enumerate(self.flags[first]) if len({self._answer(arm, n) for arm in arms}) > 1]
        if not parting:
            raise NotMergeable("branch-not-selected", "more than the decision tells the arms apart")
        numbers = {self.names[arm].get(self.flags[arm][parting[0]], -1) for arm in arms}
        if len(numbers) > 1 or -1 in numbers:
            raise NotMergeable("branch-not-selected", "the arms decide by different tensors")
        (flag,) = numbers
        yes = [arm for arm in arms if self._answer(arm, parting[0])]
        no = [arm for arm in arms if not self._answer(arm, parting[0])]
        known = asked | {parting[0]}
        joined = self._joined(flag, self._rest(yes, at, known), self._rest(no, at, known))
        return _Remainder([*nodes, *joined.nodes], joined.results, joined.arm)

    def _answer(self, arm: int, number: int) -> bool | None:
        return self.answers[arm][number] if number < len(self.answers[arm]) else None

    def _number(self, arm: int, asked: frozenset[int]) -> Any:
        """Return the number of the arm, or UNKNOWN where one of its remaining predicates has another outcome."""
        found: Any = arm
        for number, answer in reversed(list(enumerate(self.answers[arm]))):
            if number not in asked:
                flag = self.names[arm].get(self.flags[arm][number])
                if flag is None:
                    raise NotMergeable("branch-not-selected", "the decision is made of what is not known before")
                found = _SelectedArm(flag, found, UNKNOWN) if answer else _SelectedArm(flag, UNKNOWN, found)
        return found

    def _renamed(self, arm: int, node: Node) -> Node:
        names = self.names[arm]

        def leaf(value: Any) -> Any:
            return Ref(names[value.index]) if isinstance(value, Ref) else value

        return replace(node, args=map_leaves(node.args, leaf), kwargs=map_leaves(node.kwargs, leaf))

    def _done(self, arms: list[int], at: list[int], node: Node) -> Node:
        """Emit the operation that these arms have in common, and advance them."""
        outs = []
        original = self.bodies[arms[0]].nodes[at[arms[0]]]
        for position, ref in enumerate(original.outs):
            number = self.names[arms[0]].get(ref.index)
            if number is None:
                number, self.next = self.next, self.next + 1
            outs.append(Ref(number))
            self.known[number] = self.looks[arms[0]].known[ref.index]
            for arm in arms:
                self.names[arm][self.bodies[arm].nodes[at[arm]].outs[position].index] = number
        made = replace(node, outs=tuple(outs))
        self.cheap[id(made)] = self.looks[arms[0]].cheap[at[arms[0]]]
        self.alive.append(made)
        for arm in arms:
            at[arm] += 1
        return made

    # -- joining two arms ---------------------------------------------------------------------------------------------

    def _joined(self, flag: int, yes: _Remainder, no: _Remainder) -> _Remainder:
        length = 0
        while length < min(len(yes.nodes), len(no.nodes)) and _alike(yes.nodes[-1 - length], no.nodes[-1 - length]):
            length += 1
        while True:
            try:
                return self._joined_at(flag, yes, no, length)
            except _OperationsDiffer as apart:
                length -= apart.position + 1

    def _joined_at(self, flag: int, yes: _Remainder, no: _Remainder, length: int) -> _Remainder:
        """Merge the remainders of two arms whose last ``length`` operations are joined."""
        ends = len(yes.nodes) - length, len(no.nodes) - length
        speculated = [*yes.nodes[: ends[0]], *no.nodes[: ends[1]]]
        if len(speculated) > MOST or not all(self.cheap[id(node)] for node in speculated):
            raise NotMergeable("branch-not-selected", "an arm is too expensive to be computed speculatively")
        nodes: list[Node] = list(speculated)
        made = {out.index for node in speculated for out in node.outs}
        pairs: dict[tuple[int, int], int] = {}
        mine: dict[int, int] = {}  # value of ``yes`` -> its number in the joined operations
        others: dict[int, int] = {}

        def one(a: int, b: int) -> int:
            if a in mine or b in others:
                if a in mine and b in others and mine[a] == others[b]:
                    return mine[a]
                raise _OperationsDiffer(position)
            if a == b:
                return a
            if (a, b) not in pairs:
                pairs[a, b] = self._selected(nodes, flag, a, b)
            return pairs[a, b]

        position = -1  # among the joined operations
        for place, (a, b) in enumerate(zip(yes.nodes[ends[0] :], no.nodes[ends[1] :], strict=True)):
            position = place
            if any(out.index in mine or out.index in made or out.index < self.inputs for out in a.outs) or any(
                x.index == y.index for x, y in zip(a.outs, b.outs, strict=True)
            ):
                raise NotMergeable("branch-not-selected", "an arm changes a tensor in place")
            theirs = iter(b.inputs)

            def leaf(value: Any, theirs: Iterator[Ref] = theirs) -> Any:
                return Ref(one(value.index, next(theirs).index)) if isinstance(value, Ref) else value

            args, kwargs = map_leaves(a.args, leaf), map_leaves(a.kwargs, leaf)
            outs = []
            for x, y in zip(a.outs, b.outs, strict=True):
                number, self.next = self.next, self.next + 1
                mine[x.index] = others[y.index] = number
                self.known[number] = self.known[x.index]
                outs.append(Ref(number))
            joined = replace(a, args=args, kwargs=kwargs, outs=tuple(outs))
            self.cheap[id(joined)] = self.cheap[id(a)]
            self.alive.append(joined)
            nodes.append(joined)
        results = [one(a, b) for a, b in zip(yes.results, no.results, strict=True)]
        return _Remainder(nodes, results, _SelectedArm(flag, _moved(yes.arm, mine), _moved(no.arm, others)))

    def _selected(self, nodes: list[Node], flag: int, a: int, b: int) -> int:
        one, other = self.known[a], self.known[b]
        if (one.size, one.dtype, one.device) != (other.size, other.dtype, other.device):
            raise NotMergeable("branch-not-selected", "the arms give tensors of different sizes, types or devices")
        if one.stride != other.stride and (one.dtype.is_floating_point or one.dtype.is_complex or len(one.size) > 1):
            raise NotMergeable("branch-not-selected", "the arms give tensors of different strides")
        modes = nodes[-1].modes if nodes else Modes()
        number = self._emit(nodes, torch.where, (Ref(flag), Ref(a), Ref(b)), replace(modes, grad=True))
        self.known[number] = one
        self.cheap[id(nodes[-1])] = True
        self.alive.append(nodes[-1])
        return number


class _OperationsDiffer(Exception):
    """The joined operation at ``position`` cannot be joined."""

    def __init__(self, position: int) -> None:
        self.position = position


def _moved(arm: Any, names: Mapping[int, int]) -> Any:
    if not isinstance(arm, _SelectedArm):
        return arm
    return _SelectedArm(names.get(arm.flag, arm.flag), _moved(arm.yes, names), _moved(arm.no, names))


def _numbered(arm: int) -> torch.Tensor:
    return torch.full((), arm, dtype=torch.int64)


def _plain(value: Any) -> Any:
    """Return an argument in a form that can be compared; all tensors of the program compare equal."""
    if isinstance(value, Ref):
        return ("tensor",)
    return (type(value), id(value) if isinstance(value, torch.Tensor) else repr(value))


def _key(node: Node) -> Any:
    """Return a key that is equal for operations with equal results."""
    leaves = tuple((type(v), v.index) if isinstance(v, Ref) else _plain(v) for v in leaves_of((node.args, node.kwargs)))
    return (id(node.func), _shape(node), leaves, node.modes, len(node.outs))


def _shape(node: Node) -> Any:
    return repr(map_leaves((node.args, node.kwargs), lambda _: 0))


def _alike(one: Node, other: Node) -> bool:
    """Whether two operations differ in their tensor operands only."""
    mine, others = (list(map(_plain, leaves_of((node.args, node.kwargs)))) for node in (one, other))
    return (
        one.func is other.func
        and one.modes == other.modes
        and len(one.outs) == len(other.outs)
        and mine == others
        and _shape(one) == _shape(other)
    )


@dataclass(slots=True)
class _Trimmed:
    nodes: list[Node]
    outputs: list[Ref]
    inputs: Any


def _trimmed(body: Program, results: int) -> _Trimmed:
    """Return a body without the clones of outputs that it does not compute; these are added at the end."""
    given = {ref: node for node in body.nodes if node.func is torch.clone and len(node.args) == 1 for ref in node.outs}
    uses = [leaf for node in body.nodes for leaf in node.inputs]
    copies = {ref: node for ref, node in given.items() if ref not in uses and ref in body.outputs[:results]}
    gone = {id(node) for node in copies.values()}
    outputs = [copies[ref].args[0] if ref in copies else ref for ref in body.outputs[:results]]
    return _Trimmed([node for node in body.nodes if id(node) not in gone], outputs, body.inputs)
