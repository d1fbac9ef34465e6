"""Calls of torch's functions from a frame that stands for the user's line, and whether they warn.

A warning names the line of the frame that called, and Python remembers in that module's ``__warningregistry__`` which
warnings it has shown. In a watched run those frames are torchjanus's. So the call is made by a function with the file,
line and module name of the program's, and a copy of its registry. Nothing outside of that function is exchanged.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from torchjanus.core.errors import Place
from torchjanus.rewrite.hooks import program_frames
from torchjanus.rewrite.hooks.frames import CALLING
from torchjanus.semantics.record.recording import Recording
from torchjanus.trace.actions import name_of

__all__ = ["Sentinel", "UserLines"]

_REGISTRY = "__warningregistry__"
_TEMPLATE = (lambda fn, args, kwargs: fn(*args, **kwargs)).__code__

# By line that has warned in a watched run: the version of the filters, by which Python knows that they have changed.
_VERSIONS: dict[tuple[str, int], Any] = {}


def _call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return fn(*args, **kwargs)


class Sentinel:
    """A key with the hash of "version" that is equal to nothing: it notes that a registry is looked at."""

    __slots__ = ("compared",)

    def __init__(self) -> None:
        self.compared = False

    def __hash__(self) -> int:
        return hash("version")

    def __eq__(self, other: object) -> bool:
        self.compared = True
        return self is other


class UserLines:
    """The functions that make calls from lines of the program, in one watched run."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._sentinel = Sentinel()
        self._made: dict[tuple[str, int], Callable[..., Any]] = {}
        self._spaces: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}  # by file: the module's, and ours

    def call(
        self,
        out: Callable[..., Any],
        place: Place,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Make a call by ``out`` from this place. Refuse the run if it warns, and would at each call of the step."""
        key = place.file, place.line
        caller = self._made.get(key)
        if caller is None:
            caller = self._made[key] = self._make(place)
        try:
            made = out(caller, fn, args, kwargs)
        except Exception:
            if self._sentinel.compared:
                self._note_warning(fn, key, raised=True)
            raise
        if self._sentinel.compared:
            self._note_warning(fn, key)
        return made

    def _make(self, place: Place) -> Callable[..., Any]:
        space = self._spaces.get(place.file)
        if space is None:
            names = next((f.f_globals for f in program_frames() if f.f_code.co_filename == place.file), None)
            if names is None or place.line < 1:
                return _call
            known: dict[Any, Any] = {self._sentinel: 0}  # the first of the keys, or "version" would be found before it
            known.update(names.get(_REGISTRY) or {})
            self._sentinel.compared = False
            copied: dict[str, Any] = {
                name: names[name] for name in ("__name__", "__file__", "__builtins__") if name in names
            }
            space = self._spaces[place.file] = names, {**copied, _REGISTRY: known}
        code = _TEMPLATE.replace(
            co_filename=place.file, co_firstlineno=place.line, co_name=CALLING, co_qualname=CALLING
        )
        return types.FunctionType(code, space[1], CALLING)

    def _note_warning(self, fn: Any, key: tuple[str, int], raised: bool = False) -> None:
        """``raised``: the warning may have been turned into an error, which each run for these filters shows."""
        shown = "" if raised else _shown(warnings.filters)
        for file, (names, space) in self._spaces.items():
            known = {name: value for name, value in space[_REGISTRY].items() if name is not self._sentinel}
            if known:
                registry = names.setdefault(_REGISTRY, {})
                registry.clear()
                registry.update(known)
            if file == key[0] and _VERSIONS.setdefault(key, version := known.get("version")) != version:
                # Filters have changed since, as by catch_warnings(): Python forgets what it has shown.
                _VERSIONS[key] = version
                shown = "each time" if shown == "once" else shown
        self._recording.chain[0].rely_on_filters()
        self._made.clear()
        self._spaces.clear()
        self._sentinel.compared = False
        if shown == "each time":
            self._recording.refuse(
                "warning-filters",
                f"{name_of(fn)} warns, and each of its warnings is shown",
                "a graph does not warn.",
                'Filter the warning: warnings.filterwarnings("ignore", ...).',
            )


def _shown(filters: Iterable[tuple[Any, ...]]) -> str:
    """Return how often filters show a warning, as far as that is known: "each time", "once" or "never". Filters that
    NumPy sets for warnings of its own are not meant."""
    for action, text, category, module, line in filters:
        if action in ("always", "error", "all") and not category.__module__.startswith("numpy"):
            return "each time"
        if category is Warning and not (text or module or line):
            return "never" if action == "ignore" else "once"  # it holds for all warnings
    return "once"
