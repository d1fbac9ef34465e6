"""Watch lookups on classes: methods, class attributes, descriptors and special methods.

A graph is guarded on each attribute that a lookup finds, on its absence in the classes before it in the method
resolution order, on the absence of names that no class has, and on the order itself. Classes of trusted libraries and
of installed packages are assumed not to change, except for attributes that the program names.
"""

from __future__ import annotations

import abc
import functools
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.kinds import ClassTable, getattr, hasattr, is_one_of, isinstance, module_of
from torchjanus.semantics.known.own_code import does_more_than_read
from torchjanus.semantics.known.trusted import is_installed, is_trusted_class
from torchjanus.semantics.native.class_namespaces import functions_of
from torchjanus.semantics.protocols.attributes import in_instance
from torchjanus.semantics.protocols.leaves import mro_of, namespace_of, native_slot
from torchjanus.semantics.protocols.protocols import Protocols
from torchjanus.semantics.protocols.special_methods import PLAIN_DESCRIPTORS
from torchjanus.semantics.protocols.stand_ins import cached_property, partial_method
from torchjanus.semantics.watch.objects.state import Part, WatchState

__all__ = ["Classes", "class_lookup", "hook_may_change", "stand_in_getter"]

# By class: whether it belongs to a library, and whether all its bases do.
_libraries: ClassTable[bool] = ClassTable()
_lasting: ClassTable[bool] = ClassTable()
_kinds: ClassTable[Callable[[type], bool]] = ClassTable()


class Classes(Part):
    """Lookups of attributes on classes."""

    def __init__(self, state: WatchState, semantics: Protocols) -> None:
        super().__init__(state)
        self.semantics = semantics

    def load_class_attr(self, cls: type, name: str) -> Any:
        if name == "__dict__" and class_lookup(type(cls), name)[1] is type and not self._is_stable(cls):
            return self.natives.classes.show(cls)
        if class_lookup(cls, name)[1] is None and class_lookup(type(cls), name)[1] is None:
            self._not_before(cls, None, name)
            self._not_before(type(cls), None, name)
        meta = type(cls)
        accessed = (
            self.semantics.dunder(meta, "__getattr__") is not None
            or self.semantics.dunder(meta, "__getattribute__") is not None
        )
        value = native_slot(meta, "__getattribute__")(cls, name) if accessed else getattr(cls, name)
        if class_lookup(cls, name)[1] is None:
            owner = class_lookup(type(cls), name)[1]
            if owner is not None and not _is_library(owner):
                self._not_before(cls, None, name)
                return self.class_value(type(cls), name, value)
        return self.class_value(cls, name, value)

    def class_value(self, cls: type, name: str, value: Any) -> Any:
        """Record that ``value`` was read from a class, or through it from an object. Return what the program gets."""
        raw, owner = class_lookup(cls, name)
        if owner is None:
            return value  # provided by a library's metaclass
        self._not_before(cls, owner, name)
        return self._held_by(owner, name, raw, value)

    def class_value_of_new(self, obj: Any, name: str, value: Any) -> Any:
        """Record the class lookup if ``value`` was read from a new object but belongs to its class."""
        cls = type(obj)
        if _is_library_only(cls) or in_instance(obj, name):
            return value
        raw, owner = class_lookup(cls, name)
        if owner is None or hasattr(type(raw), "__set__"):
            return value
        self._not_before(cls, owner, name)
        return value if self._is_stable(owner) else self._held_by(owner, name, raw, value)

    def _held_by(self, owner: type, name: str, raw: Any, value: Any) -> Any:
        """Record ``owner``'s attribute ``raw``, of which ``value`` was read. Return what the program gets."""
        base = AccessPath.const(owner).then(Step.DICT)
        if isinstance(raw, classmethod | staticmethod):
            self.note_lookup(owner, name)
            return value
        if self.recording.has_written(owner, name):
            found = self.recording.written(owner, name)
        else:
            found = self.recording.found(base.item(name), raw, trusted=is_trusted_class(owner))
        return found if raw is value and not isinstance(value, types.FunctionType) else value

    def load_super_attr(self, found: Any, name: str) -> Any:
        """Record and return ``super().name``, from the first class after the current one that has it."""
        value = getattr(found, name)
        cls, this = found.__self_class__, found.__thisclass__
        after = mro_of(cls)[mro_of(cls).index(this) + 1 :] if cls is not None and this in mro_of(cls) else ()
        if after and not self._is_stable(cls):
            self.recording.held(AccessPath.const(cls).then(Step.FIELD, "__mro__"), cls.__mro__)
        for owner in after:
            if name in namespace_of(owner):
                return self._held_by(owner, name, namespace_of(owner)[name], value)
            if not self._is_stable(owner):
                self.recording.absent(AccessPath.const(owner).then(Step.DICT), name)
        return value  # an attribute of super itself

    def note_lookup(self, tp: type, name: str) -> None:
        """Record what a lookup of a name on a class found, or that it found nothing."""
        if _is_library_only(tp):
            return
        raw, owner = class_lookup(tp, name)
        if owner is not None and self.recording.has_written(owner, name):
            return
        self._not_before(tp, owner, name)
        if owner is not None and not self._is_stable(owner):
            access_path = AccessPath.const(owner).then(Step.DICT).item(name)
            self.recording.held(access_path, raw, functions_of(raw))
            self._claim_held(access_path, raw)

    def _claim_held(self, access_path: AccessPath, raw: Any) -> None:
        """Record the access paths of a class attribute and of the functions within it: their contents may change."""
        if is_one_of(type(raw), PLAIN_DESCRIPTORS) and not is_one_of(type(raw), _WRAPPING):
            return
        self.recording.claim(raw, access_path)
        for part in _parts_of(raw):
            value = getattr(raw, part)
            if value is not None and not is_one_of(type(value), PLAIN_DESCRIPTORS):
                self.recording.found(access_path.then(Step.FIELD, part), value)

    def note_subclass_check(self, tp: type, kind: Any) -> None:
        """Record an instance check against an abstract class: classes may be registered later (``abc.ABCMeta``)."""
        if isinstance(kind, abc.ABCMeta) and isinstance(tp, type) and not any(kind is base for base in mro_of(tp)):
            if not (self._is_stable(kind) and self._is_stable(tp)):
                if hook_may_change(kind):  # a guard would call the hook again
                    self.recording.refuse(
                        "subclass-hook",
                        f"asks {kind.__qualname__} for its kinds, by a __subclasshook__ that may change something",
                        "how often a graph or its guards ask it is not how often eager does.",
                        "Let the hook only read, or ask for the class outside of the step.",
                    )
                    return
                asked = _kinds.known.get(id(kind)) or _kinds.put(kind, _is_of(weakref.ref(kind)))
                self.recording.found(AccessPath.const(tp).then(Step.OF, asked), asked(tp))

    def _not_before(self, cls: type, owner: type | None, name: str) -> None:
        """Record the absence of a name in the classes before its owner, in all classes if there is no owner."""
        if not self._is_stable(cls):
            self.recording.held(AccessPath.const(cls).then(Step.FIELD, "__mro__"), cls.__mro__)
        for before in mro_of(cls):
            if before is owner:
                return
            if not self._is_stable(before):
                self.recording.absent(AccessPath.const(before).then(Step.DICT), name)

    def _is_stable(self, cls: type) -> bool:
        """Whether the class is assumed not to change: a library's, or one made in this run."""
        return _is_library(cls) or self.recording.is_new_class(cls)


