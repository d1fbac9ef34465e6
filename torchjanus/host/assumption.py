"""The assumptions of a graph: what was equal in every watched run and is taken to stay so (JANUS 4.2, figure 4).

Each has a description and the place where the user's program relies on it, and can check itself on a later call. These
methods explain a miss, and serve tests; ``requirements`` and the runtime generate the fast check of all together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.core.access_path import RESULTS, AccessPath, native_class, token_of
from torchjanus.core.default_device import default_device, foreign_modes
from torchjanus.core.errors import Place
from torchjanus.core.kinds import isinstance
from torchjanus.host.checks import BROKEN, autocast_regions
from torchjanus.trace.modes import WarningFilters, attention_switched_off
from torchjanus.trace.values import Apply, Expr, Fetch, InductionVariable, Read, leaves

__all__ = [
    "AmbientState", "Args", "Arguments", "Assumption", "AtAccessPath", "Condition", "ContainerKeys", "Emptiness",
    "Identity", "InstanceOf", "KeyPresence", "Kwargs", "SameObject", "TypeOf", "ValueOf", "evaluate", "waits_for",
    "with_article",
]  # fmt: skip

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def waits_for(assumption: Assumption) -> int:
    """Return how many extern calls must have been made before it can be checked. See ``AccessPath.waits_for``."""
    return max((access_path.waits_for for access_path in assumption.access_paths()), default=0)


def evaluate(expr: Any, args: Args, kwargs: Kwargs) -> Any:
    """Return the current value of an expression without fetches."""
    return expr.read(args, kwargs) if isinstance(expr, Read | Fetch | InductionVariable | Apply) else expr


@dataclass(frozen=True, slots=True, eq=False)
class Assumption:
    """The base class. ``place``: where the program relies on it."""

    place: Place

    def holds(self, args: Args, kwargs: Kwargs) -> bool:
        """Whether it holds for these arguments and the current heap."""
        try:
            return self._check(args, kwargs)
        except BROKEN:
            return False  # an access path does not exist any more

    def _check(self, args: Args, kwargs: Kwargs) -> bool:
        raise NotImplementedError

    def access_paths(self) -> Iterable[AccessPath]:
        """Return the reads that it depends on."""
        return ()

    def is_reached(self, args: Args, kwargs: Kwargs) -> bool:
        """Whether all its access paths can be read, with any values."""
        try:
            for access_path in self.access_paths():
                access_path.read(args, kwargs)
        except BROKEN:
            return False
        return True

    def observed(self, args: Args, kwargs: Kwargs) -> str:
        """Return what is so now, for the report of a miss: a clause."""
        values = []
        for access_path in self.access_paths():
            try:
                values.append(access_path.read(args, kwargs))
            except BROKEN as error:
                return f"there is nothing ({type(error).__name__}: {error})"
        return self._instead(values)

    def _instead(self, values: Sequence[Any]) -> str:
        """Return what is so now. ``values``: what the access paths hold."""
        return f"it is {_brief(values[0])}" if len(values) == 1 else "that is not so"


def _brief(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, int | float | complex | str | type(None)):
        return repr(value)
    return with_article(type(value).__qualname__)


def with_article(name: str) -> str:
    """Return the name of a class with its article."""
    spelled = name[:2].isupper()  # an SGD, an LSTM
    vowel = name[:1] in "AEFHILMNORSX" if spelled else name[:1].lower() in "aeio"
    return f"{'an' if vowel or name == 'ndarray' else 'a'} {name}"


@dataclass(frozen=True, slots=True, eq=False)
class Arguments(Assumption):
    """The call passes this many positional arguments and these keywords, in this order, which ``**kwargs`` exposes."""

    count: int
    names: tuple[str, ...]

    def _check(self, args: Args, kwargs: Kwargs) -> bool:
        return len(args) == self.count and [name for name in kwargs if name != RESULTS] == [*self.names]

    def observed(self, args: Args, kwargs: Kwargs) -> str:
        return f"it is {_called(len(args), [name for name in kwargs if name != RESULTS])}"

    def __str__(self) -> str:
        return _called(self.count, self.names)


def _called(count: int, names: Sequence[str]) -> str:
    positional = "1 positional argument" if count == 1 else f"{count} positional arguments"
    return f"called with {positional}{' and keywords ' if names else ''}{', '.join(names)}"


@dataclass(frozen=True, slots=True, eq=False)
class AmbientState(Assumption):
    """Grad mode, inference mode, autocast, default dtype, deterministic mode and default device are as they were, and
    no other mode sees the calls of torch. ``filters``: of a step that warns, the filters of warnings. ``attention``:
    whether it matters which attention kernels may be chosen."""

    modes: Any
    deterministic: bool
    device: torch.device | None = None
    filters: WarningFilters | None = None
    attention: bool = True

    def __str__(self) -> str:
        modes = self.modes
        parts = [f"grad mode {'on' if modes.grad else 'off'}"]
        parts += ["inference mode"] if modes.inference else []
        parts += [f"autocast to {str(dtype).removeprefix('torch.')} on {device}" for device, dtype, _ in modes.autocast]
        parts += [f"attention without its {name} kernel" for name in modes.without if self.attention]
        parts.append(f"default dtype {str(modes.default_dtype).removeprefix('torch.')}")
        parts += [] if self.device is None else [f"default device {self.device}"]
        parts += ["deterministic algorithms"] if self.deterministic else []
        parts += [] if self.filters is None else ["filters of warnings"]
        return ", ".join(parts)

    def _check(self, args: Args, kwargs: Kwargs) -> bool:
        return (
            torch.is_grad_enabled() == self.modes.grad
            and torch.is_inference_mode_enabled() == self.modes.inference
            and autocast_regions() == self.modes.autocast
            and (not self.attention or attention_switched_off() == self.modes.without)
            and torch.get_default_dtype() == self.modes.default_dtype
            and torch.are_deterministic_algorithms_enabled() == self.deterministic
            and not torch.is_anomaly_enabled()
            and default_device() == self.device
            and not foreign_modes()
            and (self.filters is None or self.filters == WarningFilters.now())
        )

    def observed(self, args: Args, kwargs: Kwargs) -> str:
        others = self.filters is not None and self.filters != WarningFilters.now()
        return f"there are other {'filters of warnings' if others else 'modes'}"


@dataclass(frozen=True, slots=True, eq=False)
class AtAccessPath(Assumption):
    """The base class of those of one access path."""

    access_path: AccessPath

    def access_paths(self) -> Iterable[AccessPath]:
        return (self.access_path,)


@dataclass(frozen=True, slots=True, eq=False)
class Identity(AtAccessPath):
    """The access path holds this object."""

    value: Any

    def _check(self, args: Args, kwargs: Kwargs) -> bool:
        return self.access_path.read(args, kwargs) is self.value

    def _instead(self, values: Sequence[Any]) -> str:
        (now,) = values
        return (
            f"it is another: {_brief(now)}" if type(now) is type(self.value) else super(Identity, self)._instead(values)
        )

    def __str__(self) -> str:
        return f"{self.access_path} is the same {type(self.value).__qualname__}"


@dataclass(frozen=True, slots=True, eq=False)
class ValueOf(AtAccessPath):
    """The access path holds a constant of the same type and value."""

    value: Any

    def _check(self, args: Args, kwargs: Kwargs) -> bool:
        now = self.access_path.read(args, kwargs)
        return (type(now) is type(self.value) and token_of(now) == token_of(self.value)) or now is self.value

    def __str__(self) -> str:
        return f"{self.access_path} == {self.value!r}"


@dataclass(frozen=True, slots=True, eq=False)
class TypeOf(AtAccessPath):
    """The access path holds an object of exactly this class."""

    cls: type

    def _check(self, args: Args, kwargs: Kwargs) -> bool:
        return type(self.access_path.read(args, kwargs)) is self.cls

    def __str__(self) -> str:
        return f"{self.access_path} is of type {self.cls.__qualname__}"


@dataclass(frozen=True, slots=True, eq=False)
class InstanceOf(AtAccessPath):
    """What the access path holds is, or is not, an instance of one of these classes."""

    classes: type | tuple[type, ...]
    outcome: bool

    def _check(self, args: Args, kwargs: Kwargs) -> bool:
        return isinstance(self.access_path.read(args, kwargs), self.classes) is self.outcome

    def __str__(self) -> str:
        classes = self.classes if isinstance(self.classes, tuple) else (self.classes,)
        names = " or ".join(cls.__qualname__ for cls in classes)
        return f"{self.access_path} is {'' if self.outcome else 'not '}an instance of {names or 'anything'}"


@dataclass(frozen=True, slots=True, eq=False)
class KeyPresence(AtAccessPath):
    """A key (or the value of an expression) is, or is not, in a dictionary."""

    key: Any
    present: bool

    def access_paths(self) -> Iterable[AccessPath]:
        read = leaves(self.key) if isinstance(self.key, Read | Apply) else ()
        return (self.access_path, *(leaf.access_path for leaf in read if isinstance(leaf, Read)))

    def _check(self, args: Args, kwargs: Kwargs) -> bool:
        now = self.access_path.read(args, kwargs)
        native = native_class(type(now))
        key = evaluate(self.key, args, kwargs)
        return (key in now if native is None else native.__contains__(now, key)) is self.present

    def _instead(self, values: Sequence[Any]) -> str:
        return f"it is {'not ' if self.present else ''}there"

    def __str__(self) -> str:
        if isinstance(self.key, Read | Apply):
            return f"{self.key} {'in' if self.present else 'not in'} {self.access_path}"
        key = self.key if isinstance(self.key, str) else f"<{type(self.key).__name__}>"
        return f"{key!r} {'in' if self.present else 'not in'} {self.access_path}"


@dataclass(frozen=True, slots=True, eq=False)
class Emptiness(AtAccessPath):
    """A container is empty, or is not."""

    filled: bool

    def _check(self, args: Args, kwargs: Kwargs) -> bool:
        now = self.access_path.read(args, kwargs)
        native = native_class(type(now))
        return bool(now if native is None else native.__len__(now)) is self.filled

    def _instead(self, values: Sequence[Any]) -> str:
        return f"it is {'' if self.filled else 'not '}empty"

    def __str__(self) -> str:
        return f"{self.access_path} is {'not ' if self.filled else ''}empty"


@dataclass(frozen=True, slots=True, eq=False)
class ContainerKeys(AtAccessPath):
    """A dictionary's keys (a set's elements) are these, in this order."""

    keys: tuple[Any, ...]

    def _check(self, args: Args, kwargs: Kwargs) -> bool:
        container = self.access_path.read(args, kwargs)
        # below methods of the class that are written in Python
        native = native_class(type(container)) or type(container)
        now = tuple(native.__iter__(container))
        return len(now) == len(self.keys) and all(
            a is b or token_of(a) == token_of(b) for a, b in zip(now, self.keys, strict=True)
        )

    def _instead(self, values: Sequence[Any]) -> str:
        (now,) = values
        native = native_class(type(now))
        keys = None if native is None else tuple(native.__iter__(now))
        return super(ContainerKeys, self)._instead(values) if keys is None else f"they are: {_listed(keys)}"

    def __str__(self) -> str:
        return f"keys of {self.access_path}: {_listed(self.keys)}"


def _listed(keys: Sequence[Any]) -> str:
    shown = ", ".join(repr(k) if isinstance(k, str | int) else f"<{type(k).__name__}>" for k in keys[:6])
    return f"{shown}{', ...' if len(keys) > 6 else ''}"


@dataclass(frozen=True, slots=True, eq=False)
class SameObject(Assumption):
    """Two access paths hold one object, or two."""

    first: AccessPath
    second: AccessPath
    same: bool

    def access_paths(self) -> Iterable[AccessPath]:
        return (self.first, self.second)

    def _check(self, args: Args, kwargs: Kwargs) -> bool:
        return (self.first.read(args, kwargs) is self.second.read(args, kwargs)) is self.same

    def __str__(self) -> str:
        return f"{self.first} is {'' if self.same else 'not '}{self.second}"


@dataclass(frozen=True, slots=True, eq=False)
class Condition(Assumption):
    """A condition on host numbers has the same outcome."""

    expr: Expr
    outcome: Any

    def access_paths(self) -> Iterable[AccessPath]:
        return [leaf.access_path for leaf in leaves(self.expr) if isinstance(leaf, Read)]

    def _check(self, args: Args, kwargs: Kwargs) -> bool:
        try:
            return bool(evaluate(self.expr, args, kwargs) == self.outcome)
        except RuntimeError:  # a tensor is where a number was, and has no single truth value
            return False

    def _instead(self, values: Sequence[Any]) -> str:
        now = dict(zip(map(str, self.access_paths()), map(_brief, values), strict=True))
        return " and ".join(f"{name} is {value}" for name, value in now.items()) or "that is not so"

    def __str__(self) -> str:
        if isinstance(self.outcome, bool):
            return f"{self.expr} is {self.outcome}"
        return f"{self.expr} == {self.outcome!r}"
