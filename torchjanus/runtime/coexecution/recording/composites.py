"""Composite events: a call of an optimizer's ``step()`` or ``zero_grad()``, or of ``clip_grad_norm_()``, is one event
of a skeleton, so that Python does not walk through the operations for each parameter.

A recorded call notes where such a call begins and ends (``Section``), and what the optimizer was (``Form``). Where all
that it computes with is held by the path, a served call only sees whether the optimizer is the same. Where numbers vary
(a learning rate, Adam's corrections), torch's own code runs for one parameter of each kind, and the others get its
numbers. Only for torch's own classes, and where none of the program's code has run within. Knows no graphs.
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import is_
from typing import Any, Protocol

import torch
from torch.nn.utils import clip_grad_norm_

from torchjanus.runtime.coexecution.recording.events import exact, is_constant

__all__ = [
    "ACTIVE", "Aborted", "Composer", "Form", "Section", "given", "installed", "listed", "one_of_each", "uninstalled",
]  # fmt: skip

_OPTIMIZERS = (
    torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam,
    torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.ASGD, torch.optim.Rprop,
)  # fmt: skip
_Function = Callable[..., Any]


class Aborted(BaseException):
    """What torch's code does for one parameter of each kind is not what the path has."""


class Composer(Protocol):
    """Who gets composite calls: a recorder, or a run."""

    def composite(self, func: _Function, first: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make the call ``func(first, *args, **kwargs)``."""
        ...


class _Active(threading.local):
    composer: Composer | None = None  # of the call that this thread co-executes


ACTIVE = _Active()


@dataclass(frozen=True, slots=True)
class Form:
    """What the first argument of a composite call is: the parameters as objects, by group; an optimizer's other
    settings, and its state as objects."""

    groups: tuple[tuple[Any, ...], ...]
    settings: tuple[Any, ...] = ()
    keys: tuple[Any, ...] = ()
    records: tuple[dict[str, Any], ...] = ()
    values: tuple[Any, ...] = ()

    @classmethod
    def of(cls, first: Any) -> Form | None:
        """Return the form; None if it is nothing that a composite call takes."""
        if type(first) is list:
            return cls((tuple(first),))
        if type(first) not in _OPTIMIZERS or any(
            isinstance(value, types.FunctionType | types.MethodType) and name != "step"
            for name, value in vars(first).items()
        ):
            return None
        settings = (_settings(first.defaults), *map(_settings, first.param_groups))
        groups = tuple(tuple(group["params"]) for group in first.param_groups)
        records = tuple(first.state.values())
        if None in settings or any(type(one) is not dict for one in records):
            return None
        return cls(groups, settings, tuple(first.state), records, tuple(chain.from_iterable(map(dict.values, records))))

    def holds(self, first: Any, *, settings: bool) -> bool:
        """Whether it is still so; ``settings``: these, too."""
        if type(first) is list:
            return len(self.groups) == 1 and _same(first, self.groups[0])
        groups, state = first.param_groups, first.state
        return (
            len(groups) == len(self.groups)
            and all(_same(group["params"], params) for group, params in zip(groups, self.groups, strict=True))
            and _same(state.values(), self.records)
            and _same(state, self.keys)
            and _same([*chain.from_iterable(map(dict.values, self.records))], self.values)
            and (not settings or (_settings(first.defaults), *map(_settings, groups)) == self.settings)
        )


def _same(objects: Any, others: Sequence[Any]) -> bool:
    return len(objects) == len(others) and all(map(is_, objects, others))


def _settings(group: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Return a form of a group's settings that is equal only for equal ones; None if there is none."""
    found = []
    for key, value in group.items():
        parts = value if type(value) in (tuple, list) else (value,)
        if key == "params":
            continue
        if not all(map(is_constant, parts)):
            return None
        found.append((key, type(value), *map(exact, parts)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Section:
    """A composite call: its events ``begin`` to ``end``; ``given``: its further arguments; ``result``: the number of
    the tensor that it returned."""

    begin: int
    end: int
    func: _Function
    first: Any
    form: Form
    given: tuple[Any, ...]
    grad: bool
    result: int | None

    def is_call(self, func: _Function, first: Any, given: tuple[Any, ...] | None) -> bool:
        """Whether a call has the same function and arguments, besides their contents."""
        return func is self.func and (first is self.first or type(first) is list) and given == self.given


def listed(first: Any) -> Any:
    """Return the parameters that a generator gives, as a list; anything else as it is."""
    if type(first) is types.GeneratorType:
        return [*first] or iter(())
    return first


def given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """Return a form of further arguments; None if they are more than plain values."""
    if not all(map(is_constant, (*args, *kwargs.values()))):
        return None
    return (*map(exact, args), *((key, exact(value)) for key, value in kwargs.items()))


def one_of_each(optimizer: Any, chosen: frozenset[int]) -> Any:
    """Return an optimizer like this one that has only the parameters with these ids, and shares their state."""
    made = object.__new__(type(optimizer))
    vars(made).update(vars(optimizer))
    made.param_groups = [
        {**group, "params": [one for one in group["params"] if id(one) in chosen]} for group in optimizer.param_groups
    ]
    return made


# -- where torch calls are met ------------------------------------------------------------------------------------


def _met(func: _Function) -> _Function:
    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        composer = ACTIVE.composer
        if composer is None or not args:  # the first argument was given by its name
            return func(*args, **kwargs)
        return composer.composite(func, args[0], args[1:], kwargs)

    return call


def _cells() -> Iterator[types.CellType]:
    """Yield the cells in which torch's wrappers of ``step()`` and ``clip_grad_norm_()`` hold what they wrap: what comes
    before and after it (hooks, schedulers) stays the program's."""
    for function in (*(kind.__dict__.get("step") for kind in _OPTIMIZERS), clip_grad_norm_):
        code = getattr(function, "__code__", None)
        if code is not None and code.co_freevars == ("func",) and code.co_name in ("wrapper", "_no_grad_wrapper"):
            yield function.__closure__[0]  # type: ignore[union-attr,index]


_wrapped: dict[_Function, _Function] = {}
_changed: list[tuple[types.CellType, _Function]] = []
_zero_grad: _Function = torch.optim.Optimizer.zero_grad


def _wrapper(func: _Function) -> _Function:
    made = _wrapped.get(func)
    if made is None:
        made = _wrapped[func] = _met(func)
    return made


def installed() -> None:
    """Let composite calls of co-executed threads be met. The caller holds a lock."""
    for cell in _cells():
        func = cell.cell_contents
        cell.cell_contents = _wrapper(func)
        _changed.append((cell, func))
    torch.optim.Optimizer.zero_grad = _wrapper(_zero_grad)  # type: ignore[method-assign]


def uninstalled() -> None:
    """End that."""
    for cell, func in _changed:
        cell.cell_contents = func
    _changed.clear()
    torch.optim.Optimizer.zero_grad = _zero_grad  # type: ignore[method-assign]
