"""What is foreign: libraries without tensors, native code, and objects that only they understand.

An operation on a foreign object is an extern call: the host makes it once, and its result is an input of the graph. The
lists here define what is foreign; ``foreign_effects`` has what is known of the effects of calls.
"""

from __future__ import annotations

import argparse
import array
import collections
import contextvars
import functools
import sys
import types
import weakref
from typing import Any

import torch
from torch.utils import data

from torchjanus.core.errors import SourceUnavailable, Unsupported
from torchjanus.core.kinds import ClassTable, getattr, is_one_of, isinstance, module_of
from torchjanus.rewrite.hooks import rewritten
from torchjanus.rewrite.hooks.lookup import is_python_class
from torchjanus.semantics.known.not_entered import NATIVE_MODULES, module_reason
from torchjanus.semantics.known.trusted import is_installed
from torchjanus.trace.values import TracedFloat, TracedInt, TracedStr

__all__ = [
    "foreign_verdict",
    "is_foreign_function",
    "is_foreign_module",
    "is_foreign_object",
    "is_left_to_host",
    "is_numpy_scalar",
    "only_makes_tensor",
    "runs_user_code",
]

# Modules of the standard library that do input and output, or are not worth entering. Their state is private.
_FOREIGN_LIBRARY = frozenset(
    """random time datetime io os posix posixpath ntpath pathlib socket threading _thread queue subprocess tempfile
    shutil json csv pickle secrets uuid select selectors sqlite3 urllib http ssl email struct zlib gzip bz2 lzma
    zipfile tarfile hashlib hmac base64 binascii re signal platform getpass glob fnmatch calendar decimal locale string
    array mmap multiprocessing concurrent asyncio resource gc _io _random _socket _datetime _json _csv _decimal
    _struct _hashlib _sha2 _sha1 _md5 _blake2 atexit traceback linecache pprint configparser argparse""".split()
)
# Modules of torch that are foreign: datasets are the user's, loaders draw numbers, prefetch and start processes, files
# belong to the host.
_FOREIGN_TORCH = ("torch.utils.data", "torch.utils.tensorboard", "torch.random", "torch.serialization")
# Classes of foreign modules that are read and written like others: options, data sets, loaders but for their iteration.
_HOLDERS = (argparse.Namespace, data.Dataset, data.Sampler, data.DataLoader)
_ENTERED = ("__len__", "__getitem__", "__contains__", "__eq__", "__init__", "__setattr__")  # of their methods
# Libraries without tensors that add methods to classes of libraries with tensors. These methods are entered.
_MAKES_METHODS = ("huggingface_hub",)
_PLAIN = (
    int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented), range, slice, list, tuple,
    dict, set, frozenset, collections.deque, type, property, staticmethod, classmethod, super, functools.partial,
    weakref.ref, contextvars.ContextVar, contextvars.Token, contextvars.Context, BaseException, types.FunctionType,
    types.BuiltinFunctionType, types.MethodType, types.MethodWrapperType, types.MethodDescriptorType,
    types.WrapperDescriptorType, types.ClassMethodDescriptorType, types.GetSetDescriptorType,
    types.MemberDescriptorType, types.ModuleType, types.CodeType, types.CellType, types.FrameType,
    types.TracebackType, types.MappingProxyType, types.SimpleNamespace, types.GenericAlias, types.UnionType,
    torch.Tensor
)  # fmt: skip
_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
_OPERATORS = """__getitem__ __setitem__ __delitem__ __contains__ __len__ __iter__ __reversed__ __missing__ __bool__
    __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __add__ __radd__ __iadd__ __mul__ __rmul__ __imul__ __or__ __ror__ __ior__
    __and__ __rand__ __iand__ __sub__ __rsub__ __isub__ __xor__ __rxor__ __ixor__""".split()
_TRACED = (TracedInt, TracedFloat, TracedStr)


@functools.cache
def _is_foreign_package(root: str) -> bool:
    """Whether an installed package is independent of torch: none of its modules has imported torch so far."""
    module = sys.modules.get(root)
    file = getattr(module, "__file__", None) or ""
    paths = [str(path) for path in getattr(module, "__path__", ())]
    if root == "numpy":
        return True
    if module is None or not any(is_installed(path) for path in (file, *paths)):
        return False
    parts = [m for name, m in list(sys.modules.items()) if name == root or name.startswith(root + ".")]
    return not any(_knows_torch(part) for part in parts)


def _knows_torch(module: Any) -> bool:
    names = getattr(module, "__dict__", {})
    return any(
        value is torch or (isinstance(value, type) and value.__module__.startswith("torch.")) or value is torch.nn
        for value in list(names.values())
    )


@functools.cache
def is_foreign_module(name: str) -> bool:
    """Whether code that is defined in the module of this name is not entered."""
    root = name.partition(".")[0]
    if root == "torch":
        return any(name == part or name.startswith(part + ".") for part in _FOREIGN_TORCH)
    if root in _FOREIGN_LIBRARY:
        return True
    if root in sys.stdlib_module_names or root in ("torchjanus", "__main__", *_MAKES_METHODS):
        return False
    return _is_foreign_package(root)


def is_foreign_function(fn: Any) -> bool:
    """Whether the function or class is defined in a module whose code is not entered."""
    module = getattr(fn, "__module__", None)
    if not isinstance(module, str) or not is_foreign_module(module):
        return False
    if fn is argparse.Namespace:
        return False
    return not (isinstance(fn, types.FunctionType) and is_one_of(fn, _entered()))


def is_left_to_host(obj: Any, method: Any) -> bool:
    """Whether it is a loader or a sampler, and a method that draws numbers, prefetches or starts processes."""
    return isinstance(obj, data.DataLoader | data.Sampler) and is_foreign_function(method)


