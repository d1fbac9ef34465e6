"""Collect the inputs of recursive calls: arguments, variables shared with the step, and values common to all calls.

``CallInputs.recursive_call`` also decides whether a call can be watched by itself.
"""

from __future__ import annotations

import struct
import types
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, Step, token_of
from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.rewrite import code_of
from torchjanus.rewrite.hooks.lookup import attributes_of
from torchjanus.semantics.calls.method_sets import Member
from torchjanus.semantics.calls.recursions import bind
from torchjanus.semantics.containers.enclosing import (
    Enclosing,
    enclosing,
    is_constant,
    is_named,
    places_within,
    values_within,
)
from torchjanus.semantics.record.recording import CONSTANT_TYPES
from torchjanus.semantics.torch.torch_state import ambient_modes
from torchjanus.semantics.watch.objects.state import Part
from torchjanus.trace.actions import WITHIN
from torchjanus.trace.recipes import Constant, ExistingObject, NewObject, Number, Recipe, TensorOf
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Read, Traced, is_local, leaves, plain

__all__ = ["CallInputs", "RecursiveCall", "is_own"]

_POINTER = struct.calcsize("P")


@dataclass(slots=True)
class RecursiveCall:
    """A recursive call before it is made.

    ``bound``: parameter values by name; ``fixed``: access paths of parameters that are common to all calls; ``given``:
    recipes of the others; ``callee``: the identity of the callee: function, torch's modes and everything common to
    its calls; ``names``: parameter names within the method set; ``shared``: old values of variables shared with the
    step; ``passed``: the step's variables among ``bound``; ``own``: tensors that the step has made and all calls read;
    ``made``: contents of the step's objects that all calls get (see ``content_of_new``); ``method``: its name, if the
    class of the receiver selects the function.
    """

    fn: types.FunctionType
    bound: dict[str, Any]
    fixed: dict[str, AccessPath]
    given: tuple[tuple[str, Recipe], ...]
    tensors: list[torch.Tensor]
    callee: Any
    names: dict[str, str]
    shared: list[tuple[AccessPath, Any]]
    passed: dict[str, types.CellType]
    own: dict[AccessPath, TensorRef]
    made: dict[str, Any]
    method: str | None = None

    @property
    def alike(self) -> set[str]:
        """The parameters that have the same value in all calls."""
        return {*self.fixed, *self.made}


