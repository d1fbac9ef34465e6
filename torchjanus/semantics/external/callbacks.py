"""Callbacks: the program's own code that a native call may run, what it may see too early, and what it may change.

``extern_calls`` makes the call; this module decides what follows from the program's code that runs within it.
"""

from __future__ import annotations

import types
from dataclasses import replace
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.kinds import isinstance
from torchjanus.core.logs import logger
from torchjanus.semantics.external.surroundings import code_reached
from torchjanus.semantics.known.called_back import seen_tensors
from torchjanus.semantics.known.foreign_effects import is_users_cache
from torchjanus.semantics.known.own_code import Reach
from torchjanus.semantics.native.containers import CONTAINERS
from torchjanus.semantics.record.recording import Recording
from torchjanus.trace.actions import HeapWrite, name_of
from torchjanus.trace.effects import PURE, Effects

__all__ = ["Callbacks"]

log = logger("faults")

_OF_PROGRAMS = frozenset({"program", "arrays", "attributes"})  # what code of the program may change beside the heap


class Callbacks:
    """Answers for the extern calls of one run what the program's own code within them does."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def reached(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], effects: Effects) -> Reach:
        """Return the program's own code that the call may run."""
        if effects is PURE and not is_users_cache(func):
            return Reach()
        try:
            return code_reached(self.recording, func, args, kwargs)
        except Exception:
            log.debug("internal fault in torchjanus while looking what native code reaches", exc_info=True)
            why = "it is native code that torchjanus does not know: it may read or change anything."
            self.recording.refuse(
                "native-unknown", f"calls {name_of(func)}", why, "Call it outside of the step and pass its result in."
            )
            return Reach()

    def stale(self, own: Reach) -> str:
        """Return why the program's own code must not run before the commit: it may read what has changed."""
        if not own.functions:
            return ""
        recording = self.recording
        for value in own.objects.values():
            written = recording.is_written(value) or recording.call_writes.wrote(value)
            if written and not isinstance(value, torch.Tensor):
                return f"a {type(value).__name__} that the step has changed"
        return ""

    def is_blind(self, own: Reach) -> bool:
        """Whether all of the program's own code that a call runs is known, and looks at no variable that the step has
        written so far. (``stale`` asks for objects.)"""
        generators = [one for one in own.functions.values() if isinstance(one, types.GeneratorType)]
        if not generators or own.unknown:
            return False
        spaces = [*filter(None, map(_globals_of, own.functions.values()))]
        owners = {path.token for space in spaces if (path := self.recording.owner(space)) is not None}
        owners |= {AccessPath.const(space, "globals").token for space in spaces}
        for event in self.recording.trace.events:
            if isinstance(event, HeapWrite) and (
                event.how == "cell" or (event.base.token in owners and event.key in own.names)
            ):
                return False
        return True

    def changed(self, own: Reach) -> str:
        """Return what the run has read so far that the program's own code may change; or ""."""
        if not own.changes:
            return ""
        recording, reads = self.recording, self.recording.reads()
        for value in own.objects.values():
            access_path = recording.owner(value) or (AccessPath.const(value) if isinstance(value, type) else None)
            if access_path is None:
                continue
            here, names = reads.get(access_path.token, set()), reads.get(access_path.then(Step.DICT).token, set())
            tensor = isinstance(value, torch.Tensor) and recording.number(value) is not None
            if own.items and (tensor or (here and isinstance(value, CONTAINERS))):
                return f"a {type(value).__name__} that the step has read before it"
            if not isinstance(value, CONTAINERS) and (here | names) & (here | names if own.anything else own.sets):
                return f"attributes of a {type(value).__name__} that the step has read before it"
        variables = {(id_, name) for id_, name in own.variables if name in reads.get(("const", id_), set())}
        cells = [cell for cell in own.cells if ("cell", cell) in reads]
        return "variables that the step has read before it" if variables or cells else ""

    def effects_with(self, effects: Effects, func: Any, own: Reach) -> Effects:
        """Return the effects of the call and of the program's own code that it may have run."""
        if not own.functions:
            return effects
        name = name_of(func)
        if own.modes:
            what = f"{name} may run code of the program's own that sets modes of torch"
            self.recording.refuse(
                "native-code-sets-mode", what, "a graph restores the modes it found.", "Set them before the step."
            )
        for same in seen_tensors(own):
            self.recording.hold_argument(same, f"a tensor that {name} may look at is changed later in the step")
        if not own.changes or effects.world:
            self.recording.called_back.add(name, own)
            return effects
        self.recording.called_back.add(name, own)
        if own.world:
            return replace(effects, world=True, user_code=True)
        reads, writes = effects.reads | _OF_PROGRAMS, effects.writes | _OF_PROGRAMS
        return replace(effects, reads=reads, writes=writes, user_code=True)


def _globals_of(code: Any) -> dict[str, Any] | None:
    """Return the global variables of a function or generator; None for what has none, or has ended."""
    if isinstance(code, types.FunctionType):
        return code.__globals__
    frame = code.gi_frame if isinstance(code, types.GeneratorType) else None
    return None if frame is None else frame.f_globals
