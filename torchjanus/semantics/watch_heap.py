"""Watching the heap: what an attribute, a subscript or a name reads and writes, and where it was found."""

from __future__ import annotations

import collections
import operator
import types
from typing import Any

import torch

from torchjanus.origin import Origin, Step
from torchjanus.rewrite import Site
from torchjanus.semantics.leaves import native_slot
from torchjanus.semantics.recording import ABSENT
from torchjanus.semantics.trusted import MODULE_CONTAINERS, is_trusted_class, is_trusted_module
from torchjanus.semantics.watch_base import WatchBase
from torchjanus.trace.values import Traced, plain

__all__ = ["HeapWatch"]


class HeapWatch(WatchBase):
    """Reads and writes of objects that were there before the call are recorded; those of new ones are private."""

    # -- attributes -----------------------------------------------------------------------------------------------

    def origin_of(self, obj: Any) -> Origin | None:
        """Where an object was found. Functions, classes and modules stand for themselves."""
        if isinstance(obj, type | types.FunctionType | types.ModuleType | types.BuiltinFunctionType):
            return Origin.const(obj)
        return self.recording.owner(obj)

    def load_attr(self, at: Site, obj: Any, name: str) -> Any:
        self.at(at)
        if isinstance(obj, torch.Tensor):
            if name == "__dict__" or name in vars(obj):
                self.recording.refuse(f"reads the Python attribute '{name}' of a tensor", "it is not watched.", "")
            return getattr(obj, name)
        if isinstance(obj, types.CodeType):
            return getattr(obj, name)
        if isinstance(obj, Traced):
            # A method stays bound to the traced value; what else there is (real, numerator) is a constant.
            value = getattr(obj, name)
            return value if callable(value) else getattr(self.recording.pin(obj, f"its {name} is read"), name)
        origin = self.origin_of(obj)
        if origin is None:
            return super().load_attr(at, obj, name)
        if isinstance(obj, types.ModuleType):
            return self._load_module_attr(origin, obj, name)
        if isinstance(obj, type):
            return self._load_class_attr(obj, name)
        return self._load_instance_attr(origin, obj, name)

    def _load_module_attr(self, origin: Origin, module: types.ModuleType, name: str) -> Any:
        namespace = module.__dict__
        if name not in namespace:
            return getattr(module, name)  # a module's __getattr__, or AttributeError
        base = self._dict_of(origin, namespace)
        return self.recording.read_key(base, namespace, name, trusted=is_trusted_module(module.__name__))

    def _load_class_attr(self, cls: type, name: str) -> Any:
        value = getattr(cls, name)
        for owner in cls.__mro__:
            if name in vars(owner):
                raw = vars(owner)[name]
                if raw is value and not isinstance(value, types.FunctionType):
                    return self._class_value(owner, name, raw)
                self._class_value(owner, name, raw)
                break
        return value

    def _class_value(self, owner: type, name: str, raw: Any) -> Any:
        if self.recording.has_written(owner, name):
            return self.recording.written(owner, name)
        base = Origin.const(owner).then(Step.DICT)
        return self.recording.found(base.item(name), raw, trusted=is_trusted_class(owner))

    def _dict_of(self, origin: Origin, namespace: dict[str, Any]) -> Origin:
        base = origin.then(Step.DICT)
        self.recording.claim(namespace, base)
        return base

    def _load_instance_attr(self, origin: Origin, obj: Any, name: str) -> Any:
        recording = self.recording
        try:
            namespace = object.__getattribute__(obj, "__dict__")
        except AttributeError:
            namespace = None
        if name == "__dict__" and namespace is not None:
            self._dict_of(origin, namespace)
            return namespace
        if name == "__class__":
            return getattr(obj, name)
        raw, owner = _class_lookup(type(obj), name)
        if owner is not None and hasattr(type(raw), "__set__"):
            return self._load_field(origin, obj, name)
        if namespace is not None:
            base = self._dict_of(origin, namespace)
            if recording.has_written(namespace, name):
                value = recording.written(namespace, name)
                if value is not ABSENT:
                    return value
            elif name in namespace:
                kept = name in MODULE_CONTAINERS and isinstance(obj, torch.nn.Module)
                return recording.read_key(base, namespace, name, kept=kept)
            elif owner is None and isinstance(obj, torch.nn.Module) and _registered(obj, namespace, name) is not None:
                return self._load_registered(base, obj, namespace, name)
            elif owner is None or not _never_shadowed(owner, name):
                recording.absent(base, name)
        if owner is None:
            return _native_getattr(obj, name)  # raises AttributeError
        value = _native_getattr(obj, name)
        if value is raw and not isinstance(raw, types.FunctionType):
            return self._class_value(owner, name, raw)
        self._class_value(owner, name, raw)
        return value

    def _load_registered(self, base: Origin, module: torch.nn.Module, namespace: dict[str, Any], name: str) -> Any:
        """A parameter, buffer or submodule: what nn.Module.__getattr__ finds, without its detours. A name is in one of
        the three registries only, as register_parameter() and its like see to."""
        registry = _registered(module, namespace, name)
        assert registry is not None
        entries = namespace[registry]
        self.recording.read_key(base, namespace, registry, kept=True)
        return self.recording.read_key(base.item(registry), entries, name)

    def _load_field(self, origin: Origin, obj: Any, name: str) -> Any:
        if self.recording.has_written(obj, name):
            value = self.recording.written(obj, name)
            if value is ABSENT:
                raise AttributeError(name)
            return value
        return self.recording.found(origin.then(Step.FIELD, name), _native_getattr(obj, name))

    def store_attr(self, at: Site, obj: Any, name: str, value: Any) -> None:
        self.at(at)
        if isinstance(obj, torch.Tensor):
            descriptor, owner = _class_lookup(type(obj), name)
            if owner is None or not hasattr(type(descriptor), "__set__"):
                self.recording.refuse(f"sets the Python attribute '{name}' of a tensor", "it is not watched.", "")
            setattr(obj, name, plain(value))
            return
        origin = self.origin_of(obj)
        if origin is None:
            # An object made in this call: private until it escapes, so it may hold traced numbers.
            super().store_attr(at, obj, name, value)
            return
        descriptor, owner = _class_lookup(type(obj), name)
        super().store_attr(at, obj, name, self.recording.bare(value))
        if isinstance(obj, type) or (owner is not None and hasattr(type(descriptor), "__set__")):
            self.recording.store("field", obj, name, value, origin)
        else:
            namespace = obj.__dict__
            self.recording.store("item", namespace, name, value, self._dict_of(origin, namespace))

    def drop_attr(self, at: Site, obj: Any, name: str) -> None:
        self.at(at)
        origin = self.origin_of(obj)
        super().drop_attr(at, obj, name)
        if isinstance(obj, torch.Tensor):
            if name != "grad":
                self.recording.refuse(f"deletes the attribute '{name}' of a tensor", "it is not watched.", "")
            return
        if origin is None:
            return
        descriptor, owner = _class_lookup(type(obj), name)
        if isinstance(obj, type) or (owner is not None and hasattr(type(descriptor), "__set__")):
            self.recording.store("delete-field", obj, name, ABSENT, origin)
        else:
            namespace = obj.__dict__
            self.recording.store("delete-item", namespace, name, ABSENT, self._dict_of(origin, namespace))

    # -- subscripts -----------------------------------------------------------------------------------------------

    def load_item(self, at: Site, obj: Any, key: Any) -> Any:
        self.at(at)
        recording = self.recording
        if isinstance(obj, torch.Tensor):
            return obj[key]
        origin = recording.owner(obj)
        key = recording.pin(key, "used as an index")
        if isinstance(key, slice):
            key = slice(*(recording.pin(p, "used as an index") for p in (key.start, key.stop, key.step)))
        if origin is None or isinstance(obj, type):
            return obj[key]
        if isinstance(obj, dict):
            if recording.has_written(obj, key):
                value = recording.written(obj, key)
                if value is ABSENT:
                    raise KeyError(key)
                return value
            if key in obj:
                return recording.read_key(origin, obj, key)
            recording.absent(origin, key)
            value = obj[key]  # KeyError, or a default factory that stores what it makes
            recording.store("item", obj, key, value, origin)
            return value
        if isinstance(obj, list | tuple | collections.deque):
            shadow = self.natives.shadows.of(obj)
            if shadow is not None and not isinstance(key, slice):
                return shadow.read(operator.index(key))
            if isinstance(key, slice):
                return self._slice(obj, key)
            index = operator.index(key)
            if index < 0 and not -len(obj) <= index:
                return obj[key]
            if index >= len(obj):
                self.natives.whole_length(obj)
                return obj[key]
            if index < 0 and recording.has_written(obj, index + len(obj)):
                index += len(obj)
            return recording.read_key(origin, obj, index)
        return self._unknown_container(obj, "subscript", lambda: obj[key])

    def elements(self, obj: Any) -> list[Any]:
        """A container's elements, each read and traced."""
        return list(self.natives.iterable(obj))

    def _slice(self, obj: list[Any] | tuple[Any, ...] | collections.deque[Any], key: slice) -> Any:
        parts = self.elements(obj)[key]
        if type(obj) is list:
            return parts
        return tuple(parts) if type(obj) is tuple else obj[key]  # type: ignore[index]  # a deque raises

    def store_item(self, at: Site, obj: Any, key: Any, value: Any) -> None:
        self.at(at)
        recording = self.recording
        if isinstance(obj, torch.Tensor):
            obj[key] = value
            return
        key = recording.pin(key, "used as an index")
        origin = recording.owner(obj)
        if origin is None:
            obj[key] = value
            return
        if isinstance(obj, dict):
            if key not in obj:
                recording.absent(origin, key)
                recording.restructured.add(id(obj))
            elif not recording.has_written(obj, key):
                recording.absent(origin, key, True)
            obj[key] = recording.bare(value)
            recording.store("item", obj, key, value, origin)
            return
        if isinstance(obj, list) and isinstance(key, int):
            obj[key] = recording.bare(value)
            shadow = self.natives.shadows.of(obj)
            if shadow is not None:
                shadow.store(key, value)
            self.natives.whole_length(obj)
            recording.store("item", obj, key % len(obj), value, origin)
            return
        recording.refuse(
            f"assigns to an item of a {type(obj).__name__}", "this container's writes cannot be held back.", ""
        )
        obj[key] = recording.bare(value)

    def drop_item(self, at: Site, obj: Any, key: Any) -> None:
        self.at(at)
        recording = self.recording
        key = recording.pin(key, "used as an index")
        origin = recording.owner(obj)
        if origin is not None and isinstance(obj, dict):
            if not recording.has_written(obj, key):
                recording.absent(origin, key, key in obj)
            del obj[key]
            recording.restructured.add(id(obj))
            recording.store("delete-item", obj, key, ABSENT, origin)
            return
        if origin is not None:
            recording.refuse(
                f"deletes an item of a {type(obj).__name__}", "this container's writes cannot be held back.", ""
            )
        del obj[key]

    # -- names ----------------------------------------------------------------------------------------------------

    def load_global(self, at: Site, owner: dict[str, Any], name: str, value: Any) -> Any:
        self.at(at)
        recording = self.recording
        if recording.has_written(owner, name):
            return recording.written(owner, name)
        if name not in owner:
            return value  # a builtin
        trusted = is_trusted_module(owner.get("__name__"))
        return recording.found(Origin.const(owner, "globals").item(name), value, trusted=trusted)

    def store_global(self, at: Site, owner: dict[str, Any], name: str, value: Any) -> Any:
        self.at(at)
        self.recording.store("item", owner, name, value, Origin.const(owner, "globals"))
        return self.recording.bare(value)

    def load_cell(self, at: Site, cell: types.CellType, name: str, value: Any) -> Any:
        self.at(at)
        if self.recording.has_written(cell, name):
            return self.recording.written(cell, name)
        return self.recording.found(Origin.cell(cell, name), value)

    def store_cell(self, at: Site, cell: types.CellType, name: str, value: Any) -> Any:
        self.at(at)
        self.recording.store("cell", cell, name, value, Origin.cell(cell, name))
        return self.recording.bare(value)


def _native_getattr(obj: Any, name: str) -> Any:
    """``obj.name`` without a ``__getattr__`` written in Python: that one is entered rewritten."""
    return native_slot(type(obj), "__getattribute__")(obj, name)


def _class_lookup(cls: type, name: str) -> tuple[Any, type | None]:
    """The raw class attribute and the class that holds it."""
    for owner in cls.__mro__:
        if name in vars(owner):
            return vars(owner)[name], owner
    return None, None


def _never_shadowed(owner: type, name: str) -> bool:
    """Names that no instance attribute is trusted to hide: those of classes written in C and of nn.Module itself, and
    the private ones of library classes."""
    if not owner.__flags__ & (1 << 9) or (owner is torch.nn.Module and name != "forward"):
        return True
    return name.startswith("_") and is_trusted_class(owner)


def _registered(module: torch.nn.Module, namespace: dict[str, Any], name: str) -> str | None:
    """The registry of the module that holds the name, where the module looks names up in nn.Module's own way."""
    if _class_lookup(type(module), "__getattr__")[1] is torch.nn.Module:
        for registry in ("_parameters", "_buffers", "_modules"):
            if name in namespace.get(registry, ()):
                return registry
    return None
