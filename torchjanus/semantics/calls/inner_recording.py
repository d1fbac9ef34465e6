"""Record the heap of one recursive call: its arguments, and the values that it shares with the step.

A graph repeats a call for other nodes, so reads of arguments get access paths from the parameters. Everything else
(parameters of the model, globals) is common to all calls: the step records these reads under the same access path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, repeat
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.kinds import getattr, is_one_of, isinstance
from torchjanus.rewrite.hooks.lookup import attributes_of
from torchjanus.semantics.known.details import tensor_detail
from torchjanus.semantics.native.containers import CONTAINERS
from torchjanus.semantics.record.accumulator import only_accumulated
from torchjanus.semantics.record.recording import Recording
from torchjanus.semantics.record.write_record import WriteRecord
from torchjanus.trace.actions import ContainerMutation
from torchjanus.trace.context_facts import context_facts
from torchjanus.trace.events import Event
from torchjanus.trace.facts import EmptinessTest, HeapRead, KeyLookup, KeySetRead
from torchjanus.trace.values import Expr, is_local, plain

__all__ = ["InnerRecording"]

_FIRST = 4  # limit on the parts of a container that are inspected


class _AllLocal:
    """The access paths from parameters: strings read there (words of nodes) are traced."""

    def __contains__(self, access_path: object) -> bool:
        return isinstance(access_path, AccessPath) and is_local(access_path)

    def __iter__(self) -> Iterator[AccessPath]:
        return iter(())

    def __len__(self) -> int:
        return 0


class InnerRecording(Recording):
    """The recording of one recursive call. ``step``: that of the whole run; ``outer``: that of the caller."""

    def __init__(self, step: Recording, outer: Recording) -> None:
        super().__init__(_AllLocal())
        self.step = step
        self.call_writes = step.call_writes
        self.chain, self.writers, self.depth = step.chain, step.writers, outer.depth + 1
        self.chain[self.depth :] = [self]
        self._fixed: dict[AccessPath, Any] = {}
        self._given: dict[int, torch.Tensor] = {}
        self.entered = step.accumulators.entered()  # versions of the number accumulators at its begin
        self.accumulated: set[int] = set()  # numbers of tensors read from accumulators or derived from them

    def varies(self, access_path: AccessPath) -> bool:
        return False  # an object that is looked up in a recursive call is constant

    def record_fixed_object(self, access_path: AccessPath, value: Any) -> None:
        """Record an object that all calls get under this access path."""
        self.claim(value, access_path)
        self._fixed[access_path] = value

    def refused(self) -> None:
        self.step.accumulators.give_up()

    def object_at(self, access_path: AccessPath) -> Any:
        """Return the object that the call has read at an access path, or None."""
        return self._object_at(access_path)

    def _object_at(self, access_path: AccessPath) -> Any:
        return self._found.get(access_path, self._fixed.get(access_path))

    def _check_leaving(self) -> None:
        """Check nothing: results of a call stay within the step."""

    def record_given_tensor(self, tensor: torch.Tensor) -> None:
        """Record a tensor that the caller passes, directly or in a container."""
        self._given[id(tensor)] = tensor

    def is_given(self, tensor: torch.Tensor) -> bool:
        """Whether the caller passes this tensor, and it is not read from an object."""
        return id(tensor) in self._given

    def found(self, access_path: AccessPath, value: Any, *, trusted: bool = False, foreign: bool = False) -> Any:
        if self.lost:  # reads may now return objects that the run has made
            self.claim_unless_plain(value, access_path)
            return value
        if access_path.is_grown:
            self._refuse_grown()
        if access_path.token in self.step.counts and is_one_of(type(value), (int, float)):
            return super().found(access_path, value)  # the number differs between calls
        if access_path.step is Step.OWN:
            return self._found_own(access_path, value)
        if not is_local(access_path):
            self.step.place = self.place
            known = self.step.found(access_path, value, trusted=trusted, foreign=foreign)
            if access_path not in self.step.settled:
                self._note_relied(HeapRead(access_path, value, "object"))
            if is_one_of(type(value), (int, float, str)):
                # Values that are common to all calls may determine sizes.
                return self.step.pin(known, "is used in recursive calls")
        elif isinstance(value, torch.Tensor) and self.is_given(value) and self.owner(value) is None and not self.lost:
            return self._found_given(access_path, value)
        if not self.call_writes.is_appended(value) and not self._has_names(access_path, value):
            if any(map(self._is_changed, self._around(), repeat(value))):
                self._refuse_written()
        return super().found(access_path, value, trusted=trusted, foreign=foreign)

    def _found_own(self, access_path: AccessPath, tensor: torch.Tensor) -> torch.Tensor:
        """Record a read of a tensor that the step has made. Calls treat it like a parameter."""
        if access_path not in self._found:
            self._found[access_path] = tensor
            detail = tensor_detail(tensor)
            self.shapes.setdefault(id(tensor), detail[2])
            self.claim(tensor, access_path)
            self.note(HeapRead(access_path, tensor, "tensor", detail, self.place))
        return tensor

    @staticmethod
    def _has_names(access_path: AccessPath, value: Any) -> bool:
        """Whether the object is common to all calls and is read attribute by attribute, so that writes of the step are
        checked at each attribute."""
        return not is_local(access_path) and (access_path.step is Step.DICT or not isinstance(value, CONTAINERS))

    def _is_changed(self, outer: WriteRecord, value: Any) -> bool:
        return outer.is_changed(value) if outer is self.step else outer.is_written(value)

    def _found_given(self, access_path: AccessPath, tensor: torch.Tensor) -> torch.Tensor:
        """Record a read of a passed tensor with the metadata of a contiguous row: in a graph it is a row."""
        cls, dtype, shape, _, device, _, _ = tensor_detail(tensor)
        stride, strides = 1, []
        for size in reversed(shape):
            strides.append(stride)
            stride *= size
        detail = (cls, dtype, shape, tuple(reversed(strides)), device, tensor.dtype.is_floating_point, False)
        self._found[access_path] = tensor
        self.shapes.setdefault(id(tensor), shape)
        self.claim(tensor, access_path)
        self.note(HeapRead(access_path, tensor, "tensor", detail, self.place))
        return tensor

    def is_new_class(self, cls: type) -> bool:
        return super().is_new_class(cls) and self.step.is_new_class(cls)

    def may_be_key(self, expr: Expr, base: AccessPath, value: Any) -> bool:
        # A call that selects a part of the model (``cells[node.kind]``) is a variant of its own: parts of the model are
        # common to its calls and have gradients, unlike data of nodes.
        return super().may_be_key(expr, base, value) and (is_local(base) or not _is_of_model(value))

    # The step records what is known of values common to all calls.

    def held(self, access_path: AccessPath, value: Any, functions: Iterable[Any] = ()) -> None:
        if is_local(access_path):
            super().held(access_path, value, functions)
        else:
            self.step.place = self.place
            self.step.held(access_path, value, functions)
            self._note_relied(HeapRead(access_path, value, "pinned"))

    def absent(self, base: AccessPath, key: Any, present: bool = False) -> None:
        by_node = isinstance(getattr(key, "expr", None), Expr)
        fact = KeyLookup(base, key, present, self.place)
        self._note_relied(fact)
        self._recording_of(base, by_node).note_once(fact)

    def store(
        self,
        how: str,
        container: Any,
        key: Any,
        value: Any,
        base: AccessPath,
        *,
        field: str | None = None,
        new: bool = False,
    ) -> None:
        accumulator = None if self.lost else self.step.accumulators.at(container, plain(key))
        if accumulator is not None:
            # Another call may get another object by the same path.
            if is_local(base) or not accumulator.write(self, value):
                if isinstance(value, torch.Tensor):
                    self.step.accumulators.adds(accumulator.stored)
                self.refuse_accumulator_use()
            self.step.note_accumulated(container, plain(key), accumulator.now)
            return
        super().store(how, container, key, value, base, field=field, new=new)
        self.step.accumulators.learn(container, plain(key), self.step.last_store(container, plain(key)), value)
        self.call_writes.record_store(container, plain(key), self)
        if (
            not is_local(base)
            and how in ("item", "field")
            and type(key) is str
            and is_one_of(type(plain(value)), (int, float))
        ):
            place = base.item(key) if how == "item" else base.then(Step.FIELD, key)
            if place in self._found or self.step.has_found(place):
                self.step.counts.add(place, container, key)

    def mutate(self, owner: type, method: str, args: tuple[Any, ...], base: AccessPath) -> None:
        if base.is_grown:
            self._append(owner, method, args, base)
            return
        known = self._object_at(base)
        if known is None:
            self.refuse(
                "recursion-list-used",
                "a recursive call changes a list that was not found before",
                "nothing is known of it.",
            )
        if self.call_writes.is_appended(known):  # other calls have appended before
            self.keep(args)
            self._mutated.add(base)
            self._writes()
            self.note(ContainerMutation(base, method, args, owner, self.place))
        else:
            super().mutate(owner, method, args, base)
        self.call_writes.record_append(known)

    def _append(self, owner: type, method: str, args: tuple[Any, ...], base: AccessPath) -> None:
        """Record an append of tensors to an output list of the step. Refuse other mutations."""
        if method == "count":  # update of an accumulator
            self.keep(args)
            self.note(ContainerMutation(base, method, args, owner, self.place))
            return
        if method != "append" or type(args[0]) is not torch.Tensor:
            what = "a recursive call does something else with a list of the step than appending tensors"
            self.refuse("recursion-list-used", what, "calls are run many at a time.", "Return what it computes.")
            return
        for tensor in args:
            with torch._C.DisableTorchFunction():
                self.trace.appends.add((base.key, bool(tensor.requires_grad)))
            found = self.owner(tensor)
            if found is not None and self.number(tensor) is None:
                self.input_tensor(tensor, found)
        self.keep(args)
        self.note(ContainerMutation(base, method, args, owner, self.place))

    def _refuse_grown(self) -> None:
        what = "a recursive call looks into a list to which calls append"
        self.refuse(
            "recursion-list-used", what, "calls are run many at a time, in another order.", "Return what it computes."
        )

    def filled(self, base: AccessPath, outcome: bool) -> None:
        if base.is_grown:
            self._refuse_grown()
        self._look_at(base)
        self._refuse_names(base)
        fact = EmptinessTest(base, outcome, self.place)
        self._note_relied(fact)
        self._recording_of(base).note_once(fact)

    def keys(self, base: AccessPath, keys: tuple[Any, ...]) -> None:
        self._refuse_names(base)
        recording = self._recording_of(base)
        for key in keys:
            recording.keep(key)
        fact = KeySetRead(base, keys, self.place)
        self._note_relied(fact)
        recording.note_once(fact)

    def _is_own(self, container: Any) -> bool:
        """Whether a container belongs to an argument: other calls have another one."""
        own = (value for access_path, value in self._found.items() if is_local(access_path))
        return any(container is value or container is attributes_of(value) for value in own)

    def _refuse_names(self, access_path: AccessPath) -> None:
        """Refuse a query of all names if the step has written to the object."""
        at = access_path.base if access_path.step is Step.DICT and access_path.base is not None else access_path
        if self.step.is_written(self._object_at(at)):
            self._refuse_written()

    def _note_relied(self, fact: Event) -> None:
        """Record a fact that the call relies on. If it is independent of the arguments, it holds for the variant."""
        self.trace.context.update(context_facts([fact]))

    def _recording_of(self, access_path: AccessPath, by_node: bool = False) -> Recording:
        if by_node or is_local(access_path):
            return self
        self.step.place = self.place
        return self.step

    def has_written(self, container: Any, key: Any) -> bool:
        for outer in self._around():
            if outer.knows_write(container, key):
                if outer is self.step and outer.accumulators.at(container, plain(key)) is not None:
                    return not self.lost
                if outer is self.step and outer.has_set_flag(container, key) and not self._is_own(container):
                    if not self.call_writes.is_stored(container, plain(key), self):
                        return not self.lost
                    self._refuse_written()  # another call has overwritten the flag
                    break
                value = outer.written(container, key)
                if self._is_counted(container, key, value):
                    return False
                access_path = self.step.lists.access_path(value) if outer is self.step else None
                if access_path is None:
                    if self.step.accumulators.asked(container, plain(key), self.step.last_store(container, plain(key))):
                        self.refuse_accumulator_use()
                    else:
                        self._refuse_written()
                    break
                self.record_fixed_object(access_path, value)
                return not self.lost
        if self._is_counted(container, key, self.call_writes.last(container, key)):
            return not self.lost and self.knows_write(container, key)
        return super().has_written(container, key)

    def _is_counted(self, container: Any, key: Any, value: Any) -> bool:
        """Whether another call has written a number there, to an argument or a shared counter. Uses of that number
        other than to update it are refused when variants are merged."""
        known = is_one_of(type(plain(value)), (int, float))
        return known and (self._is_own(container) or self.step.counts.holds(container, key))

    def written(self, container: Any, key: Any) -> Any:
        accumulator = self.step.accumulators.at(container, plain(key))
        if accumulator is not None:
            return accumulator.read(self)
        return (
            super().written(container, key) if self.knows_write(container, key) else self.step.written(container, key)
        )

    def refuse_accumulator_use(self) -> None:
        """Refuse a use of an accumulator that cannot be recorded."""
        what = "a recursive call does something else with what the step sets and calls change than to add or count"
        self.refuse(
            "recursion-accumulator", what, "calls are run many at a time, in another order.", "Return it from the call."
        )

    def check_accumulator_uses(self) -> None:
        """Check, at the end of the call, that it uses accumulators only to update them."""
        if self.step.accumulators and not self.lost and not only_accumulated(self.trace, self.accumulated):
            self.refuse_accumulator_use()

    def _around(self) -> Iterator[WriteRecord]:
        """Yield the recordings of enclosing calls with writes, innermost first. (Thousands may have none.)"""
        self.writers[:] = [w for w in self.writers if w.depth < len(self.chain) and self.chain[w.depth] is w]
        yield from sorted((w for w in self.writers if w.depth < self.depth), key=lambda w: w.depth, reverse=True)

    def _refuse_written(self) -> None:
        self.refuse(
            "recursion-reads-writes",
            "a recursive call reads what was written in the same step",
            "calls are run many at a time, in another order.",
            "Pass it to the call, or return it.",
        )


def _is_of_model(value: Any, deep: bool = True) -> bool:
    """Whether a value is part of a model: a module, a parameter, or a container or object that starts with one."""
    if isinstance(value, torch.nn.Module):
        return True
    if isinstance(value, torch.Tensor):
        with torch._C.DisableTorchFunction():
            return bool(value.requires_grad)
    inside: Any = value if is_one_of(type(value), (dict, list, tuple)) else (attributes_of(value) or ())
    parts = inside.values() if type(inside) is dict else inside if is_one_of(type(inside), (list, tuple)) else ()
    return deep and any(_is_of_model(part, deep=False) for part in islice(parts, _FIRST))
