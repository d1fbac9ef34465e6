"""Calls of ``print``: one extern call, unless the file's ``write`` is Python code, which is watched then."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from torchjanus.core.kinds import isinstance, module_of
from torchjanus.semantics.external.surroundings import writes_by_python
from torchjanus.semantics.native.comparisons import has_python_method
from torchjanus.semantics.native.containers import WatchHooks
from torchjanus.semantics.record.recording import Recording

__all__ = ["PrintCalls"]


class PrintCalls:
    """Makes the calls of ``print`` of one watched run. ``extern``: makes an extern call."""

    def __init__(
        self, recording: Recording, watch: WatchHooks, extern: Callable[..., Any], is_foreign: Callable[[Any], bool]
    ) -> None:
        self._recording = recording
        self._watch = watch
        self._extern = extern
        self._is_foreign = is_foreign

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call ``print``. Texts that Python code makes, and files whose ``write`` is Python code, are watched."""
        file = kwargs.get("file")
        redirected = file is None and sys.stdout is not self._recording.chain[0].streams[0]
        if redirected or (file is None and writes_by_python(sys.stdout)):
            file = self._watch.attr(None, sys, "stdout")
        if redirected:  # by the step
            kwargs = {**kwargs, "file": file}
        own = (file is not None and self._recording.owner(file) is not None) or module_of(type(file)) != "builtins"
        ends = [kwargs.get(name) for name in ("sep", "end")]
        known = kwargs.keys() <= {"sep", "end", "file", "flush"} and all(e is None or isinstance(e, str) for e in ends)
        if not known or not own or not writes_by_python(file):
            shown: list[Any] = []
            for value in args:
                try:
                    shown.append(self._shown(value))
                except BaseException:
                    if known and shown:  # the values before it have been written in eager
                        sep = kwargs.get("sep")
                        self._extern(print, tuple(shown), {**kwargs, "end": " " if sep is None else sep})
                    raise
            return self._extern(print, tuple(shown), kwargs)
        sep, end = (default if e is None else e for e, default in zip(ends, (" ", "\n"), strict=True))
        for index, value in enumerate(args):
            for text in (sep, value) if index else (value,):
                self._watch.call(None, self._watch.attr(None, file, "write"), (self._watch.text(None, text, "s"),), {})
        self._watch.call(None, self._watch.attr(None, file, "write"), (end,), {})
        if self._watch.branch(None, kwargs.get("flush", False)):
            self._watch.call(None, self._watch.attr(None, file, "flush"), (), {})
        return None

    def _shown(self, value: Any) -> Any:
        """Return what ``print`` is given in place of an object whose text Python code makes."""
        if isinstance(value, torch.Tensor | BaseException) or self._is_foreign(value):
            return value
        cls: Any = type(value)
        method = "__str__" if cls.__str__ is not object.__str__ else "__repr__"
        return self._watch.text(None, value, "s") if has_python_method(cls, method) else value
