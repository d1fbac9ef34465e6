"""Record NumPy scalars where Python reads one as an index, a length, a key or a bound.

A NumPy scalar is an opaque native object. Where Python itself reads it, its value is recorded as a Python number with
an access path of its own.
"""

from __future__ import annotations

from typing import Any

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.semantics.known.foreign import is_numpy_scalar
from torchjanus.semantics.record.run_record import RunRecord

__all__ = ["ScalarRecord"]


def python_number(scalar: Any) -> Any:
    """Return a NumPy scalar as a Python number."""
    return scalar.item()


class ScalarRecord(RunRecord):
    """A run record that reads NumPy scalars."""

    def found(self, access_path: AccessPath, value: Any, *, trusted: bool = False, foreign: bool = False) -> Any:
        """Record a read of the heap as it was before the call (see ``Recording.found``)."""
        raise NotImplementedError

    def number_within(self, value: Any) -> Any:
        """Return a NumPy scalar with an access path as a traced Python number, any other value unchanged."""
        access_path = self.owner(value) if is_numpy_scalar(value) else None
        return value if access_path is None else self.found(access_path.then(Step.OF, python_number), value.item())

    def pin(self, value: Any, why: str) -> Any:
        """Return the untraced value, or a NumPy scalar unchanged, and record a specialisation on it."""
        if type(value) is int or type(value) is str:  # mostly so
            return value
        number = self.number_within(value)
        if number is value:
            return super().pin(value, why)
        super().pin(number, why)
        return value
