"""Take a new object apart: its elements, attributes and slots, and the function that makes another one of them.

Recipes and the finalisation of a run share this, so that whatever leaves the step can be both rebuilt and finalised.
"""

from __future__ import annotations

import collections
import functools
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.core.access_path import native_class
from torchjanus.core.kinds import getattr, hasattr, isinstance, module_of
from torchjanus.host.deferred_writes import make_exception, make_function, make_partial, make_value
from torchjanus.rewrite import Anchor, with_code
from torchjanus.rewrite.hooks.lookup import attributes_of, is_python_class

__all__ = [
    "PLAIN_EXCEPTIONS",
    "Parts",
    "is_rewritten",
    "native_base",
    "original_code",
    "parts_of",
    "slots_of",
    "unhooked",
    "unraised",
]

_PLAIN: tuple[Any, ...] = (int, float, complex, str, bytes)
_FUNCTION = vars(types.FunctionType)
_CONTENTS = vars(types.CellType)["cell_contents"]
_FACTORY = vars(collections.defaultdict)["default_factory"]
# Exceptions whose state is their arguments only.
PLAIN_EXCEPTIONS = frozenset(
    {BaseException, Exception, ArithmeticError, AssertionError, BufferError, EOFError, FloatingPointError, IndexError}
    | {KeyError, KeyboardInterrupt, LookupError, MemoryError, NotImplementedError, OverflowError, RecursionError}
    | {ReferenceError, RuntimeError, StopAsyncIteration, TypeError, ValueError, ZeroDivisionError, Warning}
    | {UserWarning, DeprecationWarning, RuntimeWarning, FutureWarning}
)


@dataclass(slots=True)
class Parts:
    """The parts of an object. ``items``: elements (pairs for a dictionary) or the arguments of ``make``."""

    items: tuple[Any, ...] = ()
    attributes: dict[str, Any] | None = None
    fields: tuple[tuple[Any, Any], ...] = ()  # (descriptor, value)
    make: Callable[..., Any] | None = None
    constants: int = 0  # number of leading arguments of ``make`` that are constants
    fixed: bool = False  # its parts must be made before it


def native_base(cls: type) -> type:
    """Return the nearest class in the resolution order that is not written in Python."""
    return next(base for base in cls.__mro__ if not is_python_class(base))


def slots_of(cls: type) -> list[types.MemberDescriptorType]:
    """Return the slot descriptors of a class and its Python-level bases."""
    heap_types = [base for base in cls.__mro__ if is_python_class(base)]
    return [m for base in heap_types for m in vars(base).values() if isinstance(m, types.MemberDescriptorType)]


def _held(value: Any, descriptors: list[Any]) -> tuple[tuple[Any, Any], ...]:
    """Return the slots that are set, with their values."""
    found = []
    for descriptor in descriptors:
        try:
            found.append((descriptor, descriptor.__get__(value, type(value))))
        except AttributeError:
            continue
    return tuple(found)


def parts_of(value: Any) -> Parts | str:
    """Return the parts of a new object, or the reason why no other can be made of its parts."""
    cls = type(value)
    match value:
        case _ if isinstance(value, types.FunctionType):
            return _function(value)
        case _ if isinstance(value, types.CellType):
            try:
                return Parts(fields=((_CONTENTS, value.cell_contents),))
            except ValueError:
                return Parts()
        case _ if isinstance(value, types.MethodType):
            return Parts((value.__func__, value.__self__), make=types.MethodType, fixed=True)
        case _ if cls is types.BuiltinMethodType and not isinstance(value.__self__, types.ModuleType | type | None):
            return _builtin_method(value)
        case _ if cls is functools.partial:
            return Parts((value.func, value.args, value.keywords), attributes_of(value), make=make_partial, fixed=True)
        case _ if cls is slice:
            return Parts((value.start, value.stop, value.step), fixed=True)
        case _ if isinstance(value, BaseException):
            return _exception(value)
        case _ if isinstance(value, weakref.ReferenceType):
            return "a weak reference tells when the object of one call is gone."
    attributes = attributes_of(value)
    base = next((base for base in _PLAIN if issubclass(cls, base)), None)
    if base is not None:
        made = (cls, base, base.__getnewargs__(value)[0] if base is not complex else complex(value))
        return Parts(made, attributes, _held(value, slots_of(cls)), make_value, 3, fixed=True)
    if issubclass(cls, torch.nn.Module):
        return "a module's parameters and hooks are registered by code that would have to run again."
    if not isinstance(attributes, dict | None) or hasattr(cls, "__next__"):
        return "an object of this class cannot be made again from its parts."
    native = native_class(cls)
    if not _plainly_made(cls):
        return "an object of this class cannot be made again from its parts."
    fields = _held(value, slots_of(cls)) if not issubclass(cls, tuple) else ()
    if isinstance(value, collections.defaultdict):
        fields = (*fields, (_FACTORY, value.default_factory))
    if native is None:
        return Parts((), attributes, fields)
    if isinstance(value, dict):
        return Parts(tuple(dict.items(value)), attributes, fields)
    return Parts(tuple(native.__iter__(value)), attributes, fields, fixed=isinstance(value, tuple | frozenset))