class CallInputs(Part):
    """The inputs of recursive calls."""

    def recursive_call(
        self, fn: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any], member: Member | None
    ) -> RecursiveCall | None:
        """Return the call with its inputs, None if it cannot be watched by itself: each input needs a recipe.
        ``member``: the method lookup, if it is a method."""
        code = code_of(fn)
        always = self.state.recursions.fixed(code, member)
        bound = None if always is None else bind(fn, args, kwargs)
        if always is None or bound is None or torch._C._len_torch_function_stack() == 0:
            return None
        top = torch._C._get_function_stack_at(torch._C._len_torch_function_stack() - 1)
        if top is not self.framework:
            return None
        fixed: dict[str, AccessPath] = {}
        given: list[tuple[str, Recipe]] = []
        tensors: list[torch.Tensor] = []
        step = self.state.step
        values = list(values_within(fn, self.recording))
        if step is self.state:
            places = places_within(fn, step.recording, step.recording.lists)
            step.recording.lists.begin([*bound.values(), *values], step.recording, places, id(code))
        lists, accumulators = step.recording.lists, step.recording.accumulators
        variables = enclosing(fn, self.recording, lists, self.state.recursions.known, accumulators.is_local_accumulator)
        if not isinstance(variables, Enclosing):
            for slot in variables:
                accumulators.set_in_call(slot, slot.get())
            if not accumulators.new:
                what = "shares variables with the step that hold functions with defaults, objects, or nothing as yet"
                self.state.recursions.record_unsuitable(
                    code, what, "Pass them as arguments, and return what it computes."
                )
            return None
        own: dict[AccessPath, TensorRef] = {}
        made: dict[str, Any] = {}
        method = None if member is None or 0 in always or len(member.alike) < 2 else member.name
        names = dict(zip(bound, bound, strict=True))
        if method is not None:
            names = self.state.recursions.method_sets.parameters(method, bound)
        passed = {name: cell.cell_contents for name, cell in variables.passed.items()}
        bound |= passed
        names |= {name: name for name in passed}
        access_paths = [
            (self.recording.owner(value) or step.recording.lists.access_path(value), value) for value in values
        ]
        known = [(access_path, value) for access_path, value in access_paths if access_path is not None]
        for place, (name, value) in enumerate(bound.items()):
            access_path = self.recording.owner(value)
            if access_path is None and step is self.state and name in passed and isinstance(value, torch.Tensor):
                if (ref := self.framework.ref(value, "a recursive call")) is None:
                    return None
                access_path = next((known for known, other in own.items() if other == ref), AccessPath.own(name))
                own[access_path] = ref
                fixed[name] = access_path
                continue
            if name in passed and isinstance(value, torch.Tensor):
                if access_path is not None and (is_own(access_path) or is_named(access_path)):
                    fixed[name] = access_path
                    continue
            grown_list = step.recording.lists.access_path(value) if access_path is None else None
            if grown_list is not None:
                fixed[name] = grown_list
                continue
            if place in always and (held := self.content_of_new(value, known)) is not None:
                made[name] = held
                continue
            alike = place in always and (not isinstance(value, torch.Tensor) or is_named(access_path))
            if alike or (access_path is not None and access_path.is_grown):
                if access_path is None or is_local(access_path):
                    self._cannot_pass(code, name, value)
                    return None
                fixed[name] = access_path
                continue
            recipe = self._recipe(value, tensors)
            if recipe is None:
                self._cannot_pass(code, name, value)
                return None
            given.append((names[name], recipe))
        if method is not None and not isinstance(given[0][1], ExistingObject):
            return None
        # The modes and flags are part of the identity: nothing else distinguishes calls under other ones.
        callee = (
            id(code) if method is None else ("method", method, tuple(names.values())),
            ambient_modes(),
            *([(WITHIN, *variables.token)] if variables.token else ()),
            *(
                (access_path.token, _kind_of(passed[name]))
                for name, access_path in fixed.items()
                if is_own(access_path)
            ),
            *(name for name in bound if name.startswith("*")),
            *((names[name], access_path.token) for name, access_path in fixed.items()),
            *((names[name], *held) for name, held in made.items()),
            *step.recording.lists.places,
            step.recording.flags.token,
        )
        self.recording.keep(code)
        return RecursiveCall(
            fn, bound, fixed, tuple(given), tensors, callee, names, known, variables.passed, own, made, method
        )

    def content_of_new(self, value: Any, shared: list[tuple[AccessPath, Any]]) -> tuple[Any, ...] | None:
        """Return class and content of an object that the step has made, if it holds only constants and old objects;
        else None. The content becomes part of the callee's identity. Old objects are appended to ``shared``."""
        cls = type(value)
        if self.recording.owner(value) is not None or not _has_attributes_only(cls):
            return None
        self.recording.keep(cls)
        held: list[Any] = [id(cls)]
        for name, part in (attributes_of(value) or {}).items():
            access_path = self.recording.owner(part)
            if (
                access_path is not None
                and not is_local(access_path)
                and (is_named(access_path) or not isinstance(part, torch.Tensor))
            ):
                shared.append((access_path, part))
                held.append((name, access_path.token))
            elif is_constant(part):
                held.append((name, token_of(part)))
            else:
                return None
        return tuple(held)

    def _cannot_pass(self, code: types.CodeType, name: str, value: Any) -> None:
        kind = type(plain(value)).__name__
        if name.startswith("^"):
            what = f"shares '{name[1:]}' with the step, a {kind} that was made or changed in it"
            self.state.recursions.record_unsuitable(
                code, what, "Pass tensors and numbers, and return what it computes."
            )
            return
        what = f"is given as '{name}' a {kind} that was made or changed in the step"
        remedy = "Pass tensors, numbers, tuples, lists, or what was there before; return what else there is."
        self.state.recursions.record_unsuitable(code, what, remedy)

    def _recipe(self, value: Any, tensors: list[torch.Tensor], within: int = 0) -> Recipe | None:
        """Return the recipe of an argument, None if there is none. ``within``: the nesting depth of containers."""
        if isinstance(value, Traced):
            known = all(isinstance(leaf, Read) and not leaf.access_path.waits_for for leaf in leaves(value.expr))
            return Number(value.expr) if known else None
        if isinstance(value, torch.Tensor):
            ref = self.framework.ref(value, "a recursive call")
            if ref is None:
                return None
            tensors.append(value)
            return TensorOf(ref)
        if is_one_of(type(value), (int, float)) or is_one_of(type(value), CONSTANT_TYPES):
            return Constant(value)
        access_path = self.recording.owner(value)
        if access_path is not None:
            changed = self.recording.is_changed if self.state.outer is None else self.recording.is_written
            unknown = access_path.waits_for or access_path.is_grown or changed(value)
            return None if unknown else ExistingObject(access_path)
        if is_one_of(type(value), (tuple, list)):
            parts = [self._recipe(part, tensors, within + 1) for part in value]
            # The number of a Build is irrelevant here: each argument is a new container.
            return None if None in parts else NewObject(within, type(value), tuple(parts), ())
        return None


def _has_attributes_only(cls: type) -> bool:
    """Whether instances of a class keep all their state in their dictionary, with no slots or native fields."""
    weak = _POINTER if cls.__weakrefoffset__ > 0 else 0
    return cls.__basicsize__ - weak == object.__basicsize__ and not cls.__itemsize__


def _kind_of(tensor: torch.Tensor) -> Any:
    """Return what a shared tensor contributes to the callee's identity: dtype and ``requires_grad``."""
    with torch._C.DisableTorchFunction():
        return str(tensor.dtype), tensor.requires_grad


def is_own(access_path: AccessPath | None) -> bool:
    """Whether an access path denotes a tensor that the step has made."""
    return access_path is not None and access_path.step is Step.OWN
