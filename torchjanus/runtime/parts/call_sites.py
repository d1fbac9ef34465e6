"""What is called at a call site of a variant: a part, the variant of a function that contains parts, or the function
itself; and what a library is given in place of a function of the program that it calls.

This module does not know how parts are found.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType, FunctionType, MethodType
from typing import Any, Protocol

from torchjanus.core.errors import Place
from torchjanus.rewrite.build import with_code
from torchjanus.runtime.parts.candidates import function_of
from torchjanus.semantics.protocols.leaves import MISSING

__all__ = ["CallSite", "Handing", "Met", "call_given"]

Met = FunctionType | CodeType  # a function, or the code of one that the step creates in each call


class Finder(Protocol):
    """Finds what is called in place of functions."""

    callees: dict[Met, Callable[..., Any] | None]

    def meet(self, function: FunctionType, site: CallSite) -> Callable[..., Any] | None: ...
    def meet_anew(self, function: FunctionType, site: CallSite) -> Callable[..., Any] | None: ...
    def is_made_anew(self, function: FunctionType) -> bool: ...


class CallSite:
    """A call in a variant, which is asked what to call. ``label``: the source of what it calls."""

    def __init__(self, parts: Finder, label: str, place: Place) -> None:
        self.asked = self.useful = False
        self.met: set[Met] = set()  # of those it has called, for which something else is, or was, called
        self._label, self._place = label, place
        self._parts = parts
        self.hands = False  # while a library is given what it calls

    def named(self, function: FunctionType) -> tuple[str, Place]:
        """Return the name and the place of a part that this site calls."""
        if not self.hands:
            return self._label, self._place
        code = function.__code__
        return function.__name__, Place(code.co_filename, code.co_firstlineno, 0, function.__qualname__)

    def __call__(self, callee: Any) -> Any:
        """Return what is called in place of ``callee``: a part, a variant or ``callee`` itself."""
        self.asked = True
        found = function_of(callee)
        if found is None:
            return callee
        function, receiver = found
        parts, met = self._parts, function
        known = parts.callees.get(met, MISSING)
        if known is MISSING:
            known = parts.callees.get(function.__code__, MISSING)
            anew = known is not MISSING or parts.is_made_anew(function)
            if not anew:
                known = parts.meet(function, self)
            elif known is MISSING:
                known = parts.meet_anew(function, self)
            if anew and known is not None:
                self.met.add(function.__code__)
                known = (
                    with_code(function, known.__code__)
                    if type(known) is FunctionType
                    else functools.partial(known, function)
                )
        elif known is not None:
            self.met.add(function)
        if known is None:
            return callee
        self.useful = True
        return MethodType(known, receiver[0]) if receiver else known

    def stand_in(self, value: Any) -> Any:
        """Return what a library is given in place of a function of the program: one that looks like it, and calls a
        part or a variant. All other values stay."""
        if type(value) is functools.partial:
            inner = self.stand_in(value.func)
            return value if inner is value.func else functools.partial(inner, *value.args, **value.keywords)
        if type(value) is not FunctionType and type(value) is not MethodType:
            return value
        hands, self.hands = self.hands, True
        try:
            found = self(value)
        finally:
            self.hands = hands
        if found is value:
            return value

        @functools.wraps(value)
        def standing_in(*args: Any, **kwargs: Any) -> Any:
            return found(*args, **kwargs)

        return standing_in


class Handing:
    """A call of ``function``, which calls the functions that it is given: parts are given in their place."""

    def __init__(self, function: FunctionType, site: CallSite) -> None:
        self._function, self._site = function, site

    def call(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function with a stand-in for each argument that is a function speculated on."""
        stand_in = self._site.stand_in
        return self._function(*map(stand_in, args), **{name: stand_in(value) for name, value in kwargs.items()})


def call_given(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function: what is speculated on where the step creates the function in each call."""
    return function(*args, **kwargs)
