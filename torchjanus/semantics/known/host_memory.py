"""Which memory native code reaches from an object: that which the object shows by Python's buffer protocol, and that of
all it holds.

Arrays of any kind, a ``bytearray`` and a ``memoryview`` say where their memory lies when they are asked for a buffer.
What holds them is asked what it refers to, as Python's collector of cycles asks: iterators, bound methods, what a
function has closed over. Knows nothing of traces.
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
from torchjanus.core.kinds import getattr, isinstance
from torchjanus.semantics.known.foreign import is_foreign_module

__all__ = ["Bounds", "Snapshot", "bounds_of", "memory_within", "tensors_within"]

Bounds = tuple[int, int]  # the addresses of the first byte, and behind the last

_SEEN = 1000  # objects that are looked at, in one question
_STRIDED = 0x18  # PyBUF_STRIDES: memory in any order, read-only or not
_TO_WRITE = _STRIDED | 0x1 | 0x4  # PyBUF_WRITABLE, PyBUF_FORMAT
_WITHOUT = (
    bool, int, float, complex, str, type(None), type, types.ModuleType, types.CodeType, torch.Tensor, torch.dtype
)  # fmt: skip


class _Buffer(ctypes.Structure):
    """Py_buffer, as Python's C interface has it."""

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
    """Where the memory lies that an object shows; None if it shows none. ``flags``: of PyObject_GetBuffer."""
    buffer = _Buffer()
    try:
        ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(value), ctypes.byref(buffer), flags)
    except (TypeError, ValueError, BufferError):
        return None
    try:
        if b"O" in (buffer.format or b"") and flags == _TO_WRITE:
            return None  # references, which are counted
        low = buffer.buf or 0
        if not buffer.len or not buffer.shape or not buffer.strides:
            return low, low + buffer.len
        high = low
        for count, stride in zip(buffer.shape[: buffer.ndim], buffer.strides[: buffer.ndim], strict=True):
            low, high = low + min(0, stride * (count - 1)), high + max(0, stride * (count - 1))
        return low, high + buffer.itemsize
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))


def tensors_within(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in what native code has given: in containers, which may hold themselves."""
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
    """Where the memory lies that can be reached from these, a number of steps down. That of tensors is not told."""
    for value in _reached_from(values):
        bounds = bounds_of(value)
        if bounds is not None and bounds[0] < bounds[1]:
            yield bounds


class Snapshot:
    """What lies in the memory that can be reached from some values, now."""

    def __init__(self, values: Iterable[Any]) -> None:
        known: dict[Bounds, tuple[Any, bytes]] = {}
        for value in _reached_from(values):
            bounds = bounds_of(value, _TO_WRITE)
            if bounds is not None and bounds[0] < bounds[1] and bounds not in known:
                known[bounds] = value, ctypes.string_at(bounds[0], bounds[1] - bounds[0])
        self._known = known

    def put_back(self) -> None:
        """Write it there again. What has moved since (a ``bytearray`` that has grown) is left as it is."""
        for bounds, (owner, content) in self._known.items():
            if bounds_of(owner, _TO_WRITE) == bounds:
                ctypes.memmove(bounds[0], content, len(content))


def _reached_from(values: Iterable[Any]) -> Iterator[Any]:
    seen: dict[int, Any] = {}  # by id, and so kept: some of it is made only when it is asked for
    pending = collections.deque(values)  # what is near comes first
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
    if type(value).__module__ == "numpy":
        return _held_by_numpy(value)
    module = type(value).__module__
    known = isinstance(module, str) and not is_foreign_module(module)  # a class may have made a property of it
    methods = vars(type(value)).values() if known else ()
    return (*gc.get_referents(value), *(part for part in methods if isinstance(part, types.FunctionType)))


def _held_by_numpy(value: Any) -> Iterator[Any]:
    """NumPy's iterators do not tell the collector what they hold, nor do arrays of objects."""
    if getattr(getattr(value, "dtype", None), "hasobject", False):
        yield from value.tolist() if value.ndim else [value.item()]
    for name in ("base", "operands", "iters"):
        held = getattr(value, name, None)
        if held is not None:
            yield held
    yield from gc.get_referents(value)


def _reached_by(fn: types.FunctionType) -> Iterator[Any]:
    """What a function can look at by name, beside its arguments."""
    yield from fn.__closure__ or ()
    yield from fn.__defaults__ or ()
    yield from (fn.__kwdefaults__ or {}).values()
    pending = [fn.__code__]
    while pending:
        code = pending.pop()
        yield from (fn.__globals__[name] for name in code.co_names if name in fn.__globals__)
        pending.extend(part for part in code.co_consts if isinstance(part, types.CodeType))
