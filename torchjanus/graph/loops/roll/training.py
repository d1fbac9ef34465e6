"""Makes loops whose iterations train (``loss.backward()``, ``optimizer.step()``) functional.

What an iteration changes becomes its argument and its result: each tensor from before the iteration that it changes in
place, and each gradient that it adds to or sets, is loop-carried. An iteration copies those values into tensors of its
own, computes what the user's iteration computed, backward and update included, and returns their new values; after the
loop these are written back. No gradient flows between iterations, nor into them or out of them, so the loop needs no
backward graph.

An iteration does one of five things with the gradient of a parameter (``GradientUse``). Where it only adds to it, the
first iteration adds to -0.0, which changes no number. Tracing the iteration checks that the parameters get the
gradients that are expected here. A pure rewriting of programs; raises NotMergeable where an iteration is not of that
kind."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchjanus.core.remarks import NotMergeable
from torchjanus.core.trees import leaves_of, map_leaves
from torchjanus.graph.ir.loop_matching import call_name, is_training
from torchjanus.graph.ir.program import Node, Program, Ref
from torchjanus.graph.ir.repetition import Segment, marked
from torchjanus.graph.loops.roll.training_calls import (
    enter,
    enter_gradient,
    gradient_before,
    leave,
    leave_gradient,
    leave_none,
    none_before,
    put_back,
    put_gradient,
    values_of,
    without_graph,
)
from torchjanus.graph.tracing.early_release import SET_GRAD
from torchjanus.trace.modes import Modes
from torchjanus.trace.user_code import MARKS

__all__ = ["functional_iterations"]

_GET_GRAD = torch.Tensor.grad.__get__  # type: ignore[union-attr]
_CUTTING = frozenset("detach detach_ item argmax argmin argsort bool long int".split())


class GradientUse(enum.Enum):
    """What iterations do with the gradient of one parameter."""

    UNTOUCHED = "none flows into it"
    ADDED = "it is added to what there was"
    RENEWED = "it is dropped and created again"
    GONE = "it is dropped at the end"
    USED_UP = "it is created where there was none, and dropped at the end"


def functional_iterations(program: Program) -> Program:
    """Return the program with its training loops made functional. Raises NotMergeable."""
    done = 0
    while True:
        found = marked(program.nodes)
        if found is None:
            raise NotMergeable("loop-iterations-differ", "the iterations do not line up")
        training = [s for s in found if any(is_training(n.func) for n in program.nodes[s.start : s.end])]
        if done == len(training):
            return program
        program = _TrainingRewriter(program, training[done]).program()
        done += 1


# -- the rewriting ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _State:
    """A tensor of which each iteration gets a copy. ``refs``: per iteration its number before the iteration. ``fixed``:
    it is the same tensor in all iterations. ``changed``: it is changed in place."""

    refs: tuple[Ref, ...]
    fixed: bool
    changed: bool
    requires_grad: bool
    keeping: GradientUse = GradientUse.UNTOUCHED


class _TrainingRewriter:
    """Writes one training loop of a program as a functional loop."""

    def __init__(self, program: Program, segment: Segment) -> None:
        if program.cuts:
            raise NotMergeable("loop-native-call", "the host makes a call in the middle of the step")
        self.old, self.segment = program, segment
        self.iterations = [
            program.nodes[segment.start + k * segment.length : segment.start + (k + 1) * segment.length]
            for k in range(segment.iterations)
        ]
        self.quiet = Modes(grad=False, default_dtype=self.iterations[0][0].modes.default_dtype)
        self.place = program.nodes[segment.start - 1].place
        self.next = 1 + max(len(program.inputs), *(r.index for n in program.nodes for r in n.outs))
        self.before = set(range(len(program.inputs)))
        for node in program.nodes[: segment.start]:
            self.before.update(ref.index for ref in node.outs)
        self.made = list(self._made())
        self.states = list(self._states())
        self.seen = sorted(self._seen())

    def _made(self) -> Iterator[set[int]]:
        """Yield the tensors that each iteration creates."""
        known = set(self.before)
        for nodes in self.iterations:
            made = {ref.index for node in nodes for ref in node.outs} - known
            known |= made
            yield made

    def _seen(self) -> set[tuple[int, int]]:
        """Return (node, output) of the tensors of the last iteration that differentiable code uses after the loop."""
        later = self.old.nodes[self.segment.end + 1 :]
        taken = {
            v for node in later if node.modes.grad for v in leaves_of((node.args, node.kwargs)) if isinstance(v, Ref)
        }
        return {
            (position, which)
            for position, node in enumerate(self.iterations[-1])
            for which, ref in enumerate(node.outs)
            if ref in taken and ref.index in self.made[-1]
        }

    # -- loop-carried states ------------------------------------------------------------------------------------------

    def _states(self) -> Iterator[_State]:
        """Return the tensors that are loop-carried. Raises NotMergeable if the iterations differ."""
        changed = [list(self._changed(number)) for number in range(len(self.iterations))]
        if len({tuple(place for place, _ in row) for row in changed}) > 1:
            raise NotMergeable("loop-training", "iterations change different tensors in place")
        known: set[int] = set()
        leaves_ = _leaves(self.old, self.segment)
        inputs = self.old.inputs
        if any(index < len(inputs) and not inputs[index].is_leaf for index in leaves_):
            raise NotMergeable("loop-training", "an iteration trains a tensor that is no leaf")
        found = []
        for column in zip(*changed, strict=True):
            refs = tuple(ref for _, ref in column)
            fixed = len(set(refs)) == 1
            after = all(ref.index in self.made[number] for number, ref in enumerate(refs[1:]))
            if refs[0].index not in self.before or not (fixed or after):
                raise NotMergeable("loop-training", "an iteration changes a tensor that another one has made")
            if refs[0].index not in known:
                known.add(refs[0].index)
                found.append(_State(refs, fixed, True, fixed and refs[0].index in leaves_))
        taken = [
            list(dict.fromkeys(v for n in nodes for v in leaves_of((n.args, n.kwargs)) if isinstance(v, Ref)))
            for nodes in self.iterations
        ]
        for ref in taken[-1]:
            if ref.index in leaves_ and ref.index not in known:
                found.append(_State((ref,) * len(self.iterations), True, False, True))
                known.add(ref.index)
        for row in taken:
            if any(ref.index in leaves_ and ref.index not in known for ref in row):
                raise NotMergeable("loop-training", "an iteration takes a parameter in a way that is not followed")
        for state in found:
            if state.requires_grad:
                keepings = {self._keeping(nodes, state.refs[0]) for nodes in self.iterations}
                if len(keepings) > 1:
                    raise NotMergeable("loop-training", "the iterations treat a gradient differently")
                state.keeping = keepings.pop()
        return iter(found)

    def _changed(self, number: int) -> Iterator[tuple[Any, Ref]]:
        """Yield what the iteration changes in place without having created it, and where."""
        for position, node in enumerate(self.iterations[number]):
            if isinstance(node.func, MARKS):
                raise NotMergeable("loop-training", "an iteration runs user code within its backward pass")
            for which, ref in enumerate(node.outs):
                if ref.index not in self.made[number]:
                    yield (position, which), ref
            owner = getattr(getattr(node.func, "__self__", None), "__name__", "")
            if owner in ("requires_grad", "data") and call_name(node) == "__set__":
                raise NotMergeable("loop-training", "an iteration sets requires_grad or data of a tensor")
            if call_name(node) == "batch_norm":
                given = [*node.args, *(None,) * 3][1:3]
                stats = [node.kwargs.get(n, v) for n, v in zip(("running_mean", "running_var"), given, strict=True)]
                for which, ref in enumerate(stats):
                    if isinstance(ref, Ref) and ref.index not in self.made[number]:
                        yield (position, "stats", which), ref

    def _keeping(self, nodes: Sequence[Node], leaf: Ref) -> GradientUse:
        """Return what the iteration does with the gradient of this parameter. Raises NotMergeable if it does something
        else."""
        acts: list[str] = []
        for position, node in enumerate(nodes):
            if node.func == SET_GRAD and node.args[0] == leaf:
                if node.args[1] is not None:
                    raise NotMergeable("loop-training", "an iteration sets a gradient to something other than None")
                acts.append("thrown")
            elif node.func == _GET_GRAD and node.args[0] == leaf:
                acts.append("seen")
            elif is_training(node.func) and leaf in _fed(nodes, position):
                acts.append("made")
        if "made" not in acts:
            if "seen" in acts:
                raise NotMergeable("loop-training", "an iteration reads a gradient that it has not made")
            return GradientUse.GONE if acts else GradientUse.UNTOUCHED
        first, last = acts[0], next(act for act in reversed(acts) if act != "seen")
        if first == "thrown":
            return GradientUse.GONE if last == "thrown" else GradientUse.RENEWED
        if last == "thrown":
            return GradientUse.USED_UP
        if "thrown" in acts or "seen" in acts:
            raise NotMergeable("loop-training", "an iteration reads a gradient that the next one throws away")
        return GradientUse.ADDED

    # -- the program ----------------------------------------------------------------------------------------------

    def _ref(self) -> Ref:
        self.next += 1
        return Ref(self.next - 1)

    def _node(self, func: Any, *args: Any, outs: tuple[Ref, ...] = ()) -> Node:
        return Node(func, args, {}, outs, self.quiet, self.place)

    def program(self) -> Program:
        """Return the program with the functional loop."""
        old, segment = self.old, self.segment
        nodes = list(old.nodes[: segment.start - 1])
        given, gradients = {}, {}
        for number, state in enumerate(self.states):
            ref = state.refs[0]
            given[number] = self._ref()
            nodes.append(self._node(values_of, ref, state.requires_grad, outs=(given[number],)))
            if state.keeping in (GradientUse.ADDED, GradientUse.RENEWED):
                gradients[number] = self._ref()
                nodes.append(self._node(gradient_before, ref, outs=(gradients[number],)))
            elif state.keeping is GradientUse.USED_UP:
                nodes.append(self._node(none_before, ref))
        start = len(nodes)
        nodes.append(old.nodes[segment.start - 1])
        for iteration_number in range(len(self.iterations)):
            nodes += self._iteration(iteration_number, given, gradients)
        end = len(nodes)
        length = (end - start - 1) // segment.iterations
        nodes.append(old.nodes[segment.end])
        for number, state in enumerate(self.states):
            ref = state.refs[0]
            if state.fixed and state.changed:
                nodes.append(self._node(put_back, ref, given[number]))
            if state.keeping in (GradientUse.ADDED, GradientUse.RENEWED):
                nodes.append(self._node(put_gradient, ref, gradients[number], state.keeping is GradientUse.ADDED))
            elif state.keeping is GradientUse.GONE:
                nodes.append(Node(SET_GRAD, (ref, None), {}, (), self.quiet, self.place))
        behind = len(nodes)
        nodes += old.nodes[segment.end + 1 :]

        def moved(after: int) -> int:
            if after < segment.start:
                return after if after < segment.start - 1 else start
            number, within = divmod(after - segment.start, segment.length)
            if segment.until is not None and after <= segment.end and number and not within:
                return start + 1 + number * length  # after an iteration has returned its new values
            return end if after <= segment.end else behind + after - segment.end - 1

        return replace(
            old,
            nodes=tuple(nodes),
            output_after=tuple(map(moved, old.output_after)),
            assertions=tuple(replace(one, after=moved(one.after)) for one in old.assertions),
            measures=tuple(replace(one, after=moved(one.after)) for one in old.measures),
        )

    def _iteration(self, number: int, given: dict[int, Ref], gradients: dict[int, Ref]) -> list[Node]:
        """Return the nodes of one functional iteration. Updates ``given`` and ``gradients``, the values of the
        states."""
        own: dict[Ref, Ref] = {}
        nodes, entered = [], dict[int, Ref]()
        for which, state in enumerate(self.states):
            own[state.refs[number]] = out = self._ref()
            source = given[which] if state.fixed or not number else state.refs[number]
            nodes.append(self._node(enter, source, state.requires_grad, outs=(out,)))
            if state.keeping in (GradientUse.ADDED, GradientUse.RENEWED):
                entered[which] = self._ref()
                nodes.append(self._node(enter_gradient, out, gradients[which], outs=(entered[which],)))

        def leaf(value: Any) -> Any:
            return own.get(value, value) if isinstance(value, Ref) else value

        for node in self.iterations[number]:
            args, kwargs = map_leaves(node.args, leaf), map_leaves(node.kwargs, leaf)
            nodes.append(replace(node, args=args, kwargs=kwargs, outs=tuple(own.get(ref, ref) for ref in node.outs)))
        nodes += (self._node(without_graph, self.iterations[number][p].outs[which]) for p, which in self.seen)
        for which, state in enumerate(self.states):
            ref = own[state.refs[number]]
            if state.fixed and state.changed:
                given[which] = self._ref()
                nodes.append(self._node(leave, ref, outs=(given[which],)))
            if state.keeping in (GradientUse.ADDED, GradientUse.RENEWED):
                gradients[which] = self._ref()
                before = (entered[which],) if state.keeping is GradientUse.ADDED else ()
                nodes.append(self._node(leave_gradient, ref, *before, outs=(gradients[which],)))
            elif state.requires_grad:
                nodes.append(self._node(leave_none, ref))
        return nodes


def _leaves(program: Program, segment: Segment) -> set[int]:
    """Return the tensors from before the loop for which gradients are computed."""
    found = {index for index, entry in enumerate(program.inputs) if entry.requires_grad}
    for node in program.nodes[: segment.start]:
        if call_name(node) == "requires_grad_" and isinstance(node.args[0], Ref):
            wanted = node.kwargs.get("requires_grad", node.args[1] if len(node.args) > 1 else True)
            (found.add if wanted else found.discard)(node.args[0].index)
        elif node.kwargs.get("requires_grad") is True:
            found.update(ref.index for ref in node.outs)
    return found


def _fed(nodes: Sequence[Node], position: int) -> set[Ref]:
    """Return the tensors into which the gradients computed at this node may flow, and whose ``.grad`` they set."""
    training = nodes[position]
    if training.func is torch.autograd.grad:
        return set()
    depends: dict[Ref, set[Ref]] = {}
    for node in nodes[:position]:
        owner = getattr(getattr(node.func, "__self__", None), "__name__", "")
        if call_name(node) in _CUTTING or owner == "data" or not node.modes.grad:
            continue
        taken = node.inputs
        found = set().union(*(depends.get(ref, {ref}) for ref in taken))
        for ref in node.outs:
            depends[ref] = depends.get(ref, set()) | found
    inputs = training.kwargs.get("inputs")
    if inputs is not None:
        return {value for value in leaves_of(inputs) if isinstance(value, Ref)}
    losses = [value for value in leaves_of(training.args[:1]) if isinstance(value, Ref)]
    return set().union(*(depends.get(ref, set()) for ref in losses))
