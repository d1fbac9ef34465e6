"""Generates the checks of an entry's assumptions: those on tensors, memory and torch's state itself, others by
``Requirements``."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from torchjanus.core.access_path import Step
from torchjanus.core.default_device import default_device
from torchjanus.graph.generalize.generalize import EntryPlan
from torchjanus.graph.ir.dimensions import is_size
from torchjanus.graph.loops.rewrites.lists import rows_of
from torchjanus.host.assumption import AmbientState, Assumption, Condition, ValueOf
from torchjanus.host.checks import LeafHooks, autocast_regions
from torchjanus.host.node_hooks import has_node_hooks
from torchjanus.host.requirements import Requirements
from torchjanus.host.source import Source
from torchjanus.host.tensor_assumptions import Distinct, Memory, TensorKind, are_disjoint, distinct
from torchjanus.semantics.torch.backward_code import LEAF_HOOKS
from torchjanus.trace.modes import ATTENTION
from torchjanus.trace.values import Fetch, depends_on

__all__ = ["Guards"]


class Guards:
    """Writes into ``source`` the checks that make a call miss."""

    def __init__(
        self, source: Source, plan: EntryPlan, assumptions: Sequence[Assumption], differentiable: bool = False
    ) -> None:
        """``differentiable``: autograd itself calls the hooks of inputs, after the call."""
        self.source = source
        self.requirements = Requirements(source)
        self.plan = plan
        self.assumptions = assumptions
        self.differentiable = differentiable

    def require(self, after: int = 0, followed: bool = False) -> None:
        """Check the assumptions that need exactly this many extern calls. After the last of a stage, its inputs can be
        read. ``followed``: those about what recursive calls append to lists."""
        source, requirements = self.source, self.requirements
        kinds: dict[Any, TensorKind] = {}
        of_sizes: list[Condition] = []  # checked once the tensors are known to have so many dimensions
        for assumption in self.assumptions:
            waiting = self.plan.schedule.last(access_path.waits_for for access_path in assumption.access_paths())
            known = any(access_path.is_grown for access_path in assumption.access_paths()) == followed
            if isinstance(assumption, Distinct) or waiting != after or not known:
                continue
            if isinstance(assumption, TensorKind):
                kinds[assumption.access_path] = assumption
            elif isinstance(assumption, AmbientState):
                self._ambient(assumption)
            elif isinstance(assumption, Condition) and any(
                is_size(access_path) for access_path in assumption.access_paths()
            ):
                if not _waits(assumption):
                    of_sizes.append(assumption)
            elif not _waits(assumption):
                requirements.require(assumption)
                if isinstance(assumption, ValueOf) and type(assumption.value) in (int, float):
                    source.give_number(assumption.access_path, assumption.value)
        if not after and not followed:
            if self.differentiable:
                self._several_hooks()
            else:
                self._no_hooks()
        requirements.require_collected()
        checked = list(kinds.values())
        if checked:
            sizes, strides = map(list, zip(*map(_held_geometry, checked), strict=True))
            guards = torch._C._dynamo.guards.TensorGuards(
                *map(_as_found, checked), dynamic_dims_sizes=sizes, dynamic_dims_strides=strides
            )
            names = [source.value(k.access_path) for k in checked]
            source.fail_if(f"not {source.constant(guards.check)}({', '.join(names)})")
        source.flush()
        for kind in checked:
            for dim, stride in enumerate(kind.strides):
                if not isinstance(stride, int):
                    parts = (source.value(kind.access_path.then(Step.SIZE, inner)) for inner in stride)
                    source.fail_if(f"{source.value(kind.access_path)}.stride({dim}) != {' * '.join(parts)}")
        for condition in of_sizes:
            requirements.require(condition)
        source.flush()

    def _no_hooks(self) -> None:
        """Check that no tensor has hooks that autograd would call, but those that were watched."""
        source, requirements = self.source, self.requirements
        places = [a.access_path for a in self.assumptions if hasattr(a, "access_path")]
        hooked = {place.base for place in places if type(place.key) is str and place.key in LEAF_HOOKS}
        requirements.nodes_matter = graded = any(node.modes.grad for node in self.plan.program.nodes)
        inputs = zip(self.plan.access_paths, self.plan.pinned, self.plan.program.inputs, strict=True)
        for access_path, tensor, entry in inputs:
            if access_path in hooked or access_path.waits_for or access_path.is_grown:
                continue
            if tensor is not None and tensor.requires_grad:
                requirements.hookless.append(tensor)
            elif tensor is None and entry.requires_grad:
                name = source.value(access_path)
                source.fail_if(f"{name}._backward_hooks or {name}._post_accumulate_grad_hooks")
                if graded:
                    source.fail_if(f"{source.constant(has_node_hooks)}({name})")

    def _several_hooks(self) -> None:
        """Check that at most one leaf has hooks: autograd calls them after the call."""
        source, inputs = (
            self.source,
            zip(self.plan.access_paths, self.plan.pinned, self.plan.program.inputs, strict=True),
        )
        given = [(o, tensor) for o, tensor, entry in inputs if entry.requires_grad and entry.is_leaf]
        known = source.constant(LeafHooks(tuple(tensor for _, tensor in given if tensor is not None)))
        others = ", ".join(source.value(o) for o, tensor in given if tensor is None)
        source.fail_if(f"{known}.are_several({others})")

    def require_fetched(self) -> None:
        """Check the conditions on numbers that were fetched from input tensors."""
        for assumption in self.assumptions:
            if _waits(assumption):
                self.requirements.require(assumption)

    def require_apart(self) -> None:
        """Check that tensors do not share memory, once all of them have been read."""
        for assumption in self.assumptions:
            if isinstance(assumption, Distinct):
                self._distinct(assumption)

    def _distinct(self, assumption: Distinct) -> None:
        source = self.source
        # The copy itself may be anywhere; the tensors that it is made of may not.
        copied = [source.value(o.base) for o in assumption.fresh if o.key is rows_of and o.base is not None]
        fresh = [source.value(o) for o in assumption.fresh if o.key is not rows_of]
        held = source.constant(Memory(assumption.pinned))
        shared = [f"{held}.holds({name}.data_ptr())" for name in fresh]
        shared += [f"any([{held}.holds(part.data_ptr()) for part in {name}])" for name in copied]
        if assumption.moving:
            found = ", ".join([*fresh, *(f"*{name}" for name in copied)])
            source.fail_if(f"not {source.constant(are_disjoint)}([{found}], {source.constant(assumption.moving)})")
        source.fail_if(" or ".join(shared))
        if assumption.mutually:
            fresh += [f"*{name}" for name in copied]
            source.fail_if(f"not {source.constant(distinct)}([{', '.join(fresh)}])")

    def _ambient(self, assumption: AmbientState) -> None:
        source, modes = self.source, assumption.modes
        source.fail_if(f"{source.constant(torch.is_grad_enabled)}() is not {modes.grad}")
        source.fail_if(f"{source.constant(torch.is_inference_mode_enabled)}() is not {modes.inference}")
        source.fail_if(f"{source.constant(torch._C._is_any_autocast_enabled)}() is not {bool(modes.autocast)}")
        if modes.autocast:
            source.fail_if(f"{source.constant(autocast_regions)}() != {source.constant(modes.autocast)}")
        for name, is_enabled in ATTENTION if assumption.attention else ():
            source.fail_if(f"{source.constant(is_enabled)}() is {name in modes.without}")
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
        if assumption.filters is not None:
            source.fail_if(f"{source.constant(assumption.filters.differ)}({source.constant(warnings)}.filters)")


def _waits(assumption: Assumption) -> bool:
    """Whether it is a condition on numbers that have to be fetched from small input tensors first."""
    return isinstance(assumption, Condition) and depends_on(assumption.expr, Fetch)


def _as_found(kind: TensorKind) -> torch.Tensor:
    """Return the example with requires_grad as it was when the call began; the call may have changed it."""
    example, requires_grad = kind.example, kind.detail[-2]
    if example.requires_grad == requires_grad:
        return example
    if isinstance(example, torch.nn.Parameter):
        return torch.nn.Parameter(example.detach(), requires_grad)
    return example.detach().requires_grad_(requires_grad)


def _held_geometry(kind: TensorKind) -> tuple[list[int | None], list[int | None]]:
    """Return the sizes and strides that a tensor is checked for; None where they may vary."""
    sizes, strides = kind.detail[2:4]
    if not kind.free:
        return list(sizes), list(strides) if isinstance(strides, tuple) else []
    held = [None if free else size for free, size in zip(kind.free, sizes, strict=True)]
    return held, [stride if isinstance(stride, int) else None for stride in kind.strides]
