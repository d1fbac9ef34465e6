"""Watches, while a call is recorded, which functions of Python run: what torch's calls do not show.

Functions that autograd or another operation calls back, custom functions of autograd, transforms, seeding, and code
that asks for the exact class of an object. What the collector of cycles calls (finalizers, callbacks) is not the
program's: it runs wherever a collection happens to begin. Knows nothing of events.
"""

from __future__ import annotations

import dis
import gc
import os
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable
from functools import cache, lru_cache
from itertools import repeat
from typing import Any

import torch
from torch.autograd.function import Function

from torchjanus.core.errors import NOWHERE, OWN_FOLDER, Place
from torchjanus.rewrite.hooks.frames import CALLING
from torchjanus.runtime.coexecution.recording.settings import is_setting

__all__ = ["Observer", "asks_for_class", "is_foreign", "is_seen_through"]

_TORCH = os.path.dirname(torch.__file__) + os.sep
_CALLBACK = "its code would run within an operation, of which a skeleton makes none."
_TRANSFORM = "it computes with wrapped tensors, which a skeleton does not have."
_GENERATOR = "the graph's draws are made at another time."
_FUNCTION = ("coexecution-callback", "calls a torch.autograd.Function", _CALLBACK)
_APPLY = getattr(Function.apply, "__code__", None)  # before PyTorch 2.14; native code since then
_CODE: dict[types.CodeType, tuple[str, str, str]] = {
    **({} if _APPLY is None else {_APPLY: _FUNCTION}),
    torch.nn.Parameter.__new__.__code__: (
        "coexecution-tensor", "makes a parameter", "it is an object of a class that depends on the tensor's class."
    ),
    torch.autograd.graph.saved_tensors_hooks.__enter__.__code__: (
        "coexecution-callback", "sets hooks for saved tensors", _CALLBACK
    ),
}  # fmt: skip
_FILES = {
    f"{_TORCH}_functorch{os.sep}": ("coexecution-modes", "uses a transform of torch.func", _TRANSFORM),
    f"{_TORCH}jit{os.sep}_script.py": ("coexecution-modes", "calls a compiled function", "its calls are not seen."),
}
_GENERATED = ("<torchjanus", "<frozen", "<__array_function__", "<torch")
LIFETIMES = frozenset(
    "weakref ref proxy finalize WeakValueDictionary WeakKeyDictionary WeakSet WeakMethod getrefcount".split()
)
_SHOWS = warnings._showwarnmsg.__code__  # type: ignore[attr-defined]
_SETTING = frozenset({"manual_seed", "seed", "set_state", "get_state", "graphsafe_set_state"})
# Libraries that get arrays and numbers, never tensors.
_NUMERIC = (
    "numpy", "scipy", "sklearn", "narwhals", "pandas", "matplotlib", "typing_extensions.py", "_distutils_hack",
)  # fmt: skip


