"""Watch the heap: reads and writes of attributes, with their access paths. For subscripts see ``items``, for variables
``names``."""

from __future__ import annotations

import contextvars
import enum
import types
from collections.abc import Callable
from typing import Any

import torch

from torchjanus.core.access_path import REGISTRIES, AccessPath, Step
from torchjanus.core.caches import Interned
from torchjanus.core.kinds import getattr, hasattr, is_one_of, isinstance, module_of
from torchjanus.rewrite import Site
from torchjanus.rewrite.hooks.lookup import attributes_of, is_python_class
from torchjanus.semantics.containers.keyed import MappingShadow
from torchjanus.semantics.containers.parts import is_rewritten
from torchjanus.semantics.known.trusted import is_installed, is_trusted_class, is_trusted_module
from torchjanus.semantics.protocols.leaves import native_slot, on_type
from torchjanus.semantics.protocols.protocols import Protocols
from torchjanus.semantics.protocols.special_methods import PLAIN_DESCRIPTORS
from torchjanus.semantics.record.write_record import ABSENT
from torchjanus.semantics.torch.backward_code import is_autograd_node
from torchjanus.semantics.watch.objects.classes import Classes, class_lookup
from torchjanus.semantics.watch.objects.made_classes import replaces_kind
from torchjanus.semantics.watch.objects.state import Part, WatchState
from torchjanus.trace.values import Traced, TracedFloat, plain

__all__ = ["Heap"]


_SIMPLE = (int, float, complex, str, bytes, bool, type(None))
_ROOTS = (types.FunctionType, type, types.ModuleType, types.BuiltinFunctionType, enum.Enum)
_FLAGS = (bool, str, types.NoneType)


