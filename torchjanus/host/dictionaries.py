"""Checks assumptions on known dictionaries, and repeats the checks only for dictionaries that have been written since.

Most assumptions of a step are on attributes of modules and optimizers and on namespaces. Each check reads memory that
the previous step has evicted from the caches; whether a dictionary has been written at all is one number in its header
(PyTorch's own guards use it: ``dict_version``). This module does not know generated code.
"""

from __future__ import annotations

import collections
from typing import Any

import torch

from torchjanus.core.kinds import is_one_of
from torchjanus.host.checks import same_keys, same_value

__all__ = ["Dictionaries", "DictionaryAssumptions"]

version = torch._C._dynamo.guards.dict_version  # increases with each write to any dictionary

_OFTEN = 3  # writes after which a dictionary is checked at each call
_MISSING: Any = object()
_ORDERED = (dict, collections.defaultdict)  # an OrderedDict may change its order without a write


class DictionaryAssumptions:
    """What is assumed of one dictionary, checked below any method of its class that is written in Python."""

    __slots__ = ("absent", "container", "equal", "filled", "identical", "items", "keys", "present", "writes")

    def __init__(self, container: dict[Any, Any]) -> None:
        self.container = container
        self.absent: list[Any] = []  # keys
        self.present: list[Any] = []
        self.identical: list[tuple[Any, Any]] = []  # key, and the object that is there
        self.equal: list[tuple[Any, Any]] = []  # key, and a number or a string as it was
        # the same as ``identical``, for keys whose ``__hash__`` is written in Python
        self.items: list[tuple[Any, Any]] = []
        self.keys: list[tuple[Any, ...]] = []  # all of them, in order
        self.filled: list[bool] = []
        self.writes = 0  # that have been seen

    @property
    def ordered(self) -> bool:
        """Whether its order cannot change without a write."""
        return is_one_of(type(self.container), _ORDERED)

    def answered(self) -> bool:
        """Whether all assumptions hold."""
        # Loops, not all(): a module whose train() is called in each call is asked in each call.
        held, get = self.container, dict.get
        for key, value in self.identical:
            if get(held, key, _MISSING) is not value:
                return False
        for key, value in self.equal:
            found = get(held, key, _MISSING)
            if found is not value and not same_value(found, value):
                return False
        for key in self.absent:
            if dict.__contains__(held, key):
                return False
        for key in self.present:
            if not dict.__contains__(held, key):
                return False
        for filled in self.filled:
            if filled is not bool(dict.__len__(held)):
                return False
        return all(same_keys(held, keys) for keys in self.keys) and (not self.items or self._has_items())

    def _has_items(self) -> bool:
        """Whether the items are there. Usually they are all that there is, in this order, and no key is hashed."""
        held, items = self.container, self.items
        found = tuple(dict.items(held))
        if len(found) == len(items) and all(
            now is key and value is then for (now, value), (key, then) in zip(found, items, strict=True)
        ):
            return True
        return all(dict.get(held, key, _MISSING) is value for key, value in items)


class Dictionaries:
    """The dictionaries that one guard checks at once."""

    __slots__ = ("_often", "_quiet", "_rarely", "_seen")

    def __init__(self, asked: list[DictionaryAssumptions]) -> None:
        self._rarely = asked
        self._quiet = tuple(questions.container for questions in asked)  # those of ``_rarely``
        # written again and again, such as a namespace with the variables of a loop
        self._often: tuple[DictionaryAssumptions, ...] = ()
        self._seen = -1  # the newest version of the quiet ones when all their assumptions held

    def unbroken(self) -> bool:
        """Whether all assumptions hold. Callable from any thread."""
        newest = max(map(version, self._quiet), default=-1)
        if newest > self._seen and not self._ask(newest):
            return False
        return all(questions.answered() for questions in self._often) if self._often else True

    def _ask(self, newest: int) -> bool:
        """Check those that have been written since. What is written meanwhile is checked at the next call."""
        seen = self._seen
        written = [questions for questions in self._rarely if version(questions.container) > seen]
        if not all(questions.answered() for questions in written):
            return False
        for questions in written:
            questions.writes += 1
        often = [questions for questions in written if questions.writes > _OFTEN]
        if often:
            self._often = (*self._often, *often)
            self._rarely = [questions for questions in self._rarely if questions.writes <= _OFTEN]
            self._quiet = tuple(questions.container for questions in self._rarely)
        self._seen = newest
        return True
