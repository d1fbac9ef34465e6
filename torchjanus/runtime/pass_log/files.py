"""Files of one function's passes. A write that fails is reported once and has no other effect."""

from __future__ import annotations

import re
from pathlib import Path

from torchjanus.core.logs import logger

__all__ = ["Folder", "safe_name"]

log = logger("passes")

_LONGEST = 80  # bytes of a name; file systems take 255
_OURS = re.compile(r"\d\d+-\w+\.txt")

_reported = False


def safe_name(name: str) -> str:
    """Return the name with nothing in it that a file system may refuse, or take for a path."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("._")
    return name[:_LONGEST] or "function"


class Folder:
    """The folder of one graph. Text files of earlier runs that lie there are removed when the first is written."""

    _taken: set[Path] = set()  # noqa: RUF012 - by this process

    def __init__(self, parent: Path, name: str) -> None:
        """``parent``/``name``, or with a number behind it where another function of this process has that."""
        path, number = parent / safe_name(name), 1
        while path in Folder._taken:
            number += 1
            path = parent / f"{safe_name(name)}-{number}"
        Folder._taken.add(path)
        self.path = path
        self._begun = False

    def write(self, name: str, text: str) -> None:
        """Write ``name``."""
        try:
            if not self._begun:
                self.path.mkdir(parents=True, exist_ok=True)
                for old in self.path.iterdir():
                    if _OURS.fullmatch(old.name):
                        old.unlink()
                self._begun = True
            (self.path / name).write_text(text, encoding="utf-8")
        except (OSError, UnicodeError) as error:
            self._report(error)

    def remove(self, name: str) -> None:
        """Remove ``name``."""
        try:
            (self.path / name).unlink(missing_ok=True)
        except OSError as error:
            self._report(error)

    def _report(self, error: Exception) -> None:
        global _reported
        if not _reported:
            _reported = True
            log.warning("passes cannot be written to %s: %s", self.path, error)
