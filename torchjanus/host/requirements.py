"""Generates the checks of assumptions: where one does not hold, the function returns MISS.

Similar checks are made together: a loop is less code to fetch than as many comparisons.
"""

from __future__ import annotations

import builtins
import collections
import operator
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, Step, native_class
from torchjanus.core.errors import NOWHERE
from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.host.assumption import (
    AmbientState,
    Arguments,
    Assumption,
    Condition,
    ContainerKeys,
    Emptiness,
    Identity,
    InstanceOf,
    KeyPresence,
    SameObject,
    TypeOf,
    ValueOf,
)
from torchjanus.host.checks import Hooks
from torchjanus.host.dictionaries import Dictionaries, DictionaryAssumptions
from torchjanus.host.source import Source, answers
from torchjanus.host.tensor_assumptions import TensorKind
from torchjanus.trace.values import Apply, Read

__all__ = ["Requirements"]

_SINGLETONS = (bool, type(None), type(Ellipsis), torch.dtype, torch.layout, torch.memory_format)


class Requirements:
    """The checks that one function makes."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.hookless: list[torch.Tensor] = []  # leaves whose gradients no hook may see
        self.nodes_matter = True  # whether there may be gradients
        self._empty: list[Any] = []  # hooks of modules and optimizers, which must be empty
        self._filled: list[Any] = []  # containers that must not be empty
        self._dictionaries: dict[int, DictionaryAssumptions] = {}  # known ones, by identity
        # keys and objects in known sequences, by the sequence's name
        self._same_items: dict[str, tuple[list[Any], list[Any]]] = {}

    def require(self, assumption: Assumption) -> None:
        """Generate the check of an assumption, or collect it for ``require_collected``."""
        source = self.source
        match assumption:
            case Arguments(count=count, names=names):
                source.fail_if(f"len(args) != {count}")
                if names:
                    source.fail_if(f"tuple(kwargs) != {source.constant(names)}")
                else:
                    source.fail_if("kwargs")
            case Identity(access_path=access_path, value=value):
                self._require_identity(access_path, value)
            case ValueOf(access_path=access_path, value=value):
                self._require_value(access_path, value)
            case TypeOf(access_path=AccessPath(step=Step.FIELD, key="grad") as access_path):
                source.fail_if(f"{source.access(access_path)} is None")  # a gradient is a tensor or None
            case TypeOf(access_path=access_path, cls=cls):
                source.fail_if(f"type({source.value(access_path)}) is not {source.constant(cls)}")
                source.give_class(access_path, cls)
            case InstanceOf(access_path=access_path, classes=classes, outcome=outcome):
                test = (
                    f"{source.constant(builtins.isinstance)}({source.value(access_path)}, {source.constant(classes)})"
                )
                source.fail_if(f"not {test}" if outcome else test)
            case KeyPresence(access_path=access_path, key=str() as key, present=present) if asked := self._asked(
                access_path
            ):
                (asked.present if present else asked.absent).append(key)
            case KeyPresence(access_path=access_path, key=key, present=present):
                self._require_key(access_path, key, present)
            case Emptiness(access_path=access_path, filled=filled):
                self._require_emptiness(access_path, filled)
            case ContainerKeys(access_path=access_path, keys=keys):
                if (asked := self._asked(access_path)) and asked.ordered:
                    asked.keys.append(keys)
                elif keys:
                    source.fail_if(f"not same_keys({source.value(access_path)}, {source.constant(keys)})")
                else:
                    source.fail_if(source.length(access_path))
            case SameObject(first=first, second=second, same=same):
                known, other = source.pinned(first), source.pinned(second)
                if known and other and (known[0] is other[0]) == same:
                    return
                source.fail_if(f"{source.value(first)} is {'not ' if same else ''}{source.value(second)}")
            case Condition(expr=expr, outcome=outcome):
                self._require_condition(expr, outcome)
            case TensorKind() | AmbientState():
                raise AssertionError(f"{type(assumption).__name__} is checked by the runtime's own code")
            case _:
                raise AssertionError(f"no code for {type(assumption).__name__}")

    def _require_identity(self, access_path: AccessPath, value: Any) -> None:
        source = self.source
        if self._among_its_like(access_path):
            base = access_path.base
            assert base is not None
            keys, values = self._same_items.setdefault(source.value(base), ([], []))
            keys.append(access_path.key)
            values.append(value)
            source.give(access_path, source.constant(value))
        elif (asked := self._asked_for_item(access_path)) is not None:
            place = asked.items if isinstance(access_path.key, torch.Tensor) else asked.identical
            place.append((access_path.key, value))
            source.give(access_path, source.constant(value))
        else:
            name = source.object(value) if isinstance(value, int | float | str) else source.constant(value)
            if access_path.step is not Step.CONST:
                source.fail_if(f"{source.access(access_path)} is not {name}")
            source.give(access_path, name)

    def _require_emptiness(self, access_path: AccessPath, filled: bool) -> None:
        if not filled and _is_hooks(access_path) and self._plainly_held(access_path):
            self.source.access(access_path)
            self._empty.append(self._known(access_path))
        elif asked := self._asked(access_path):
            asked.filled.append(filled)
        elif filled and self._plainly_held(access_path):
            self._filled.append(self._known(access_path))
        else:
            self.source.fail_if(f"{'not ' if filled else ''}{self.source.length(access_path)}")

    def _require_value(self, access_path: AccessPath, value: Any) -> None:
        source = self.source
        if (asked := self._asked_for_item(access_path)) is not None and type(access_path.key) is str:
            (asked.identical if is_one_of(type(value), _SINGLETONS) else asked.equal).append((access_path.key, value))
        elif is_one_of(type(value), _SINGLETONS):
            source.fail_if(f"{source.access(access_path)} is not {source.constant(value)}")
        elif access_path.step is Step.LEN or (access_path.step is Step.OF and access_path.key is id):
            source.fail_if(f"{source.access(access_path)} != {value}")
        elif self._reading_is_cheap(access_path):
            # Nearly always the same object is still there; only another one is compared.
            held = source.object(value)
            access = source.access(access_path)
            source.fail_if(f"{access} is not {held} and not same_value({access}, {held})")
        else:
            name, held = source.value(access_path), source.object(value)
            source.fail_if(f"{name} is not {held} and not same_value({name}, {held})")

    def _require_key(self, access_path: AccessPath, key: Any, present: bool) -> None:
        source = self.source
        container, found = source.class_at(access_path), source.number(key)
        if container is not None and answers(container, "__contains__"):
            test = f"{source.constant(native_class(container).__contains__)}({source.value(access_path)}, {found})"
            source.fail_if(f"not {test}" if present else test)
        else:
            source.fail_if(f"{found} {'not in' if present else 'in'} {source.value(access_path)}")

    def _require_condition(self, expr: Any, outcome: Any) -> None:
        source = self.source
        if (filled := self._asked_to_be_filled(expr, outcome)) is not None:
            self.require(Emptiness(NOWHERE, filled, True))
        elif isinstance(outcome, bool):
            text = source.number(expr.args[0] if isinstance(expr, Apply) and expr.func is bool else expr)
            if text == repr(outcome):
                return
            source.fail_if(f"{'not ' if outcome else ''}{text}")
        else:
            text = source.number(expr)
            source.fail_if(f"not ({text} == {source.constant(outcome)})")

    def _asked_to_be_filled(self, expr: Any, outcome: Any) -> AccessPath | None:
        """Return the access path of the known container if the condition is that its length is not 0 (an optimizer's
        state)."""
        match expr:
            case Apply(
                func=operator.eq, args=[Read(access_path=AccessPath(step=Step.LEN, base=AccessPath() as held)), 0]
            ):
                if outcome is False and self._plainly_held(held):
                    return held
        return None

    def _plainly_held(self, access_path: AccessPath) -> bool:
        """Whether the access path holds a known object whose length and membership test run no Python code."""
        held = self.source.pinned(access_path)
        return held is not None and not answers(type(held[0]), "__contains__", "__len__", "__bool__")

    def _reading_is_cheap(self, access_path: AccessPath) -> bool:
        """Whether the last step may be read twice: it is one subscript of a known object."""
        return (
            not self.source.has(access_path)
            and access_path.step is Step.ITEM
            and access_path.base is not None
            and (held := self.source.pinned(access_path.base)) is not None
            and is_one_of(type(held[0]), (dict, list, tuple, collections.OrderedDict))
        )

    def _known(self, base: AccessPath) -> Any:
        held = self.source.pinned(base)
        assert held is not None
        return held[0]

    # -- what is asked together -----------------------------------------------------------------------------------

    def require_collected(self) -> None:
        """Generate the collected checks."""
        if self._dictionaries:
            asked = Dictionaries(list(self._dictionaries.values()))
            self.source.fail_if(f"not {self.source.constant(asked)}.unbroken()")
            self._dictionaries = {}
        self._require_empty()
        self._require_same_items()

    def _require_empty(self) -> None:
        """Check the containers that have to be empty, and those that must not be."""
        source = self.source
        if self._filled:
            source.fail_if(f"not all({source.constant(tuple(self._filled))})")
        if self._empty:
            source.fail_if(f"any({source.constant(tuple(self._empty))})")
        if self.hookless:
            watched = Hooks(tuple(self.hookless), self.nodes_matter)
            name = source.constant(watched)
            source.fail_if(f"{name}.handle.next_id != {name}.seen and {name}.registered()")
        self._empty, self._filled, self.hookless = [], [], []

    def _asked(self, access_path: AccessPath) -> DictionaryAssumptions | None:
        """Return the assumptions on the known dictionary at this access path; None if there is none."""
        held = self.source.pinned(access_path)
        if held is None or not isinstance(held[0], dict):
            return None
        self.source.value(access_path)  # its own access path is read and checked before
        return self._dictionaries.setdefault(id(held[0]), DictionaryAssumptions(held[0]))

    def _asked_for_item(self, access_path: AccessPath) -> DictionaryAssumptions | None:
        """Return the assumptions on a known dictionary of which this is an item that has not been read."""
        if access_path.step is not Step.ITEM or access_path.base is None or self.source.has(access_path):
            return None
        return (
            self._asked(access_path.base)
            if type(access_path.key) is str or isinstance(access_path.key, torch.Tensor)
            else None
        )

    def _among_its_like(self, access_path: AccessPath) -> bool:
        """Whether this is an item of a known sequence."""
        if access_path.step is not Step.ITEM or access_path.base is None or self.source.has(access_path):
            return False
        below = self.source.pinned(access_path.base)
        return (
            below is not None
            and type(access_path.key) is int
            and access_path.key >= 0
            and is_one_of(type(below[0]), (list, tuple))
        )

    def _require_same_items(self) -> None:
        """Check the items of known sequences."""
        source = self.source
        for name, (keys, values) in self._same_items.items():
            if keys == list(range(len(keys))):  # there may be more elements after them
                first = source.constant(tuple(values))
                source.fail_if(f"len({name}) < {len(keys)} or not all(map(same, {name}, {first}))")
            else:
                for key, value in zip(keys, values, strict=True):
                    source.fail_if(f"{name}[{key}] is not {source.constant(value)}")
        self._same_items.clear()


def _is_hooks(access_path: AccessPath) -> bool:
    return access_path.step is Step.ITEM and isinstance(access_path.key, str) and access_path.key.endswith("_hooks")
