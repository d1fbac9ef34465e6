"""The host memory that native code can reach from an object: its own, by the buffer protocol, and that of what it
holds.

Arrays of any kind, ``bytearray`` and ``memoryview`` export their memory as a buffer. What an object holds is found as
the cyclic collector finds it: iterators, bound methods, closures. Knows nothing of traces.
"""

from __future__ import annotations

import collections
import ctypes
import gc
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from torchjanus.core.access_path import native_class
from torchjanus.core.kinds import getattr, isinstance, module_of
from torchjanus.semantics.known.foreign import is_foreign_module

__all__ = ["Bounds", "Snapshot", "bounds_of", "holds_size", "memory_within", "tensors_within"]

Bounds = tuple[int, int]  # the address of the first byte, and the one after the last

_SEEN = 1000  # the most objects that one search visits
_STRIDED = 0x18  # PyBUF_STRIDES: memory in any order, read-only or not
_TO_WRITE = _STRIDED | 0x1 | 0x4  # PyBUF_WRITABLE, PyBUF_FORMAT
_WITHOUT = (
    bool, int, float, complex, str, type(None), type, types.ModuleType, types.CodeType, torch.Tensor, torch.dtype
)  # fmt: skip


class _Buffer(ctypes.Structure):
    """Py_buffer of Python's C interface."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


def bounds_of(value: Any, flags: int = _STRIDED) -> Bounds | None:
    """Return the bounds of the memory that an object exports, or None. ``flags``: of PyObject_GetBuffer."""
    buffer = _Buffer()
    try:
        ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(value), ctypes.byref(buffer), flags)
    except (TypeError, ValueError, BufferError):
        return None
    try:
        if b"O" in (buffer.format or b"") and flags == _TO_WRITE:
            return None  # counted references, which must not be copied
        low = buffer.buf or 0
        if not buffer.len or not buffer.shape or not buffer.strides:
            return low, low + buffer.len
        high = low
        for count, stride in zip(buffer.shape[: buffer.ndim], buffer.strides[: buffer.ndim], strict=True):
            low, high = low + min(0, stride * (count - 1)), high + max(0, stride * (count - 1))
        return low, high + buffer.itemsize
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))


def holds_size(value: Any) -> bool:
    """Whether another object cannot change its size while ``value`` is alive: a view of memory that is not fixed."""
    while type(value).__name__ == "ndarray" and (base := getattr(value, "base", None)) is not None:
        value = base
    if type(value) is not memoryview:
        return False
    try:
        exporter = type(value.obj)
    except ValueError:
        return False  # released
    return exporter is not bytes and exporter.__name__ != "ndarray" and exporter.__module__ != "ctypes"


def tensors_within(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a result of native code: in nested containers, which may be cyclic."""
    waiting, seen = [value], set[int]()
    while waiting:
        part = waiting.pop()
        if isinstance(part, torch.Tensor):
            yield part
        elif isinstance(part, dict | list | tuple | collections.deque) and id(part) not in seen:
            seen.add(id(part))
            native = native_class(type(part))
            waiting += reversed([*(native.values(part) if isinstance(part, dict) else native.__iter__(part))])


def memory_within(values: Iterable[Any]) -> Iterator[Bounds]:
    """Yield the bounds of the memory that can be reached from the values, except that of tensors."""
    for value in _reached_from(values):
        bounds = bounds_of(value)
        if bounds is not None and bounds[0] < bounds[1]:
            yield bounds


class Snapshot:
    """The present contents of the writable memory that can be reached from some values."""

    def __init__(self, values: Iterable[Any]) -> None:
        known: dict[Bounds, tuple[Any, bytes]] = {}
        for value in _reached_from(values):
            bounds = bounds_of(value, _TO_WRITE)
            if bounds is not None and bounds[0] < bounds[1] and bounds not in known:
                known[bounds] = value, ctypes.string_at(bounds[0], bounds[1] - bounds[0])
        self._known = known

    def put_back(self) -> None:
        """Restore the contents. Memory that has moved since (a ``bytearray`` that has grown) is left as it is."""
        for bounds, (owner, content) in self._known.items():
            if bounds_of(owner, _TO_WRITE) == bounds:
                ctypes.memmove(bounds[0], content, len(content))


def _reached_from(values: Iterable[Any]) -> Iterator[Any]:
    seen: dict[int, Any] = {}  # by id; keeps objects alive that exist only while they are read
    pending = collections.deque(values)  # breadth first
    while pending and len(seen) < _SEEN:
        value = pending.popleft()
        if id(value) in seen or isinstance(value, _WITHOUT):
            continue
        seen[id(value)] = value
        yield value
        pending.extend(_held_by(value))


def _held_by(value: Any) -> Iterable[Any]:
    if isinstance(value, types.FunctionType):
        return () if is_foreign_module(value.__module__ or "") else _reached_by(value)
    if module_of(type(value)) == "numpy":
        return _held_by_numpy(value)
    module = module_of(type(value))
    known = module != "" and not is_foreign_module(module)
    methods = vars(type(value)).values() if known else ()
    return (*gc.get_referents(value), *(part for part in methods if isinstance(part, types.FunctionType)))


def _held_by_numpy(value: Any) -> Iterator[Any]:
    """Yield what NumPy's iterators and arrays of objects hold, which they do not report to the collector."""
    if getattr(getattr(value, "dtype", None), "hasobject", False):
        yield from value.tolist() if value.ndim else [value.item()]
    for name in ("base", "operands", "iters"):
        held = getattr(value, name, None)
        if held is not None:
            yield held
    yield from gc.get_referents(value)


def _reached_by(fn: types.FunctionType) -> Iterator[Any]:
    """Yield what a function can reach by name, beside its arguments."""
    yield from fn.__closure__ or ()
    yield from fn.__defaults__ or ()
    yield from (fn.__kwdefaults__ or {}).values()
    pending = [fn.__code__]
    while pending:
        code = pending.pop()
        yield from (fn.__globals__[name] for name in code.co_names if name in fn.__globals__)
        pending.extend(part for part in code.co_consts if isinstance(part, types.CodeType))
