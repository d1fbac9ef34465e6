"""Extern calls of a watched run: each is made once and recorded, and its result gets an access path of its own.

Checks what native code may be given and what it did to its arguments. In: a function, its arguments and effects. Out:
the result as the program sees it. ``native_calls`` and ``foreign_calls`` decide which calls are extern.
"""

from __future__ import annotations

import collections
import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath
from torchjanus.core.kinds import hasattr, is_one_of, isinstance, module_of
from torchjanus.host.journal import Journal, Method
from torchjanus.host.program_lines import Caller, caller_at
from torchjanus.rewrite import Site
from torchjanus.rewrite.hooks.lookup import attributes_of
from torchjanus.semantics.containers.shared_arrays import SharedArrays
from torchjanus.semantics.external.argument_snapshots import are_same, copied, is_unchanged, keeps, parts_of
from torchjanus.semantics.external.callbacks import Callbacks
from torchjanus.semantics.external.handling import is_handled, may_raise
from torchjanus.semantics.external.plain_parts import PlainParts
from torchjanus.semantics.known.endings import what_ends
from torchjanus.semantics.known.foreign import is_foreign_object, runs_user_code
from torchjanus.semantics.known.foreign_effects import (
    OUTPUT,
    TORCH_GENERATOR,
    changes_in_place,
    is_draw,
    is_users_cache,
)
from torchjanus.semantics.known.host_memory import memory_within
from torchjanus.semantics.known.live_views import is_view
from torchjanus.semantics.native.containers import CONTAINERS
from torchjanus.semantics.record.recording import Recording
from torchjanus.semantics.torch.framework import FrameworkRecorder
from torchjanus.semantics.torch.torch_state import generator_state
from torchjanus.trace.actions import Extern, name_of
from torchjanus.trace.effects import Effects

__all__ = ["ExternCalls", "take"]


# The results of these have memory of their own, so later changes of the arguments do not matter.
_FORGETTING: tuple[Any, ...] = (
    torch.nonzero, torch.bincount, torch.repeat_interleave, torch.Tensor.unique, torch.Tensor.unique_consecutive
)  # fmt: skip
_OF_PYTHON = ("builtins", "itertools", "collections", "_collections")
_SEEN = 1000  # at most so many objects are searched for what native code could call or change


def take(iterator: Any) -> tuple[Any, ...]:
    """Return the next element in a tuple, or an empty tuple at the end."""
    for item in iterator:
        return (item,)
    return ()


