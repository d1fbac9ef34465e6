"""Emits the checks of assumptions into a source: where one does not hold, the function gives up.

Much is asked together with its like: a loop is less code to fetch than as many comparisons.
"""

from __future__ import annotations

import collections
import operator
from typing import Any

import torch

from torchjanus.assumptions.assumption import (
    AmbientState,
    Arguments,
    Assumption,
    Condition,
    ContainerKeys,
    Emptiness,
    Identity,
    InstanceOf,
    Kept,
    KeyPresence,
    SameObject,
    TensorKind,
    TypeOf,
    ValueOf,
)
from torchjanus.assumptions.checks import Hooks
from torchjanus.assumptions.source import Source, answers
from torchjanus.origin import Origin, Step, native_class
from torchjanus.trace.values import Apply, Read

__all__ = ["Requirements"]

_MANY = 8
_SINGLETONS = (bool, type(None), type(Ellipsis), torch.dtype, torch.layout, torch.memory_format)


class Requirements:
    """What is required of a call by one function."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.hookless: list[torch.Tensor] = []  # leaves whose gradients no hook may see
        self._empty: list[Any] = []  # containers that must be empty
        self._filled: list[Any] = []  # and such as must not be
        self._hooks: list[Any] = []  # of the empty ones, modules' and optimizers' hooks
        self._alike: dict[tuple[str, str], list[tuple[Any, Any]]] = {}  # checks of one kind with one key
        self._same_items: dict[str, tuple[Any, list[Any], list[Any]]] = {}

    def require(self, assumption: Assumption) -> None:
        """Give up unless the assumption holds."""
        source = self.source
        match assumption:
            case Arguments(count=count, names=names):
                source.fail_if(f"len(args) != {count}")
                if names:
                    source.fail_if(f"kwargs.keys() != {source.constant(frozenset(names))}")
                else:
                    source.fail_if("kwargs")
            case Kept(origin=origin, value=value):
                source.give(origin, source.constant(value))
            case Identity(origin=origin, value=value) if self._among_its_like(origin):
                base = origin.base
                assert base is not None
                _, keys, values = self._same_items.setdefault(source.value(base), (source.pinned(base), [], []))
                keys.append(origin.key)
                values.append(value)
                source.give(origin, source.constant(value))
            case Identity(origin=origin, value=value) if self._reading_is_cheap(origin) and type(origin.key) is str:
                assert origin.base is not None
                self._collect("identity", origin.key, origin.base, value)
                source.give(origin, source.constant(value))
            case Identity(origin=origin, value=value):
                name = source.constant(value)
                if origin.step is not Step.CONST:
                    source.fail_if(f"{source.access(origin)} is not {name}")
                source.give(origin, name)
            case ValueOf(origin=origin, value=value):
                self._require_value(origin, value)
            case TypeOf(origin=Origin(step=Step.FIELD, key="grad") as origin):
                source.fail_if(f"{source.access(origin)} is None")  # a gradient is a tensor or None
            case TypeOf(origin=origin, cls=cls):
                source.fail_if(f"type({source.value(origin)}) is not {source.constant(cls)}")
                source.give_class(origin, cls)
            case InstanceOf(origin=origin, classes=classes, outcome=outcome):
                test = f"{source.constant(isinstance)}({source.value(origin)}, {source.constant(classes)})"
                source.fail_if(f"not {test}" if outcome else test)
            case KeyPresence(origin=origin, key=str() as key, present=False) if self._plainly_held(origin):
                self._collect("absence", key, origin, None)
            case KeyPresence(origin=origin, key=key, present=present):
                self._require_key(origin, key, present)
            case Emptiness(origin=origin, filled=False) if self._plainly_held(origin):
                source.access(origin)
                (self._hooks if _is_hooks(origin) else self._empty).append(self._known(origin))
            case Emptiness(origin=origin, filled=True) if self._plainly_held(origin):
                self._filled.append(self._known(origin))
            case Emptiness(origin=origin, filled=filled):
                source.fail_if(f"{'not ' if filled else ''}{source.length(origin)}")
            case ContainerKeys(origin=origin, keys=keys):
                if keys:
                    source.fail_if(f"not same_keys({source.value(origin)}, {source.constant(keys)})")
                else:
                    source.fail_if(source.length(origin))
            case SameObject(first=first, second=second, same=same):
                source.fail_if(f"{source.value(first)} is {'not ' if same else ''}{source.value(second)}")
            case Condition(expr=expr, outcome=outcome):
                self._require_condition(expr, outcome)
            case TensorKind() | AmbientState():
                raise AssertionError(f"{type(assumption).__name__} is checked by the runtime's own code")
            case _:
                raise AssertionError(f"no code for {type(assumption).__name__}")

    def _require_value(self, origin: Origin, value: Any) -> None:
        source = self.source
        if type(value) in _SINGLETONS and self._reading_is_cheap(origin) and type(origin.key) is str:
            assert origin.base is not None
            self._collect("identity", origin.key, origin.base, value)
        elif type(value) in _SINGLETONS:
            source.fail_if(f"{source.access(origin)} is not {source.constant(value)}")
        elif origin.step is Step.LEN:
            source.fail_if(f"{source.access(origin)} != {value}")
        elif self._reading_is_cheap(origin):
            # Nearly always the same object is still there; only another one is looked at.
            held = source.object(value)
            access = source.access(origin)
            source.fail_if(f"{access} is not {held} and not same_value({access}, {held})")
        else:
            name, held = source.value(origin), source.object(value)
            source.fail_if(f"{name} is not {held} and not same_value({name}, {held})")

    def _require_key(self, origin: Origin, key: Any, present: bool) -> None:
        source = self.source
        container, found = source.class_at(origin), source.number(key)
        if container is not None and answers(container, "__contains__"):
            test = f"{source.constant(native_class(container).__contains__)}({source.value(origin)}, {found})"
            source.fail_if(f"not {test}" if present else test)
        else:
            source.fail_if(f"{found} {'not in' if present else 'in'} {source.value(origin)}")

    def _require_condition(self, expr: Any, outcome: Any) -> None:
        source = self.source
        if (filled := self._asked_to_be_filled(expr, outcome)) is not None:
            self._filled.append(filled)
        elif isinstance(outcome, bool):
            text = source.number(expr.args[0] if isinstance(expr, Apply) and expr.func is bool else expr)
            source.fail_if(f"{'not ' if outcome else ''}{text}")
        else:
            text = source.number(expr)
            source.fail_if(f"not ({text} == {source.constant(outcome)})")

    def _asked_to_be_filled(self, expr: Any, outcome: Any) -> Any:
        """The known container of which ``len(container) == 0`` has to be false (an optimizer's state), or None."""
        match expr:
            case Apply(func=operator.eq, args=[Read(origin=Origin(step=Step.LEN, base=Origin() as held)), 0]):
                if outcome is False and self._plainly_held(held):
                    return self._known(held)
        return None

    def _plainly_held(self, origin: Origin) -> bool:
        """Whether a known object is there whose length and membership no Python code answers."""
        held = self.source.pinned(origin)
        return held is not None and not answers(type(held[0]), "__contains__", "__len__", "__bool__")

    def _reading_is_cheap(self, origin: Origin) -> bool:
        """Whether the path's last step may as well be read twice: one subscript of an object that is known."""
        return (
            not self.source.has(origin)
            and origin.step is Step.ITEM
            and origin.base is not None
            and (held := self.source.pinned(origin.base)) is not None
            and type(held[0]) in (dict, list, tuple, collections.OrderedDict)
        )

    def _known(self, base: Origin) -> Any:
        held = self.source.pinned(base)
        assert held is not None
        return held[0]

    # -- what is asked together -----------------------------------------------------------------------------------

    def require_collected(self) -> None:
        """Check what has been put off to be asked together with its like."""
        self._require_alike()
        self._require_empty()
        self._require_same_items()

    def _require_empty(self) -> None:
        """Check the containers that have to be empty, and those that must not be."""
        source = self.source
        if self._filled:
            source.fail_if(f"not all({source.constant(tuple(self._filled))})")
        if self._empty:
            source.fail_if(f"any({source.constant(tuple(self._empty))})")
        if self._hooks or self.hookless:
            watched = Hooks(tuple(self._hooks), tuple(self.hookless))
            name = source.constant(watched)
            source.fail_if(f"{name}.handle.next_id != {name}.seen and {name}.registered()")
        self._empty, self._filled, self._hooks, self.hookless = [], [], [], []

    def _collect(self, kind: str, key: str, base: Origin, value: Any) -> None:
        self.source.value(base)  # its own path is read and checked before
        self._alike.setdefault((kind, key), []).append((base, value))

    def _require_alike(self) -> None:
        """Check what was collected: in loops where there is much of a kind."""
        source = self.source
        for (kind, key), members in self._alike.items():
            if len(members) < _MANY:
                for base, value in members:
                    if kind == "absence":
                        source.fail_if(f"{key!r} in {source.value(base)}")
                    else:
                        read = source.class_attribute(base, key)
                        if hasattr(type(self._known(base)), "__missing__"):
                            read = f"{source.value(base)}.get({key!r}, MISS)"
                        elif read is None:
                            read = f"{source.value(base)}[{key!r}]"
                        source.fail_if(f"{read} is not {source.constant(value)}")
                continue
            objects = tuple(self._known(base) for base, _ in members)
            values = tuple(value for _, value in members)
            source.flush()
            if kind == "absence":
                test, over = f"{key!r} in d", f"d in {source.constant(objects)}"
            elif len({id(value) for value in values}) == 1:
                test, over = f"d[{key!r}] is not {source.constant(values[0])}", f"d in {source.constant(objects)}"
            else:
                pairs = tuple(zip(objects, values, strict=True))
                test, over = f"d[{key!r}] is not o", f"d, o in {source.constant(pairs)}"
            source.lines += [f"{source.indent}for {over}:", f"{source.indent}    if {test}: return MISS"]
        self._alike.clear()

    def _among_its_like(self, origin: Origin) -> bool:
        """Whether this is an item of a known sequence, or of a known dictionary whose key has a ``__hash__`` written in
        Python (a tensor)."""
        if origin.step is not Step.ITEM or origin.base is None or self.source.has(origin):
            return False
        below = self.source.pinned(origin.base)
        if below is None:
            return False
        if isinstance(origin.key, torch.Tensor):
            return isinstance(below[0], dict)
        return type(origin.key) is int and origin.key >= 0 and type(below[0]) in (list, tuple)

    def _require_same_items(self) -> None:
        """Check sequences, and dictionaries keyed by tensors (an optimizer's state) without hashing the keys."""
        source = self.source
        for name, (below, keys, values) in self._same_items.items():
            assert below is not None
            if type(below[0]) in (list, tuple):
                if keys == list(range(len(keys))):  # more may stand behind them
                    first = source.constant(tuple(values))
                    source.fail_if(f"len({name}) < {len(keys)} or not all(map(same, {name}, {first}))")
                else:
                    for key, value in zip(keys, values, strict=True):
                        source.fail_if(f"{name}[{key}] is not {source.constant(value)}")
                continue
            found = list(below[0].items())
            if len(found) == len(keys) and all(k is key for (k, _), key in zip(found, keys, strict=True)):
                kept, expected = source.constant(tuple(keys)), source.constant(tuple(values))
                source.fail_if(f"len({name}) != {len(keys)} or not all(map(same, {name}, {kept}))")
                source.fail_if(f"not all(map(same, {name}.values(), {expected}))")
            else:
                for key, value in zip(keys, values, strict=True):
                    source.fail_if(f"{name}.get({source.constant(key)}, MISS) is not {source.constant(value)}")
        self._same_items.clear()


def _is_hooks(origin: Origin) -> bool:
    return origin.step is Step.ITEM and isinstance(origin.key, str) and origin.key.endswith("_hooks")