class Observer:
    """``refuse``: called with a reason's code, what was found, why that is not supported, and the place."""

    def __init__(self, refuse: Callable[[str, str, str, Place], None]) -> None:
        self._refuse = refuse
        self.within = False  # while one of torch's calls runs
        self.modules: set[str | None] = set()  # of code that has run
        self.foreign = 0  # calls of functions that are neither torch's nor the standard library's
        self._watching = False
        self._thread = -1  # the one that is watched
        self._collecting = False  # while it collects cycles

    def start(self) -> None:
        """Watch this thread from now on. Another profiler is left alone: then nothing may be learnt from the call."""
        if sys.getprofile() is None:
            self._thread, self._watching = threading.get_ident(), True
            gc.callbacks.insert(0, self._collection_begins)  # before all others, and after them
            gc.callbacks.append(self._collection_ends)
            sys.setprofile(self._look)
        else:
            self._refuse("coexecution-modes", "a profiler is at work", "there can be no second one.", NOWHERE)

    def stop(self) -> None:
        """Stop watching."""
        if self._watching:
            self._watching = False
            sys.setprofile(None)
            for callback in (self._collection_begins, self._collection_ends):
                if callback in gc.callbacks:  # the list is the program's, too
                    gc.callbacks.remove(callback)

    def _collection_begins(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start" and threading.get_ident() == self._thread:
            self._collecting = True

    def _collection_ends(self, phase: str, _: dict[str, int]) -> None:
        if phase == "stop" and threading.get_ident() == self._thread:
            self._collecting = False

    def _look(self, frame: types.FrameType, event: str, arg: Any) -> None:
        if event == "c_call":
            name, owner = getattr(arg, "__name__", ""), getattr(arg, "__self__", None)
            if name in _SETTING and type(owner) is torch.Generator:
                if not frame.f_code.co_filename.startswith(OWN_FOLDER) and owner is torch.default_generator:
                    self._say("coexecution-generator", f"calls {name}() of a generator", _GENERATOR, frame)
            elif is_setting(arg):
                if not frame.f_code.co_filename.startswith(OWN_FOLDER):
                    what = f"sets how torch computes ({name})"
                    self._say("coexecution-modes", what, "operations run later than they are called.", frame)
            elif name == "apply" and isinstance(owner, type) and issubclass(owner, Function):
                # Graphs have functions of their own.
                if not frame.f_code.co_filename.startswith((OWN_FOLDER, *_GENERATED)):
                    self._say(*_FUNCTION, frame)
        elif event == "call" and frame.f_code.co_name != CALLING:
            code = frame.f_code
            module = frame.f_globals.get("__name__")
            if not self._collecting:
                self.modules.add(module)
                self.foreign += not (is_seen_through(code.co_filename) or str(module).startswith("torchjanus."))
            found = _CODE.get(code) or _of_file(code.co_filename)
            if code.co_name == "compile_wrapper" and code.co_filename.startswith(_TORCH):  # torch.compile()
                found = ("coexecution-modes", "calls a compiled function", "its calls of torch are not seen.")
            if found is not None:
                self._say(*found, frame)
            elif self.within and code is _SHOWS:
                self._say("coexecution-callback", "an operation warns", "a skeleton makes none.", frame)
            elif self.within and not self._collecting:
                named = str(frame.f_globals.get("__name__", "")).startswith("namedtuple_")
                if not named and not _is_plain(code.co_filename):
                    self._say("coexecution-callback", f"torch calls {code.co_qualname}", _CALLBACK, frame)
            elif asks_for_class(code):
                what = f"{code.co_qualname} asks for the exact class of an object"
                self._say("coexecution-type", what, "a placeholder has a class of its own.", frame)
            elif (names := _names_of_lifetimes(code)) and any(map(_is_of_lifetimes, names, repeat(frame.f_globals))):
                what = f"{code.co_qualname} makes weak references, or counts references"
                self._say("coexecution-tensor", what, "tensors are held until the call ends.", frame)

    def _say(self, code: str, what: str, why: str, frame: types.FrameType) -> None:
        place = Place(frame.f_code.co_filename, frame.f_lineno, function=frame.f_code.co_name)
        self._refuse(code, what, why, place)


@cache
def _is_plain(file: str) -> bool:
    """Whether it is torch's, torchjanus', the standard library's, or generated."""
    standard = Place(file, 1).is_library and f"{os.sep}site-packages{os.sep}" not in file
    return standard or file.startswith((_TORCH, OWN_FOLDER, *_GENERATED))


@cache
def _of_file(file: str) -> tuple[str, str, str] | None:
    return next((found for start, found in _FILES.items() if file.startswith(start)), None)


@lru_cache(maxsize=4096)
def asks_for_class(code: types.CodeType) -> bool:
    """Whether a function calls ``type(x)`` of anything but ``self``. ``x.__class__`` a placeholder answers."""
    if is_seen_through(code.co_filename) or "type" not in code.co_names:
        return False
    asked = [one for one in dis.get_instructions(code) if one.opname not in ("CACHE", "PRECALL", "RESUME", "COPY")]
    return any(
        one.argval == "type" and one.opname.startswith(("LOAD_GLOBAL", "LOAD_NAME")) and after.argval != "self"
        for one, after in zip(asked, asked[1:] + asked[-1:], strict=True)
    )


@lru_cache(maxsize=4096)
def _names_of_lifetimes(code: types.CodeType) -> tuple[str, ...]:
    """Return the names in a function by which it may ask how long objects live."""
    return () if is_seen_through(code.co_filename) else tuple(LIFETIMES.intersection(code.co_names))


def _is_of_lifetimes(name: str, names: dict[str, Any]) -> bool:
    """Whether a global name has that meaning in a module with these ``names``."""
    found = names.get(name, weakref)  # else it is imported within the function
    return name in ("weakref", "getrefcount") or getattr(found, "__module__", None) == "weakref" or found is weakref.ref


def is_seen_through(file: str) -> bool:
    """Whether its code is known not to depend on the exact class of a tensor."""
    return _is_plain(file) or _is_numeric(file)


def is_foreign(file: str) -> bool:
    """Whether it is a library's."""
    return Place(file, 1).is_library


@cache
def _is_numeric(file: str) -> bool:
    return any(f"{os.sep}site-packages{os.sep}{name}{os.sep}" in file + os.sep for name in _NUMERIC)
