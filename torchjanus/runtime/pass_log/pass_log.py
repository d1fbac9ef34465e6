"""Keeps what each pass gave for one speculated function, and writes it to a folder. Changes nothing of what is made.

The log of a graph begins with the run that was watched last before it was made. Where a list of passes is run again on
another value (loops that are folded once more, another order in which it is tried) only the last time is kept: that is
the one of which the graph is made.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from torchjanus.core.errors import Place
from torchjanus.core.logs import logger
from torchjanus.core.settings import DUMP
from torchjanus.graph.ir.passes import Part, Pass, PassList, observed_by
from torchjanus.graph.printing.forms import form_text
from torchjanus.runtime.entries.entry import Entry
from torchjanus.runtime.pass_log.documents import commit_text, guards_text, rewritten_text, source_text, tree_text
from torchjanus.runtime.pass_log.files import Folder
from torchjanus.trace.events import Trace

__all__ = ["PassLog", "Record", "keep_logs", "observing", "pass_log"]

P = ParamSpec("P")

log = logger("passes")

VARIABLE = DUMP.name
_AFTER = 99

_kept = False  # in memory, for the command line


@dataclass(frozen=True, slots=True)
class Record:
    """What one pass gave, or another form of the function. ``part``: of its list, 0 before all passes, 99 after them;
    ``same``: the name of the record since which the text is the same."""

    name: str
    part: int
    kind: str
    text: str
    same: str = ""

    @property
    def since(self) -> str:
        """Since which record the text is what it is."""
        return self.same or self.name


def _harmless(method: Callable[Concatenate[PassLog, P], None]) -> Callable[Concatenate[PassLog, P], None]:
    """Decorate a method of the log: a fault in it is reported and ends the log, and the step continues."""

    @functools.wraps(method)
    def tried(self: PassLog, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if self.broken:
            return
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self.broken = True
            log.warning("%s: passes cannot be printed: %s: %s", self.name, type(error).__name__, error)

    return tried


class PassLog:
    """The passes of one function. ``records`` are those of the graph that is being made, or was made last."""

    def __init__(self, name: str, place: Place, fn: Any, folder: str = "") -> None:
        self.name = name
        self.place = place
        self.records: list[Record] = []
        self.refusals: list[str] = []
        self.complete = False  # whether these records end with a graph
        self.broken = False  # whether a printer has failed
        self._fn = fn
        self._parent = Path(folder) if folder else None
        self._folder: Folder | None = None
        self._part: Part | int = 0  # of the list that was begun last
        self._begun = 0  # how many records there were then

    # -- what is recorded ---------------------------------------------------------------------------------------------

    @_harmless
    def watched(self, trace: Trace) -> None:
        """A run was watched."""
        if self.complete:
            self.complete, self.records, self._folder = False, [], None
        self._drop(0)
        self._part = 0
        self._add("source", source_text(self._fn), "source")
        self._add("rewritten_source", rewritten_text(self._fn), "source")
        kind, text = form_text(trace)
        self._add("watched_run", text, kind)
        if trace.outline is not None:
            self._add("tree", tree_text(trace, self.name), "tree")
        self.refusals = [str(refusal) for refusal in trace.refusals]

    @_harmless
    def begins(self, passes: PassList, value: Any) -> None:
        """See Observer."""
        later = passes.part if passes.repeated else passes.part - 1
        self._drop(next((n for n, one in enumerate(self.records) if one.part > later), len(self.records)))
        self._part, self._begun = passes.part, len(self.records)
        kind, text = form_text(value)
        if self._last is None or self._last.text != text:
            self._add(kind, text, kind)

    @_harmless
    def passed(self, one: Pass, made: Any) -> None:
        """See Observer."""
        kind, text = form_text(made)
        last = self._last
        self._add(one.name, text, kind, last.since if last is not None and last.text == text else "")

    @_harmless
    def gave_up(self, passes: PassList) -> None:
        """See Observer."""
        self._drop(self._begun)

    @_harmless
    def made(self, entry: Entry) -> None:
        """The passes have led to this."""
        self._part = _AFTER
        kind, text = form_text(entry.lowered.graph)
        self._add("graph", text, kind)
        self._add("guards", guards_text(entry.assumptions), "guards")
        self._add("commit", commit_text(entry), "commit")
        self.complete = True

    @_harmless
    def refused(self, why: str) -> None:
        """No graph is made of it."""
        self.refusals.append(why)
        self._part = _AFTER
        self._add("refused", f"{why}\n", "refusal")

    # -- what is kept -------------------------------------------------------------------------------------------------

    @property
    def _last(self) -> Record | None:
        """The latest record of what passes work on."""
        return next((one for one in reversed(self.records) if one.kind in ("trace", "program", "graph")), None)

    def _add(self, name: str, text: str, kind: str, same: str = "") -> None:
        number = len(self.records)
        record = Record(name, int(self._part), kind, text, same)
        self.records.append(record)
        if self._parent is not None:
            if self._folder is None:
                self._folder = Folder(self._parent, f"{Path(self.place.file).stem}.{self.name}")
            self._folder.write(_file(number, record), f"unchanged since {same}\n" if same else text)

    def _drop(self, first: int) -> None:
        """Forget the records from this one on."""
        for number in range(first, len(self.records)):
            if self._folder is not None:
                self._folder.remove(_file(number, self.records[number]))
        del self.records[first:]


def _file(number: int, record: Record) -> str:
    return f"{number:02d}-{record.name}.txt"


def pass_log(name: str, place: Place, fn: Any) -> PassLog | None:
    """Return a log for a function; None unless one was asked for."""
    folder = DUMP.given or ""
    return PassLog(name, place, fn, folder) if folder or _kept else None


def keep_logs() -> None:
    """From now on all functions that are speculated on have a log."""
    global _kept
    _kept = True


@contextmanager
def observing(one: PassLog | None, trace: Trace | None = None) -> Iterator[None]:
    """Passes that are run now are those of this log. ``trace``: the run that was just watched."""
    if one is None:
        yield
        return
    if trace is not None:
        one.watched(trace)
    with observed_by(one):
        yield