class Heap(Part):
    """Attributes. Accesses to old objects are recorded; new objects are private to the run."""

    def __init__(self, state: WatchState, semantics: Protocols, classes: Classes) -> None:
        super().__init__(state)
        self.semantics = semantics
        self.classes = classes

    # -- attributes -----------------------------------------------------------------------------------------------

    def access_path_of(self, obj: Any) -> AccessPath | None:
        """Return the access path of an object, None for a new one. Functions, classes and modules are roots."""
        if not isinstance(obj, _ROOTS):
            return self.recording.owner(obj)
        if isinstance(obj, types.FunctionType) and self.recording.is_new_function(obj):
            return None
        if isinstance(obj, type) and self.recording.is_new_class(obj):
            return None
        if isinstance(obj, type | types.FunctionType | types.ModuleType | types.BuiltinFunctionType):
            return self.recording.owner(obj) or AccessPath.const(obj)
        if isinstance(obj, enum.Enum) and not self.recording.is_new_class(type(obj)):
            return self.recording.owner(obj) or AccessPath.const(obj)
        return self.recording.owner(obj)

    def attribute_name(self, at: Site, name: str) -> str:
        """Return the untraced attribute name, and specialise on it: it selects the descriptor."""
        if type(name) is str:
            return name
        self.at(at)
        bare: str = self.recording.pin(name, "names an attribute")
        return bare

    def load_attr(self, at: Site, obj: Any, name: str) -> Any:
        self.at(at)
        if type(name) is not str:
            name = self.recording.pin(name, "names an attribute")
        if self.recording.called_back.any:
            self.recording.called_back.look_at_attribute(obj, name)
        if isinstance(obj, torch.Tensor):
            return self._load_tensor_attr(obj, name)
        if isinstance(obj, types.CodeType):
            return getattr(obj, name)
        if isinstance(obj, Traced):
            # A method stays bound to the traced value; other attributes (real, numerator) become constants.
            if name == "__class__" or not hasattr(plain(obj), name):
                return getattr(plain(obj), name)  # raises an error that names the class
            value = getattr(obj, name)
            return value if callable(value) else getattr(self.recording.pin(obj, f"its {name} is read"), name)
        if type(obj) is super:
            return self.classes.load_super_attr(obj, name)
        access_path = self.access_path_of(obj)
        if access_path is None:
            if type(obj) is contextvars.Token and name == "old_value":
                return self._old_value(obj)
            if is_autograd_node(obj):
                self.natives.framework.code.read_node(obj, name)
            return self.classes.class_value_of_new(obj, name, Protocols.load_attr(self.semantics, at, obj, name))
        if isinstance(obj, types.ModuleType):
            return self._load_module_attr(at, access_path, obj, name)
        if isinstance(obj, type):
            return self.classes.load_class_attr(obj, name)
        return self._load_instance_attr(access_path, obj, name)

    def _load_tensor_attr(self, tensor: torch.Tensor, name: str) -> Any:
        namespace, access_path = vars(tensor), self.recording.owner(tensor)
        if name == "__dict__" or (name in namespace and access_path is None):
            self.recording.refuse(
                "tensor-attribute", f"reads the Python attribute '{name}' of a tensor", "it is not watched.", ""
            )
        elif access_path is not None and class_lookup(type(tensor), name)[1] is None:
            base = self._dict_of(access_path, namespace)
            if name in namespace:
                return self.recording.read_key(base, namespace, name)
            self.recording.absent(base, name)
        return getattr(tensor, name)

    def _load_module_attr(self, at: Site, access_path: AccessPath, module: types.ModuleType, name: str) -> Any:
        namespace = attributes_of(module)
        base = self._dict_of(access_path, namespace)
        if name not in namespace:
            self.recording.absent(base, name)
            fallback = namespace.get("__getattr__")
            if not self.semantics.enterable(fallback) or is_trusted_module(namespace.get("__name__")):
                return Protocols.load_attr(self.semantics, at, module, name)  # AttributeError, as a rule
            return self.semantics.call(at, self.recording.read_key(base, namespace, "__getattr__"), (name,), {})
        # Functions of a library do not change, but any code may set its flags.
        trusted = is_trusted_module(namespace.get("__name__")) and not is_one_of(type(namespace[name]), _FLAGS)
        return self.recording.read_key(base, namespace, name, trusted=trusted)

    def _dict_of(self, access_path: AccessPath, namespace: dict[str, Any]) -> AccessPath:
        base = access_path.then(Step.DICT)
        self.recording.claim(namespace, base)
        return base

    def _load_instance_attr(self, access_path: AccessPath, obj: Any, name: str) -> Any:
        recording = self.recording
        namespace = attributes_of(obj)
        if name == "__dict__" and namespace is not None:
            self._dict_of(access_path, namespace)
            return namespace
        if name == "__class__":
            return native_slot(type(obj), "__getattribute__")(obj, name)
        raw, owner = class_lookup(type(obj), name)
        getter = on_type(type(obj), "__getattribute__")
        if isinstance(getter, types.FunctionType) and self.semantics.native_reason(getter) is not None:
            self._refuse_attribute(obj, name)
            return getattr(obj, name)
        if owner is not None and hasattr(type(raw), "__set__"):
            unset = type(raw) is types.MemberDescriptorType and not hasattr(obj, name)
            if unset and not recording.has_written(obj, name):
                recording.found(access_path.then(Step.OF, lacks(name)), True)  # it may be set at a later call
            return self._load_field(access_path, obj, name)
        if namespace is not None:
            base = self._dict_of(access_path, namespace)
            if recording.has_written(namespace, name):
                value = recording.written(namespace, name)
                if value is not ABSENT:
                    return value
            elif name in namespace:
                return recording.read_key(base, namespace, name)
            elif owner is None and isinstance(obj, torch.nn.Module) and _registered(obj, namespace, name) is not None:
                return self._load_registered(base, obj, namespace, name)
            elif owner is None or not _never_shadowed(owner, name):
                recording.absent(base, name)
        left_native = self.semantics.accessor_left_native
        if owner is None and left_native(type(obj), "__getattr__"):
            if isinstance(obj, torch.nn.Module):  # its lookup is not nn.Module's: the value may be anything
                self._refuse_attribute(obj, name)
            return getattr(obj, name)  # code that is left out of graphs handles it
        if owner is None:
            value = _native_getattr(obj, name)  # raises AttributeError, as a rule
            self._refuse_attribute(obj, name)
            return value
        if not is_one_of(type(raw), PLAIN_DESCRIPTORS) and left_native(type(obj), "__getattr__"):
            self._refuse_attribute(obj, name)
            return getattr(obj, name)  # if the descriptor raises, __getattr__ is called
        return self.classes.class_value(type(obj), name, _native_getattr(obj, name))

    def _old_value(self, token: contextvars.Token[Any]) -> Any:
        """Return what a context variable was before the step has set it."""
        was_set, value = self.recording.context_before(token)
        if was_set:
            return value
        access_path = AccessPath.const(token.var, token.var.name).then(Step.CONTEXT)
        known = self.recording.found(access_path, None if value is token.MISSING else value)
        return value if value is token.MISSING else known

    def note_not_hidden(self, obj: Any, name: str) -> None:
        """Record that no attribute of the object itself hides the class's."""
        access_path, namespace = self.recording.owner(obj), attributes_of(obj)
        if access_path is not None and namespace is not None:
            if not self.recording.has_written(namespace, name):
                self.recording.absent(self._dict_of(access_path, namespace), name)  # it may be there at a later call

    def _refuse_attribute(self, obj: Any, name: str) -> None:
        self.recording.refuse(
            "attribute-unwatched",
            f"reads the attribute '{name}' of a {type(obj).__qualname__}",
            "its class keeps it where it cannot be watched.",
            "Read it before the step and pass it in.",
        )

    def _load_registered(self, base: AccessPath, module: torch.nn.Module, namespace: dict[str, Any], name: str) -> Any:
        """Record and return a parameter, buffer or submodule directly. nn.Module ensures that a name is in one registry
        only."""
        registry = _registered(module, namespace, name)
        assert registry is not None
        entries = namespace[registry]
        self.recording.read_key(base, namespace, registry)
        return self.recording.read_key(base.item(registry), entries, name)

    def _load_field(self, access_path: AccessPath, obj: Any, name: str) -> Any:
        if self.recording.has_written(obj, name):
            value = self.recording.written(obj, name)
            if value is ABSENT:
                raise AttributeError(name)
            return value
        return self._found_field(access_path, obj, name)

    def _found_field(self, access_path: AccessPath, obj: Any, name: str) -> Any:
        value = getattr(obj, name) if isinstance(obj, type) else _native_getattr(obj, name)
        return self.recording.found(access_path.then(Step.FIELD, name), value)

    def _attributes(self, access_path: AccessPath, namespace: dict[str, Any]) -> MappingShadow:
        """Return the shadow of an object's instance dictionary."""
        return self.natives.shadows.mapping(namespace, self._dict_of(access_path, namespace))

    def store_attr(self, at: Site, obj: Any, name: str, value: Any) -> None:
        self.at(at)
        name = self.recording.pin(name, "names an attribute")
        if isinstance(obj, torch.Tensor):
            descriptor, owner = class_lookup(type(obj), name)
            if owner is None or not hasattr(type(descriptor), "__set__"):
                self.recording.refuse(
                    "tensor-attribute", f"sets the Python attribute '{name}' of a tensor", "it is not watched.", ""
                )
            setattr(obj, name, plain(value))
            return
        access_path = self.access_path_of(obj)
        if access_path is None:
            # A new object is private until it escapes, so it may hold traced numbers.
            Protocols.store_attr(self.semantics, at, obj, name, self.recording.private(value))
            return
        if (kind := replaces_kind(obj, name, value)) is not None:
            self.recording.refuse(
                "class-replaced",
                f"replaces the {kind} of a {type(obj).__qualname__} that was there before the call",
                "what was assumed of it is not asked again.",
                "Do it outside of the step, or make another object.",
            )
        self._note_replaced(obj, name)
        if name == "__dict__" and isinstance(value, dict) and self.recording.owner(value) is None:
            for key, part in list(dict.items(value)):  # from now on it belongs to an old object
                dict.__setitem__(value, key, self.recording.pin(part, "is an attribute of an object's new __dict__"))
        descriptor, owner = class_lookup(type(obj), name)
        if isinstance(obj, type) or (owner is not None and hasattr(type(descriptor), "__set__")):
            Protocols.store_attr(self.semantics, at, obj, name, self.recording.bare(value))
            self.recording.store("field", obj, name, value, access_path)
        elif (namespace := attributes_of(obj)) is None:
            Protocols.store_attr(self.semantics, at, obj, name, value)  # AttributeError
        else:
            self._attributes(access_path, namespace).record_store(name, value)
            Protocols.store_attr(self.semantics, at, obj, name, self.recording.bare(value))

    def _note_replaced(self, obj: Any, name: str) -> None:
        """Note a write to a module or class of a library."""
        if isinstance(obj, types.ModuleType | type):  # asked natively: its class may see each read of an attribute
            home = module_of(obj) if isinstance(obj, type) else attributes_of(obj).get("__name__")
            if is_trusted_module(home):
                self.state.step.recording.record_replacement(obj, name)

    def drop_attr(self, at: Site, obj: Any, name: str) -> None:
        self.at(at)
        name = self.recording.pin(name, "names an attribute")
        if isinstance(obj, torch.Tensor):
            self.state.out(Protocols.drop_attr, self.semantics, at, obj, name)
            if name != "grad":
                self.recording.refuse(
                    "tensor-attribute", f"deletes the attribute '{name}' of a tensor", "it is not watched.", ""
                )
            return
        access_path = self.access_path_of(obj)
        if access_path is None:
            self.state.out(Protocols.drop_attr, self.semantics, at, obj, name)
            return
        self._note_replaced(obj, name)
        descriptor, owner = class_lookup(type(obj), name)
        if isinstance(obj, type) or (owner is not None and hasattr(type(descriptor), "__set__")):
            if not self.recording.has_written(obj, name) and hasattr(obj, name):
                self._found_field(access_path, obj, name)  # guard on its presence
            self.state.out(Protocols.drop_attr, self.semantics, at, obj, name)
            self.recording.store("delete-field", obj, name, ABSENT, access_path)
            return
        namespace = attributes_of(obj)
        if namespace is not None:
            attributes = self._attributes(access_path, namespace)
            if attributes.has(name):
                attributes.record_removal(name)
        self.state.out(Protocols.drop_attr, self.semantics, at, obj, name)  # AttributeError where there is none

    def hashed(self, at: Site, value: Any) -> Any:
        """Return a value that a display or comprehension hashes. (Traced numbers report their hash themselves.)"""
        self.at(at)
        self.natives.note_new_keys(value)
        if isinstance(value, TracedFloat) and value.bare is not None:
            return self.recording.pin(value, "used as a key")
        return value

    # -- functions ------------------------------------------------------------------------------------------------

    def claim_defaults(self, fn: types.FunctionType, first: bool = False) -> None:
        """Record a function's code and defaults: guard on them, and give access paths to default objects."""
        root = self.recording.owner(fn) or AccessPath.const(fn)
        settled = is_trusted_module(fn.__module__) or is_installed(fn.__code__.co_filename)
        if (first or self.recording.was_there(fn)) and not settled:
            # IPython's autoreload puts new code into existing functions.
            self.recording.held(root.then(Step.FIELD, "__code__"), fn.__code__)
            self.recording.held(root.then(Step.FIELD, "__defaults__"), fn.__defaults__)
            if fn.__kwdefaults__ is not None:
                defaults = root.then(Step.FIELD, "__kwdefaults__")
                self.recording.held(defaults, fn.__kwdefaults__)
                for name, value in fn.__kwdefaults__.items():
                    self.recording.pin(self.recording.found(defaults.item(name), value), "a default")
        if self.state.outer is None and is_rewritten(fn.__code__):
            return  # the run has made the function, and computed its defaults
        for index, value in enumerate(fn.__defaults__ or ()):
            if not isinstance(value, _SIMPLE) and self.recording.owner(value) is None:
                self.recording.found(
                    root.then(Step.FIELD, "__defaults__").item(index),
                    value,
                    trusted=not isinstance(value, torch.Tensor),
                )
        for name, value in (fn.__kwdefaults__ or {}).items():
            if not isinstance(value, _SIMPLE) and self.recording.owner(value) is None:
                self.recording.found(root.then(Step.FIELD, "__kwdefaults__").item(name), value, trusted=True)


