"""A training step that was found in a program: called in its place, by Python at first, then under speculation."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from torchjanus import runtime

__all__ = ["AFTER", "EVALUATION", "Step"]

# What Python's calls of a step take together before one is watched. Learning costs about as much, so a step that is
# called a few times only is hardly slower, and one that is called for minutes starts a second later.
AFTER = 1.0  # seconds
# Times as long for a step that does not train: beside a training it takes little time in all, and less is to be gained.
EVALUATION = 5.0
SCHEDULED = "*.param_groups[*]['lr']"  # an input from the first graph on: most scripts have a schedule of it


class Step:
    """The function made of one candidate, with the module's variables once they are there.

    ``description``: what a report calls it. ``after``: the seconds that Python's calls take before one is watched.
    ``speculated``: None until then.
    """

    __slots__ = ("_after", "_calls", "_fn", "_seconds", "code", "description", "name", "speculated")

    def __init__(self, code: CodeType, name: str, description: str, after: float = AFTER) -> None:
        self.code = code
        self.name = name
        self.description = description
        self.speculated: runtime.Speculated[..., Any] | None = None
        self._fn: Callable[..., Any] | None = None
        self._calls, self._seconds = 0, 0.0
        self._after = after

    def bind(self, module_globals: dict[str, Any]) -> None:
        """Make the function, with the variables of the module that it is part of."""
        fn = FunctionType(self.code, module_globals, self.code.co_name)
        fn.__module__ = module_globals.get("__name__", "__main__")
        self._fn, self.speculated, self._calls, self._seconds = fn, None, 0, 0.0

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if self.speculated is not None:
            return self.speculated(*args, **kwargs)
        assert self._fn is not None, "bound before the module runs"
        if self._seconds < self._after:
            begun = time.perf_counter()
            try:
                return self._fn(*args, **kwargs)
            finally:
                self._calls += 1
                self._seconds += time.perf_counter() - begun
        self.speculated = runtime.vary(SCHEDULED)(runtime.speculate(self._fn))
        self.speculated.called_before(self._calls, self._seconds)
        return self.speculated(*args, **kwargs)

    @property
    def unwatched(self) -> str:
        """Why none of its calls was watched; "" if one was, or none was made here (a step may call another)."""
        if self.speculated is not None or not self._calls:
            return ""
        calls = "its call" if self._calls == 1 else f"its {self._calls} calls"
        return f"{calls} took {self._seconds:.1f} s together; one is watched after {self._after:.1f} s"

    @property
    def __janus_target__(self) -> Callable[..., Any]:
        """The function that another function's watching enters in place of this object."""
        assert self._fn is not None
        return self._fn

    def __repr__(self) -> str:
        return f"<{self.description}>"
