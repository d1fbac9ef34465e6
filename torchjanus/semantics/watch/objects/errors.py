"""Watch operations that raise: specialise on their operands (JANUS, appendix A.1).

The program may handle an error and continue. Its path then depends on the operands of the operation that raised, which
has no event of its own. Errors that the program raises itself need no guard: the decisions before them are recorded.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from torchjanus.core.kinds import getattr, isinstance
from torchjanus.rewrite import Site
from torchjanus.semantics.watch.objects.state import Part

__all__ = ["Errors", "specialising_on_error"]

F = TypeVar("F", bound=Callable[..., Any])
_INDEXED = (list, tuple, collections.deque)


class Errors(Part):
    """Operations that have raised."""

    def call_failed(self, error: Exception, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record that a native callee has raised."""
        owner = getattr(fn, "__self__", None)
        self.failed(error, (owner, *args, *kwargs.values()))

    def failed(self, error: Exception, operands: tuple[Any, ...]) -> None:
        """Specialise on the operands of an operation that raised, unless an inner operation has done so."""
        if not self.framework.is_new(error):
            return
        self.recording.trace.failures += 1
        for value in operands:
            self.natives.expose(value, pin=True)

    def hold_length(self, obj: Any) -> None:
        """Specialise on the length of a container, which an index has exceeded."""
        if isinstance(obj, _INDEXED) and self.recording.owner(obj) is not None:
            self.natives.whole_length(obj)


def specialising_on_error(operation: F) -> F:
    """Return the method of a part with ``errors`` extended so that it specialises on its operands where it raises."""

    @functools.wraps(operation)
    def attempt(part: Any, at: Site, *operands: Any) -> Any:
        try:
            return operation(part, at, *operands)
        except Exception as error:
            part.errors.failed(error, operands)
            raise

    return cast(F, attempt)