def stand_in_getter(raw: Any) -> tuple[Any, Any] | None:
    """Return the function that takes the place of a native descriptor's ``__get__``, and its arguments; or None."""
    if type(raw) is functools.cached_property and raw.attrname is not None:
        return cached_property, lambda instance, owner: (raw, instance)
    if type(raw) is functools.partialmethod:
        return partial_method, lambda instance, owner: (raw, instance, owner)
    return None


_WRAPPING = (staticmethod, classmethod)


def _parts_of(raw: Any) -> tuple[str, ...]:
    """Return the fields in which a native descriptor holds its functions."""
    if isinstance(raw, property):
        return ("fget", "fset", "fdel")
    return ("__func__",) if isinstance(raw, _WRAPPING) else ()


def hook_may_change(kind: type) -> bool:
    """Whether a ``__subclasshook__`` of the program, which may have side effects, decides about an abstract class."""
    for base in mro_of(kind):
        hook = namespace_of(base).get("__subclasshook__")
        if isinstance(hook, classmethod) and isinstance(hook.__func__, types.FunctionType):
            if not _is_library(base) and does_more_than_read([hook.__func__], base):
                return True
    return not _is_library(kind) and any(map(hook_may_change, type.__subclasses__(kind)))


def _is_of(kind: weakref.ref[type]) -> Callable[[type], bool]:
    """Return a function that tests a class for being a subclass of ``kind``."""

    def is_of(cls: type) -> bool:
        asked = kind()
        return asked is not None and issubclass(cls, asked)

    return is_of


def _is_library(cls: type) -> bool:
    """Whether a class belongs to a library or an installed package."""
    known = _libraries.known.get(id(cls))
    if known is None:
        file = getattr(sys.modules.get(module_of(cls)), "__file__", None)
        known = _libraries.put(cls, is_trusted_class(cls) or is_installed(file or ""))
    return known


def _is_library_only(cls: type) -> bool:
    """Whether a class and all its bases belong to libraries."""
    known = _lasting.known.get(id(cls))
    if known is None:
        known = _lasting.put(cls, all(map(_is_library, mro_of(cls))))
    return known


def class_lookup(cls: type, name: str) -> tuple[Any, type | None]:
    """Return the raw class attribute and the class that holds it, or (None, None)."""
    for owner in mro_of(cls):
        namespace = namespace_of(owner)
        if name in namespace:
            return namespace[name], owner
    return None, None