@functools.cache
def _entered() -> frozenset[Any]:
    """Return the methods of holders that are entered: those that only look, and what their properties return."""
    methods: set[Any] = set()
    for module in (argparse, data.dataset, data.sampler, data.dataloader, data.distributed):
        for cls in vars(module).values():
            if isinstance(cls, type) and issubclass(cls, _HOLDERS):
                methods.update(vars(cls).get(name) for name in _ENTERED)
                methods.update(value.fget for value in vars(cls).values() if isinstance(value, property))
    return frozenset(methods - {data.DataLoader.__init__})


_numpy_scalars: ClassTable[bool] = ClassTable()
_verdicts: ClassTable[tuple[bool | None]] = ClassTable()


def is_numpy_scalar(value: Any) -> bool:
    """Whether this is a NumPy scalar."""
    return _is_numpy_scalar(type(value))


def _is_numpy_scalar(cls: type) -> bool:
    known = _numpy_scalars.known.get(id(cls))
    return _numpy_scalars.put(cls, _derives_from_generic(cls)) if known is None else known


def _derives_from_generic(cls: type) -> bool:
    return any(base.__name__ == "generic" and base.__module__ == "numpy" for base in cls.__mro__)


def is_foreign_object(value: Any, was_there: bool) -> bool:
    """Whether only foreign code understands the object.

    ``was_there``: it was found in the heap or returned by foreign code. A native iterator that the program itself has
    made is not foreign.
    """
    verdict = foreign_verdict(type(value))
    return was_there if verdict is None else verdict


def foreign_verdict(cls: type) -> bool | None:
    """True: all instances of the class are foreign. None: those that the program has not made itself. False: none
    is."""
    return (_verdicts.known.get(id(cls)) or _verdicts.put(cls, (_verdict(cls),)))[0]


def _verdict(cls: type) -> bool | None:
    if is_one_of(cls, weakref.ProxyTypes):
        return True  # isinstance() takes a proxy for its referent
    module = module_of(cls) or "builtins"
    if issubclass(cls, _CONTAINERS) and is_opaque(cls):
        return True
    if issubclass(cls, (*_PLAIN, *_TRACED)) and not is_foreign_module(module):
        return False
    if is_foreign_module(module):
        return not issubclass(cls, (type, BaseException, tuple, types.FunctionType, *_HOLDERS))
    if module.partition(".")[0] in ("torch", "torchjanus"):
        return None if cls.__name__ == "Generator" else False
    if issubclass(cls, types.GeneratorType | types.CoroutineType | types.AsyncGeneratorType):
        return None
    if module in ("logging", "weakref", "_weakrefset", "contextlib", "functools", "typing", "enum", "types"):
        return False
    if _is_native(cls):
        return None
    base = next(base for base in cls.__mro__ if _is_native(base))
    return False if base is object else foreign_verdict(base)  # what native code keeps in it no attribute shows


def is_opaque(cls: type) -> bool:
    """Whether a container's class has Python methods for its operators that are never entered: they have no source, or
    their module is left native. What the container does is then unknown. Comparisons that ``dataclasses`` has written
    do not count: they only read the fields."""
    return any(
        isinstance(method, types.FunctionType) and not _is_of_dataclass(base, method) and _is_closed(method)
        for base in cls.__mro__
        if is_python_class(base)
        for method in map(vars(base).get, _OPERATORS)
    )


def _is_of_dataclass(cls: type, method: types.FunctionType) -> bool:
    return "__dataclass_fields__" in vars(cls) and method.__code__.co_filename == "<string>"


def _is_closed(method: types.FunctionType) -> bool:
    if module_reason(method.__globals__.get("__name__"), NATIVE_MODULES) is not None:
        return True
    try:
        rewritten(method)
    except SourceUnavailable:
        return True
    except Unsupported:  # refused where it is entered
        pass
    return False


def _is_native(cls: type) -> bool:
    """Whether no part of the class is written in Python."""
    if is_python_class(cls):
        module = sys.modules.get(module_of(cls))
        written = any(isinstance(v, types.FunctionType) for v in vars(cls).values()) or "__dict__" in vars(cls)
        file = getattr(module, "__file__", None) or ""
        return not written and not file.endswith(".py")
    return True


# -- effects ---------------------------------------------------------------------------------------------------------

# Functions that make a tensor of an array. They run no other code if all arguments are plain data.
_TAKES_IN: tuple[Any, ...] = (
    torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy, torch.frombuffer, torch.Tensor
)  # fmt: skip
_OF_DATA = (int, float, bool, str, type(None), bytes, bytearray, memoryview, array.array)


def only_makes_tensor(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call only makes a tensor of an array or of a NumPy scalar."""
    return any(fn is one for one in _TAKES_IN) and all(map(_is_plain_data, (*args, *kwargs.values())))


def _is_plain_data(value: Any) -> bool:
    cls: Any = type(value)
    named = isinstance(value, torch.dtype | torch.device | torch.memory_format)
    return named or is_one_of(cls, _OF_DATA) or cls is _array() or _is_numpy_scalar(cls)


def _array() -> type | None:
    numpy = sys.modules.get("numpy")
    return None if numpy is None else numpy.ndarray


def runs_user_code(value: Any) -> bool:
    """Whether this is a function of the user, or holds one: native code that is given it may call it."""
    if isinstance(value, functools.partial):
        return runs_user_code(value.func)
    if isinstance(value, types.MethodType):
        value = value.__func__
    if isinstance(value, types.FunctionType):
        return not is_foreign_module(value.__module__ or "")
    return False
