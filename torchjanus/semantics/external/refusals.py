"""Refusals of native calls that no graph can make: why, by the kind of the function, and what to do instead.

In: the recording of the run, and the function, mode or class. Out: a refusal with its reason code in the recording.
"""

from __future__ import annotations

import abc
from types import FunctionType
from typing import Any

from torch.utils._device import DeviceContext

from torchjanus.core.default_device import is_own
from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.rewrite.hooks.lookup import on_type
from torchjanus.semantics.known.callers import calls_given, is_search
from torchjanus.semantics.known.closed import calls_functions, communicates, is_torch_script
from torchjanus.semantics.record.recording import Recording

__all__ = ["is_registered_already", "refuse_mode", "refuse_native"]

_NO_HOOK = vars(object)["__subclasshook__"]


def refuse_native(recording: Recording, fn: Any, name: str, why: str = "") -> None:
    """Refuse a call of torch's native code about which nothing is known, or which no graph can make."""
    if communicates(fn):
        recording.refuse(
            "distributed",
            f"calls {name}",
            why or "processes communicate there, in an order that all of them keep, and a graph makes no such calls.",
            "Speculate on what comes before it and on what comes after it.",
        )
    elif is_search(fn) or (isinstance(fn, FunctionType) and calls_given(fn)):
        recording.refuse(
            "closure-search",
            f"calls {name}",
            why or "how often it calls the function that it is given depends on the results: no two runs are alike.",
            "Nothing need be done: that function is speculated on by itself.",
        )
    elif calls_functions(fn):
        remedy = "Write it with Python's own if, for and while."
        recording.refuse("higher-order-operator", f"calls {name}", "it calls functions that are not watched.", remedy)
    elif is_torch_script(fn):
        remedy = "Call the function or module it was made of."
        recording.refuse("torchscript", f"calls {name}", "what TorchScript does is not watched.", remedy)
    else:
        recording.refuse(
            "native-unknown",
            f"calls {name}",
            "it is native code that torchjanus does not know: it may read or change anything.",
            "Call it outside of the step and pass its result in.",
        )


def refuse_mode(recording: Recording, mode: Any) -> None:
    """Refuse the trace if a mode that is activated would see calls of torch, since a graph makes none."""
    if isinstance(mode, DeviceContext):
        what = "the default device is set inside the step"
        recording.refuse(
            "default-device", what, "a graph restores the modes it found.", "Use 'with torch.device(...):'."
        )
    elif not is_own(mode):
        what = f"the step enters a mode ({type(mode).__qualname__})"
        recording.refuse(
            "torch-mode", what, "it sees each call of torch, of which a graph makes none.", "Leave it out."
        )


def is_registered_already(recording: Recording, kind: Any, cls: Any) -> bool:
    """Whether registering a class with an abstract class changes nothing and runs no code of the program."""
    if not is_one_of(type(cls), (type, abc.ABCMeta)) or recording.is_new_class(cls):
        return False
    pending, seen = [kind], set()
    while pending:
        one = pending.pop()
        if type(one) is type:
            continue
        if type(one) is not abc.ABCMeta:
            return False
        if one in seen:
            continue
        if on_type(one, "__subclasshook__") is not _NO_HOOK:
            return False
        seen.add(one)
        registered = (ref() for ref in abc._get_dump(one)[0])  # type: ignore[attr-defined]
        derived: list[type] = type.__subclasses__(one)  # type: ignore[arg-type]
        pending += [*derived, *(each for each in registered if each is not None)]
    return type(kind) is abc.ABCMeta and issubclass(cls, kind)
