"""Find the program's code that native code runs unwatched while it makes a class, and replacements of classes or code.

A class statement runs in native code, which calls methods of metaclasses, bases and attributes of the body. Such
methods of the program are not watched, so the run is refused. So is a run that replaces the class of an object, the
bases of a class or the code of a function: guards on them are not evaluated again within the step.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from itertools import chain
from types import FunctionType
from typing import Any

from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.rewrite import Site
from torchjanus.rewrite.hooks.lookup import MISSING, mro_of, namespace_of, on_type
from torchjanus.semantics.known.trusted import is_trusted_class
from torchjanus.semantics.watch.objects.classes import hook_may_change
from torchjanus.semantics.watch.objects.frame_readers import program_module
from torchjanus.semantics.watch.objects.state import Part

__all__ = ["MadeClasses", "replaces_kind", "unwatched_code"]

_OF_METACLASSES = ("__prepare__", "__new__", "__init__", "mro")
_KINDS = {"__class__": "class", "__bases__": "bases", "__code__": "code"}


class MadeClasses(Part):
    """Classes that the run makes."""

    def named_tuple(self, at: Site, args: tuple[Any, ...], kwargs: dict[str, Any]) -> type | None:
        """Return the class that ``collections.namedtuple(*args)`` makes, which eval() does unseen; None where what it
        is given is not of this call."""
        if len(args) != 2 or kwargs or not is_one_of(type(args[0]), (str,)):
            return None
        names = args[1]
        if is_one_of(type(names), (list, tuple)) and self.recording.owner(names) is None:
            parts = [*names]
        elif is_one_of(type(names), (str,)):
            parts = [names]
        else:
            return None
        if not all(is_one_of(type(part), (str,)) for part in parts):
            return None
        made: type = collections.namedtuple(*args, module=program_module())  # type: ignore[misc]
        self.recording.named_tuples.append(made)
        self.note(at, made)
        return made

    def note(self, at: Site, made: Any, *, watched: bool = False) -> Any:
        """Record a class that has been made, and return it. ``watched``: by a call of its metaclass, whose methods in
        Python were watched, and not by a class statement."""
        self.at(at)
        if isinstance(made, type):
            self.recording.made_classes.append(made)
        if (called := unwatched_code(made, watched)) is not None:
            self.recording.refuse(
                "class-creation-hook",
                f"makes the class {made.__name__}, which calls {called}",
                "native code calls it in the middle of its own work: what it does is not watched.",
                "Make the class outside of the step.",
            )
        elif isinstance(made, type) and hook_may_change(made):
            self.recording.refuse(
                "subclass-hook",
                f"makes the class {made.__name__}, which is asked for by a __subclasshook__ that may change something",
                "how often it is asked depends on which classes are still alive.",
                "Make the class outside of the step, or let the hook only read.",
            )
        return made


def _owner(cls: type, name: str) -> type | None:
    """Return the class that provides a method, None if that is no class of the program."""
    owner = next((base for base in mro_of(cls) if name in namespace_of(base)), None)
    return None if owner is None or is_trusted_class(owner) else owner


def unwatched_code(made: Any, watched: bool = False) -> str | None:
    """Return the name of a method of the program that native code has called while it made the class, or None.
    ``watched``: see ``MadeClasses.note``."""
    if not isinstance(made, type):
        return None
    return next(chain(() if watched else _called_on_metaclass(made), _called(made)), None)


def _called_on_metaclass(made: type) -> Iterator[str]:
    meta = type(made)
    for name in _OF_METACLASSES:
        owner = _owner(meta, name)
        if owner is not None:
            yield f"{owner.__qualname__}.{name}()"
    owner = _owner(type(meta), "__call__")
    if owner is not None:
        yield f"{owner.__qualname__}.__call__()"


def _called(made: type) -> Iterator[str]:
    for base in mro_of(made)[1:]:
        if "__init_subclass__" in namespace_of(base):
            if not is_trusted_class(base):
                yield f"{base.__qualname__}.__init_subclass__()"
            break
    for value in namespace_of(made).values():
        if type(value) is not FunctionType and on_type(type(value), "__set_name__") is not MISSING:
            owner = _owner(type(value), "__set_name__")
            if owner is not None:
                yield f"{owner.__qualname__}.__set_name__()"
    for base in namespace_of(made).get("__orig_bases__", ()):
        owner = _owner(type(base), "__mro_entries__")
        if owner is not None:
            yield f"{owner.__qualname__}.__mro_entries__()"


def replaces_kind(obj: Any, name: str, value: Any) -> str | None:
    """Return what setting this attribute replaces (class, bases or code), None if it replaces none of these."""
    if name == "__class__" and value is not type(obj):
        return _KINDS[name]
    if name == "__bases__" and isinstance(obj, type) and value != obj.__bases__:
        return _KINDS[name]
    if name == "__code__" and isinstance(obj, FunctionType) and value is not obj.__code__:
        return _KINDS[name]
    return None
