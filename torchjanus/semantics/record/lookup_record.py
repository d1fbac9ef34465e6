"""Record what native code sees of objects: NumPy scalars, subclasses of native values, and objects that vary.

A NumPy scalar is an opaque native object. Where Python itself reads one as an index, a length, a key or a bound, its
value is recorded as a Python number with an access path of its own. Of an object that varies, the key is the expression
that reads it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.kinds import isinstance
from torchjanus.semantics.known.foreign import is_numpy_scalar
from torchjanus.semantics.record.run_record import RunRecord
from torchjanus.trace.facts import IdentityTest
from torchjanus.trace.values import TracedObject

__all__ = ["VALUES", "LookupRecord"]

# Instances of the program's own subclasses of these hold a value that no attribute shows.
VALUES: tuple[type, ...] = (int, float, complex, str, bytes)


def python_number(scalar: Any) -> Any:
    """Return a NumPy scalar as a Python number."""
    return scalar.item()


def native_value(value: Any) -> str:
    """Return the text of what an instance of a subclass of a native value is to native code."""
    base: Any = next(base for base in VALUES if isinstance(value, base))
    return str.__str__(value) if base is str else base.__repr__(value)


class LookupRecord(RunRecord):
    """A run record that reads NumPy scalars, and knows which strings and looked up objects vary."""

    loose: Collection[AccessPath] = ()  # their access paths

    def found(self, access_path: AccessPath, value: Any, *, trusted: bool = False, foreign: bool = False) -> Any:
        """Record a read of the heap as it was before the call (see ``Recording.found``)."""
        raise NotImplementedError

    def number_within(self, value: Any) -> Any:
        """Return a NumPy scalar with an access path as a traced Python number, any other value unchanged."""
        access_path = self.owner(value) if is_numpy_scalar(value) else None
        return value if access_path is None else self.found(access_path.then(Step.OF, python_number), value.item())

    def hold_value(self, value: Any, access_path: AccessPath) -> None:
        """Assume the value that an object from before the call is to native code, if it is one of a subclass."""
        if isinstance(value, VALUES) and not is_numpy_scalar(value):
            self.pin(self.found(access_path.then(Step.OF, native_value), native_value(value)), "the value of an object")

    def varies(self, access_path: AccessPath) -> bool:
        """Whether the looked up object at ``access_path`` varies from call to call."""
        return access_path in self.loose

    def pin(self, value: Any, why: str) -> Any:
        """Return the untraced value, or a NumPy scalar unchanged, and record a specialisation on it: of an object, that
        it is this very one."""
        if type(value) is int or type(value) is str:  # mostly so
            return value
        if isinstance(value, TracedObject):
            self.note_once(IdentityTest(value.expr.access_path, AccessPath.const(value.value), True, self.place))
            return value.value
        number = self.number_within(value)
        if number is value:
            return super().pin(value, why)
        super().pin(number, why)
        return value
