"""NumPy's numbers where Python reads one: as an index, a length, a key, a bound.

Such a number is an object of native code's, and what it is there for is arithmetic of that code's. Where Python itself
reads it, what it says counts like any number of the heap: as one of Python's at a path of its own.
"""

from __future__ import annotations

from typing import Any

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.semantics.known.foreign import is_numpy_scalar
from torchjanus.semantics.record.run_record import RunRecord

__all__ = ["ScalarRecord"]


def python_number(scalar: Any) -> Any:
    """What a number of NumPy's is as one of Python's."""
    return scalar.item()


class ScalarRecord(RunRecord):
    """A run's record that reads numbers of NumPy's."""

    def found(
        self, access_path: AccessPath, value: Any, *, trusted: bool = False, kept: bool = False, foreign: bool = False
    ) -> Any:
        """A read of the heap as it was before the call."""
        raise NotImplementedError

    def number_within(self, value: Any) -> Any:
        """A number of NumPy's, found or given by native code, as one of Python's; all else as it is."""
        access_path = self.owner(value) if is_numpy_scalar(value) else None
        return value if access_path is None else self.found(access_path.then(Step.OF, python_number), value.item())

    def pin(self, value: Any, why: str) -> Any:
        """The bare value of a traced one, or a number of NumPy's as it is; only this value will do from now on."""
        number = self.number_within(value)
        if number is value:
            return super().pin(value, why)
        super().pin(number, why)
        return value