def lacks(name: str) -> Callable[[Any], bool]:
    """Return a function that tests whether an object lacks the attribute ``name``: one for each name, since guards are
    compared by it."""

    def lacking(obj: Any) -> bool:
        return not hasattr(obj, name)

    return _LACKING.get(name, lambda: lacking)


_LACKING: Interned[Callable[[Any], bool]] = Interned()


def _native_getattr(obj: Any, name: str) -> Any:
    """Return ``obj.name`` without a ``__getattr__`` written in Python, which is entered rewritten instead."""
    return native_slot(type(obj), "__getattribute__")(obj, name)


def _never_shadowed(owner: type, name: str) -> bool:
    """Whether instance attributes are assumed not to hide the class attribute: those of native classes and nn.Module,
    and private names of library classes."""
    if not is_python_class(owner) or (owner is torch.nn.Module and name != "forward"):
        return True
    return name.startswith("_") and is_trusted_class(owner)


def _registered(module: torch.nn.Module, namespace: dict[str, Any], name: str) -> str | None:
    """Return the registry of a module that holds the name, None if the module overrides ``__getattr__``."""
    if class_lookup(type(module), "__getattr__")[1] is torch.nn.Module:
        for registry in REGISTRIES:
            if name in namespace.get(registry, ()):
                return registry
    return None