class ExternCalls:
    """Makes and records the extern calls of one run."""

    def __init__(self, recording: Recording, framework: FrameworkRecorder, journal: Journal) -> None:
        self.recording = recording
        self.framework = framework
        self.journal = journal
        # Whether the program ignores the result of the present call: True, or the function whose result is ignored.
        # Results of nested calls (by a list's sort() of foreign objects, say) are used.
        self.dropped: Any = False
        self.entered = False  # whether the result of the present call is entered by ``with``
        self.arrays = SharedArrays(recording)
        self.callbacks = Callbacks(recording)
        # The code that enters the step, and whether the step has entered a context that may suppress errors.
        self.outermost: Any = None
        self._given: dict[int, Any] = {}  # by id: objects of the step's own making that native code may have kept
        recording.holders.append(self._given.clear)
        self.suppressing = False

    def record_call_site(self, at: Site | None, func: Any) -> None:
        """Note how the program uses the result of a call that is about to be made."""
        self.dropped = func if at is not None and at.kind == "procedure" else False
        self.entered = at is not None and at.kind == "entered"

    def note_dropped(self, func: Any) -> None:
        """Note the function that is about to be called by the host."""
        if self.dropped is not False:
            self.dropped = self.dropped is True or self.dropped is func

    def make(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        effects: Effects,
        *,
        shares: bool = False,
        at_commit: tuple[tuple[Any, ...], dict[str, Any]] | None = None,
        really: Callable[..., Any] | None = None,
    ) -> Any:
        """Make the call, or take its result from the journal, and return the result as the program sees it.

        ``shares``: the result may share memory with a tensor argument. ``at_commit``: the arguments at commit, of a
        call that only shows them. ``really``: what the watched run calls instead; it has the same result.
        """
        dropped, self.dropped = self.dropped is True, False
        recording = self.recording
        number = recording.externs
        recording.externs += 1
        parts = PlainParts(recording)
        given = tuple(parts.of(self._own(a)) for a in args)
        named = {key: parts.of(self._own(a)) for key, a in kwargs.items()}
        own = self.callbacks.reached(func, args, kwargs, effects)
        changes = self.callbacks.changed(own)
        stale = self._stale((*args, *kwargs.values())) or ("" if is_users_cache(func) else self.callbacks.stale(own))
        changeable = self._mutable((*given, *named.values())) if effects.writes != OUTPUT.writes else []
        before = [(value, parts_of(value)) for value in changeable]
        reached = list(memory_within((func, *args, *kwargs.values()))) if effects.world else []
        late = self.arrays.are_read(reached)
        overwrites = late or self.arrays.are_accessed(reached)
        caller = caller_at(recording.place, func)
        try:
            result, draws = self._call(number, func, given, named, effects, really or func, caller)
        except BaseException:
            parts.put_back()
            raise
        result = parts.put_back(result)
        if recording.refuse_view((*args, *kwargs.values(), result)) or self._ends(func, args, result):
            return result
        for value, shape in before:
            if not are_same(parts_of(value), shape) or changes_in_place(func):
                recording.refuse(
                    "native-writes-argument",
                    f"{name_of(func)} changes a {type(value).__name__} that it is given",
                    "native code changes it at once, and a graph's changes are held back.",
                    "Give it a copy, and use what it returns.",
                )
        positional, keywords = at_commit or (args, kwargs)
        kept = self._kept(positional, effects)
        named_kept = dict(zip(keywords, self._kept(tuple(keywords.values()), effects), strict=True))
        recording.keep((func, args, kwargs, kept, named_kept, result))
        if not recording.lost:
            self._given.update((id(part), part) for part in parts.new_objects())
        effects = self.callbacks.effects_with(effects, func, own)
        self._check_libraries(func, args, effects)
        event = Extern(
            func, kept, named_kept, recording.place, number, recording.ops, effects, stale, draws,
            late=late, overwrites=overwrites, changes=changes, blind=self.callbacks.is_blind(own),
            handled=may_raise(func, kwargs, own) and is_handled(self.outermost, self.suppressing),
            caller=caller,
        )  # fmt: skip
        recording.note(event)
        self.arrays.note(event, (func, *args, *kwargs.values()), result)
        forgets = any(func is one for one in _FORGETTING)  # ``func`` may be unhashable
        if at_commit is None and not is_draw(func) and not forgets:
            self._watch_memory((*args, *kwargs.values()), shares, func)
        if dropped or result is NotImplemented:
            return result
        if not isinstance(result, int | float | str | bytes | type(None)) and not is_one_of(func, (max, min)):
            for value in (*args, *kwargs.values()):
                if value is result:  # a method that returns self
                    return value
        return self.feed(AccessPath.extern(number, f"{name_of(func)}()"), result)

    def _check_libraries(self, func: Any, args: tuple[Any, ...], effects: Effects) -> None:
        """Refuse a call that may use what the step has replaced in a library for a while (``sys.stdout``)."""
        replaced = self.recording.chain[0].replaced_in_libraries()
        if replaced is None or func is print or not (effects.world or effects.writes & OUTPUT.writes):
            return
        if isinstance(func, Method) and args and module_of(type(args[0])) == "_io":
            return
        what = f"{name_of(func)} is called in the middle of the step, and may read {replaced}"
        why = "the step has replaced it, and the call is made when it is what it was."
        self.recording.refuse("native-call-reads", what, why, "Replace it outside of the step.")

    def _ends(self, func: Any, args: tuple[Any, ...], result: Any) -> bool:
        """Refuse a new object of which the program sees the end, unless ``with`` closes it. It must not be kept."""
        entered, self.entered = self.entered, False
        if entered or any(result is one for one in args) or self.recording.owner(result) is not None:
            return False
        ends = what_ends(result)
        if ends:
            what = f"{name_of(func)} makes a {type(result).__qualname__}, {ends}"
            self.recording.refuse_ending(what, "Enter it by 'with', or make it outside of the step.")
        return bool(ends)

    def feed(self, access_path: AccessPath, result: Any) -> Any:
        """Return what the program gets: a value whose access path leads to the call."""
        known = self.recording.number(result) if isinstance(result, torch.Tensor) else None
        new = known is not None and known not in self.recording.trace.access_paths
        if new or (id(result) in self._given and self.recording.owner(result) is None):
            self.recording.refuse(
                "native-keeps-tensor",
                f"{access_path} gives back a {'tensor' if new else type(result).__name__} that was made in this call",
                "native code kept it, and a graph creates such objects in each call.",
                "Clone it, or keep it in Python.",
            )
            return result
        foreign = is_foreign_object(result, True)
        return self.recording.found(access_path, result, foreign=foreign)

    def _call(
        self, number: int, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], effects: Effects,
        really: Callable[..., Any], caller: Caller | None,
    ) -> tuple[Any, bool]:  # fmt: skip
        """Return the result, and whether the call used torch's generator."""
        record = self.journal.known(number, func, args, kwargs)
        if record is not None:
            return self.framework.out(record.again), record.generator is not None or effects is TORCH_GENERATOR
        self.journal.leave(number, None if effects.undo is None else effects.undo.of(args), effects.world)
        state = generator_state()
        with self.framework.passive((*args, *kwargs.values())):
            try:
                if caller is None:
                    result = self.framework.out(really, *args, **kwargs)
                else:
                    result = self.framework.out(caller, really, args, kwargs)
            except Exception as error:
                self.recording.refuse(
                    "native-raises",
                    f"{name_of(func)} raised {type(error).__name__}",
                    "what the program does about an error of native code is not part of a graph.",
                    "",
                )
                raise
        return result, effects is TORCH_GENERATOR or generator_state() != state

    # -- what goes in ---------------------------------------------------------------------------------------------

    def _own(self, value: Any) -> Any:
        """Return an argument. Refuse the trace if native code could call it."""
        if runs_user_code(value):
            self.recording.refuse(
                "native-callback",
                f"native code is given the function {name_of(value)} to call",
                "what it does then is not watched.",
                "Call it yourself, and hand over what it returns.",
            )
        return value

    def _kept(self, values: tuple[Any, ...], effects: Effects) -> tuple[Any, ...]:
        """Return the arguments for the trace. Containers that the program made may change after the call."""
        kept = []
        for value in values:
            private = isinstance(value, CONTAINERS) and self.recording.owner(value) is None
            if private and is_one_of(type(value), (list, dict, set)) and not effects.world:
                kept.append(copied(value, lambda part: self.recording.owner(part) is not None))
                continue
            if private and not isinstance(value, tuple | frozenset):
                shape = parts_of(value)
                what = f"a {type(value).__name__} changes after native code was given it"
                self.recording.hold_argument(functools.partial(keeps, value, shape), what)
            kept.append(value)
        return tuple(kept)

    def _parts(self, values: tuple[Any, ...], through: bool = False) -> Iterator[Any]:
        """Yield what native code can reach from these. ``through``: also what iterators and views refer to."""
        seen: set[int] = set()
        pending = list(values)
        while pending and len(seen) < _SEEN:
            value = pending.pop()
            if id(value) in seen or isinstance(value, str | bytes | int | float | torch.Tensor | type(None)):
                if isinstance(value, torch.Tensor):
                    yield value
                continue
            seen.add(id(value))
            yield value
            if is_foreign_object(value, True):
                pending.extend(_referents_of(value) if through else ())
                continue  # the rest of a foreign object is opaque
            if isinstance(value, dict):
                pending.extend(dict.values(value))
            elif isinstance(value, CONTAINERS):
                pending.extend(list(value))
            elif not callable(value) and isinstance(attributes_of(value), dict):
                pending.extend(attributes_of(value).values())

    def _stale(self, values: tuple[Any, ...]) -> str:
        """Return why native code must not see these values before the commit of changes that are held back."""
        recording = self.recording
        for value in self._parts(values, through=True):
            if isinstance(value, torch.Tensor):
                continue  # the graph gives its contents
            written = recording.is_written(value) or recording.call_writes.wrote(value)
            if recording.owner(value) is not None and written:
                return f"a {type(value).__name__} that the step has changed"
        return ""

    def _mutable(self, values: tuple[Any, ...]) -> list[Any]:
        return [
            value
            for value in self._parts(values)
            if not is_foreign_object(value, True)
            and (isinstance(value, list | dict | set | collections.deque) or isinstance(attributes_of(value), dict))
        ]

    # -- memory ---------------------------------------------------------------------------------------------------

    def _watch_memory(self, values: tuple[Any, ...], shares: bool, func: Any) -> None:
        """Check at the end of the call that tensors given to native code have not changed."""
        tensors = [value for value in self._parts(values) if isinstance(value, torch.Tensor)]
        for tensor in tensors:
            with torch._C.DisableTorchFunction():
                graded = tensor.requires_grad and not tensor.is_leaf
            if graded:
                self.recording.refuse(
                    "native-given-autograd",
                    f"{name_of(func)} is given a tensor with a backward graph",
                    "the graph hands out plain values only.",
                    "Give it tensor.detach().",
                )
            with torch._C.DisableTorchFunction():
                version = tensor._version if not tensor.is_inference() else -1
                copy = tensor.detach().clone() if shares else None
                alias = tensor.detach()
            self.recording.hold_argument(
                functools.partial(is_unchanged, tensor, version, copy, alias),
                f"a tensor that {name_of(func)} was given is changed later in the step",
            )


def _referents_of(value: Any) -> list[Any]:
    """Return what a builtin iterator or view refers to."""
    shows = is_view(value) or hasattr(type(value), "__next__")
    return gc.get_referents(value) if shows and module_of(type(value)) in _OF_PYTHON else []
