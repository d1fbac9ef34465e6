"""What native code reads to make the text of a value: ``str([a, b])`` reads both, and all that is in them.

Numbers in lists, tuples and dictionaries stay traced, and what other native values hold is held constant. The text of
any other value is not known: the trace is refused.
"""

from __future__ import annotations

import enum
import functools
import types
from typing import Any

import torch

from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.rewrite.hooks.lookup import on_type
from torchjanus.semantics.containers.parts import PLAIN_EXCEPTIONS, native_base
from torchjanus.semantics.known.live_views import dictionary_behind, is_view
from torchjanus.semantics.known.trusted import is_settled
from torchjanus.semantics.native.comparisons import Comparisons
from torchjanus.semantics.native.containers import CONTAINERS
from torchjanus.semantics.native.identities import hold_identity
from torchjanus.semantics.record.lookup_record import VALUES
from torchjanus.semantics.record.recording import CONSTANT_TYPES
from torchjanus.trace.values import Traced

__all__ = ["SHOWN", "ShownParts", "text_by_python"]

SHOWN = (list, tuple, dict, torch.Size)  # their texts are expressions of what they hold
_ALONE = (int, float, *CONSTANT_TYPES, types.GenericAlias, types.UnionType)  # texts of values that hold nothing else


def text_by_python(cls: type) -> bool:
    """Whether a function written in Python makes the text of this class's instances, in whatever library. The texts
    that ``enum`` makes of members do not count: a member is a constant."""
    if issubclass(cls, type | torch.Tensor):
        return False
    makers = (on_type(cls, name) for name in ("__repr__", "__str__"))
    made = [maker for maker in makers if type(maker) is types.FunctionType]
    return any(maker.__module__ != "enum" or not issubclass(cls, enum.Enum) for maker in made)


class ShownParts(Comparisons):
    """Reads what native code shows in a text."""

    def read_for_text(self, value: Any) -> Any:
        """Return a value with the same text, the numbers in lists, tuples and dictionaries traced. What else native
        code shows is held constant. Python code may make the text of ``value`` itself, which is the caller's."""
        if isinstance(value, Traced | torch.Tensor) or is_one_of(type(value), _ALONE):
            return value
        return value if text_by_python(type(value)) else self._natively_shown(value, ())

    def _natively_shown(self, value: Any, within: tuple[Any, ...]) -> Any:
        cls = type(value)
        if isinstance(value, Traced | torch.Tensor) or (is_one_of(cls, _ALONE) and cls is not torch.Size):
            return value
        if any(value is one for one in within):
            return self._refuse_text(value, "it holds itself")
        inner = functools.partial(self._natively_shown, within=(*within, value))
        if is_one_of(cls, SHOWN):
            return self._copied(self.consumed(value), inner)
        if text_by_python(cls):
            if within:
                self._refuse_text(value, "Python code makes its text, which native code calls unwatched")
        elif isinstance(value, CONTAINERS):
            held = self.consumed(value)
            for part in (*held, *dict.values(held)) if isinstance(held, dict) else held:
                self.expose(inner(part))
        elif isinstance(value, slice):
            for name in ("start", "stop", "step"):
                self.expose(inner(self.watch.attr(None, value, name)))
        elif is_view(value):
            self._look_behind(value, inner)
        elif isinstance(value, BaseException):
            self._look_into(value, inner)
        elif isinstance(value, enum.Enum):
            pass
        elif on_type(cls, "__repr__") is object.__repr__:
            hold_identity(self.recording, value)  # the text shows where it is
        elif not is_settled(value) and not (isinstance(value, VALUES) and self.recording.owner(value) is not None):
            self._refuse_text(value, "what native code shows of it is not known")
        return value

    def _copied(self, held: Any, inner: Any) -> Any:
        """Return a list, tuple or dictionary with shown parts; the same one if nothing in it had to be read."""
        if isinstance(held, dict):
            for key in dict.keys(held):
                inner(key)
            parts: Any = {key: inner(part) for key, part in dict.items(held)}
            same = all(parts[key] is part for key, part in dict.items(held))
        else:
            parts = [inner(part) for part in held]
            same = all(new is old for new, old in zip(parts, held, strict=True))
        return held if same else parts if isinstance(held, dict | list) else type(held)(parts)

    def _look_behind(self, view: Any, inner: Any) -> None:
        """Hold constant what a view of a dictionary shows."""
        if self.classes.is_shown(view):
            self.classes.record_whole_read(view)
            return
        held = self.behind(view) if self.recording.owner(view) is not None else dictionary_behind(view)
        if held is None or held is view:
            self._refuse_text(view, "the mapping behind it is not known")
        else:
            self.expose(inner(held))

    def _look_into(self, error: BaseException, inner: Any) -> None:
        """Hold constant the arguments of an exception from before the call, and containers in those of another."""
        there = self.recording.owner(error) is not None
        if there and not isinstance(error, BaseExceptionGroup) and native_base(type(error)) not in PLAIN_EXCEPTIONS:
            self._refuse_text(error, "its text shows more than its arguments")
            return
        if there:
            self.expose(inner(self.watch.attr(None, error, "args")))
        else:
            for part in error.args:
                if (shown := inner(part)) is not part:
                    self.expose(shown)

    def _refuse_text(self, value: Any, why: str) -> Any:
        self.recording.refuse(
            "text-unwatched",
            f"a {type(value).__qualname__} is turned into text by native code",
            f"{why}.",
            "Make the texts of its parts first: [str(part) for part in parts].",
        )
        return value