def _plainly_made(cls: type) -> bool:
    """Whether attributes, slots and, for containers, elements are the whole state of an instance."""
    if module_of(cls) == "torch.return_types" or cls is types.SimpleNamespace:
        return True
    for base in cls.__mro__[:-1]:
        native = isinstance(vars(base).get("__new__"), types.BuiltinFunctionType)  # some are heap types, too
        if (is_python_class(base) and not native) or base is slice:
            continue
        if native_class(base) is not base and base is not collections.defaultdict:
            return base.__module__ in ("typing", "abc")
    return True


def _function(value: types.FunctionType) -> Parts | str:
    code = original_code(value.__code__)
    if code is None:
        return "which of the functions written there it is is not known."
    cells = value.__closure__ or ()
    plain = types.FunctionType(code, value.__globals__, value.__name__, None, cells)
    names = ("__kwdefaults__", "__annotations__", "__qualname__", "__module__", "__doc__")
    fields = tuple((_FUNCTION[n], getattr(value, n)) for n in names if getattr(value, n) != getattr(plain, n))
    made = (code, value.__globals__, value.__name__)
    return Parts((*made, value.__defaults__, *cells), vars(value), fields, make_function, len(made), fixed=True)


def _builtin_method(value: Any) -> Parts | str:
    owner = value.__self__
    for base in type(owner).__mro__:
        descriptor = vars(base).get(value.__name__)
        if isinstance(descriptor, types.MethodDescriptorType):
            return Parts((descriptor, owner), make=_bind, constants=1, fixed=True)
    return "an object of this class cannot be made again from its parts."


def _bind(descriptor: Any, owner: Any) -> Any:
    return descriptor.__get__(owner)


def _exception(value: BaseException) -> Parts | str:
    if value.__traceback__ is not None:
        return "it was raised: its traceback is that of a run of Python."
    cls = type(value)
    base = native_base(cls)
    if base not in PLAIN_EXCEPTIONS:
        return "an object of this class cannot be made again from its parts."
    chain = [vars(BaseException)[name] for name in ("__cause__", "__context__", "__suppress_context__")]
    fields = tuple((d, held) for d, held in _held(value, chain) if held)
    made = (cls, base)
    fields = (*fields, *_held(value, slots_of(cls)))
    return Parts((*made, *value.args), attributes_of(value), fields, make_exception, len(made), fixed=True)


def plain_exception(cls: type[BaseException]) -> type[BaseException] | None:
    """Return the builtin base of an exception class whose text depends on its arguments only; None if the class has
    its own text methods."""
    base = native_base(cls)
    own = any(isinstance(getattr(cls, name), types.FunctionType) for name in ("__str__", "__repr__", "__format__"))
    return None if own or base not in PLAIN_EXCEPTIONS else base


def unraised(value: BaseException) -> BaseException:
    """Return an unraised exception with the same text; ``value`` itself if its class defines the text."""
    base = plain_exception(type(value))
    if value.__traceback__ is None or base is None:
        return value
    made: BaseException = make_exception(type(value), base, *value.args)
    return made


def is_rewritten(code: types.CodeType) -> bool:
    """Whether this is the code of a function of the program that hooks have been put into."""
    return any(isinstance(value, Anchor) for value in code.co_consts)


def original_code(code: types.CodeType) -> types.CodeType | None:
    """Return the user's code object for a function that rewritten code has made; None if it is ambiguous."""
    anchor = next((value for value in code.co_consts if isinstance(value, Anchor)), None)
    if anchor is None:
        return code
    outer: types.CodeType = anchor.function.__code__  # type: ignore[attr-defined]
    alike = [found for found in _inside(outer) if _same_place(found, code)]
    return alike[0] if len(alike) == 1 and alike[0].co_freevars == code.co_freevars else None


def _inside(code: types.CodeType) -> list[types.CodeType]:
    found = []
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            found += [value, *_inside(value)]
    return found


def _same_place(one: types.CodeType, other: types.CodeType) -> bool:
    if (one.co_qualname, one.co_firstlineno) != (other.co_qualname, other.co_firstlineno):
        return False
    return one.co_name != "<lambda>" or _span(one) == _span(other)


def _span(code: types.CodeType) -> tuple[Any, Any]:
    """Return the first and last source position of a lambda's body."""
    known = [p for p in code.co_positions() if None not in p and p[2] != p[3]]
    begins = min(((p[0], p[2]) for p in known), default=None)
    return begins, max(((p[1], p[3]) for p in known), default=None)


def unhooked(value: Any) -> Any:
    """Return a function that rewritten code has made as the program's own code would have made it, with the same
    variables; all else as it is."""
    if type(value) is not types.FunctionType or not is_rewritten(value.__code__):
        return value
    code = original_code(value.__code__)
    return value if code is None else with_code(value, code)
