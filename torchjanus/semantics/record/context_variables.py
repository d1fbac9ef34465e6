"""Context variables that the call sets: it has to reset them, and reads what it has set with its traces."""

from __future__ import annotations

import contextvars
from abc import abstractmethod
from typing import Any

__all__ = ["ContextVariables"]

_Setting = tuple[contextvars.Token[Any], Any, Any]  # the token, and the value without and with traces


class ContextVariables:
    """What a record knows of context variables."""

    def __init__(self) -> None:
        super().__init__()
        self._contexts: dict[int, tuple[contextvars.ContextVar[Any], list[_Setting]]] = {}  # by id of the variable

    @abstractmethod
    def refuse(self, reason: str, what: str, why: str, remedy: str = "") -> None:
        """Record why no graph can be made of this run."""

    def context_set(
        self, variable: contextvars.ContextVar[Any], token: contextvars.Token[Any], bare: Any, value: Any
    ) -> None:
        """Record that the call has set a context variable. It has to reset it before it ends."""
        self._contexts.setdefault(id(variable), (variable, []))[1].append((token, bare, value))

    def context_reset(self, variable: contextvars.ContextVar[Any], token: contextvars.Token[Any]) -> None:
        """Record that the call has reset a context variable to its value before ``token`` was made."""
        _, made = self._contexts.get(id(variable), (variable, []))
        tokens = [one[0] for one in made]
        if token in tokens:
            del made[tokens.index(token) :]
        else:
            self._left_changed(variable)

    def context_value(self, variable: contextvars.ContextVar[Any]) -> tuple[Any, Any]:
        """Return what the call has set a context variable to last: the untraced value, and the one that it gave."""
        return self._contexts[id(variable)][1][-1][1:]

    def context_before(self, token: contextvars.Token[Any]) -> tuple[bool, Any]:
        """Return whether the call had set the variable of a token before it made the token, and to what."""
        made = self._contexts[id(token.var)][1] if id(token.var) in self._contexts else []
        number = next((n for n, one in enumerate(made) if one[0] is token), 0)
        return bool(number), made[number - 1][2] if number else token.old_value

    def context_is_set(self, variable: contextvars.ContextVar[Any]) -> bool:
        """Whether this call has set a context variable and not yet reset it."""
        return bool(self._contexts.get(id(variable), (variable, []))[1])

    def _left_changed(self, variable: contextvars.ContextVar[Any]) -> None:
        self.refuse(
            "context-variable",
            f"the call leaves the context variable '{variable.name}' changed",
            "that cannot be held back.",
            "Set it back with reset(), or set it outside of the step.",
        )

    def check_contexts(self) -> None:
        """Refuse a run that leaves context variables set."""
        for variable, tokens in self._contexts.values():
            if tokens:
                self._left_changed(variable)
