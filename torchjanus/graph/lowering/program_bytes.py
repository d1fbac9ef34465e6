"""Serialise a program for another process of the same torchjanus that is to lower it.

Only programs with a signature (see graph_bytes) can be sent: they contain only objects of torch, of torchjanus and
plain data. Their tensors go without contents. Knows nothing of processes.
"""

from __future__ import annotations

import importlib
import io
import pickle
import types
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from torchjanus.graph.ir.program import Dimension, Input, Program
from torchjanus.graph.recursion.cells.invoke import Invocation
from torchjanus.graph.recursion.variants.plan import Cell
from torchjanus.graph.regions.loop import Loop, TerminatedLoop
from torchjanus.graph.regions.switch import Switch
from torchjanus.graph.regions.switch_gradients import Flow, asked_by, asking_of
from torchjanus.trace.blanks import blank, is_blank
from torchjanus.trace.values import Placeholder

__all__ = ["bytes_of", "home_of", "pack_program", "standing", "unpack_program"]


def pack_program(program: Program, there: Sequence[object] = ()) -> bytes | None:
    """Return the program as bytes, or None if a tensor cannot be sent without contents (not in host memory, or lazy).
    Of changing sizes only the order is sent, not where they are read; of loops, recursive calls and switches what they
    compute, not what lowering made of them. ``there``: the objects that the reader has."""
    if any(entry.example.device.type != "cpu" or _is_lazy(entry.example) for entry in program.inputs):
        return None
    buffer = io.BytesIO()
    pickler = _Pickler(buffer) if not there else _Referring(buffer, there)
    pickler.dump(replace(program, dimensions=standing(program.dimensions)))
    return buffer.getvalue()


def unpack_program(packed: bytes, there: Sequence[object] = ()) -> Program:
    """Return the program. Its tensors have the same kinds and share memory as before; their contents are undefined."""
    program = _Unpickler(io.BytesIO(packed), there).load()
    assert isinstance(program, Program)
    return program


def standing(dimensions: tuple[Dimension, ...]) -> tuple[Dimension, ...]:
    """Return the dimensions with stand-ins for the expressions that read them, which belong to the program."""
    return tuple(replace(one, expr=Placeholder(k, str(one.expr))) for k, one in enumerate(dimensions))


def bytes_of(inputs: tuple[Input, ...]) -> int:
    """Return how many bytes unpacking reserves for the tensors (without touching the memory)."""
    sizes = {(s := one.example.untyped_storage())._cdata: s.nbytes() or one.example.nbytes for one in inputs}
    return sum(sizes.values())


def home_of(func: types.FunctionType) -> tuple[Any, str] | None:
    """Return the namespace and name of a wrapper of torch's whose ``__name__`` is that of the function which it wraps
    (as ``Tensor.__pow__``). None for all other functions."""
    home, name = _wrapped().get(id(func), (None, ""))
    return (home, name) if home is not None and vars(home).get(name) is func else None


@cache
def _wrapped() -> dict[int, tuple[Any, str]]:
    found: dict[int, tuple[Any, str]] = {}
    for home in (torch.Tensor, torch, torch.nn.functional, torch.functional):
        for name, value in vars(home).items():
            wraps = hasattr(value, "__wrapped__") or "<locals>" in getattr(value, "__qualname__", "")
            if isinstance(value, types.FunctionType) and wraps:
                found.setdefault(id(value), (home, name))
    return found


def _is_lazy(tensor: torch.Tensor) -> bool:
    return tensor.is_conj() or tensor.is_neg()


class _Pickler(pickle.Pickler):
    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer, pickle.HIGHEST_PROTOCOL)
        self._storages: dict[int, torch.UntypedStorage] = {}  # by address: one storage has many Python objects

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and is_blank(value):
            return _blank, (value.dtype, tuple(value.size()), value.stride(), value.requires_grad)
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            return _tensor, (
                self._storages.setdefault(storage._cdata, storage), type(value), value.dtype, tuple(value.size()),
                value.stride(), value.storage_offset(), value.is_inference(), value.requires_grad and value.is_leaf,
            )  # fmt: skip
        if isinstance(value, TerminatedLoop):
            iterations = value.body, value.carried, value.stacked
            return TerminatedLoop, (*iterations, {}, value.loose, value.unseen, value.trains, value.go)
        if isinstance(value, Loop):
            return Loop, (value.body, value.carried, value.stacked, {}, value.loose, value.unseen, value.trains)
        if isinstance(value, Invocation):
            return Invocation, (value.recursion,)
        if isinstance(value, Cell):
            return Cell, (value.name, value.function, value.takes, value.columns, value.gives, value.alone)
        if isinstance(value, Switch):
            return Switch, (value.arms, value.results)
        if isinstance(value, Flow):
            return Flow, (value.flows, value.asked)
        if (asking := asking_of(value)) is not None:
            return asked_by, asking
        if isinstance(value, torch.UntypedStorage):
            return torch.UntypedStorage, (value.nbytes(),)
        if isinstance(value, types.ModuleType):
            return importlib.import_module, (value.__name__,)
        if isinstance(value, types.MethodWrapperType):  # like Tensor.grad.__set__
            return _part, (value.__self__, value.__name__)
        if isinstance(value, types.MethodDescriptorType | types.WrapperDescriptorType | types.GetSetDescriptorType):
            return _descriptor, (value.__objclass__, value.__name__)
        if value is torch._C._VariableFunctions:
            return _part, (torch._C, "_VariableFunctions")
        if isinstance(value, types.BuiltinFunctionType):
            name = value.__name__
            if getattr(torch._C._VariableFunctions, name, None) is value:  # its module is not recorded
                return _part, (torch._C._VariableFunctions, name)
            return _part, (value.__self__, name)
        if isinstance(value, types.FunctionType) and (home := home_of(value)) is not None:
            return _part, home
        if isinstance(value, torch._ops.OpOverload):
            return _operator, (value._schema.name, value._overloadname)
        return NotImplemented


class _Referring(_Pickler):
    """Replaces the objects that the reader has by their numbers."""

    def __init__(self, buffer: io.BytesIO, there: Sequence[object]) -> None:
        super().__init__(buffer)
        self._there = {id(one): number for number, one in enumerate(there)}

    def persistent_id(self, value: Any) -> int | None:
        return self._there.get(id(value))


class _Unpickler(pickle.Unpickler):
    def __init__(self, buffer: io.BytesIO, there: Sequence[object]) -> None:
        super().__init__(buffer)
        self._there = there

    def persistent_load(self, number: int) -> Any:
        return self._there[number]


def _part(owner: Any, name: str) -> Any:
    return getattr(owner, name)


def _descriptor(home: type, name: str) -> Any:
    return vars(home)[name]


def _operator(name: str, overload: str) -> Any:
    space, _, base = name.partition("::")
    return getattr(getattr(getattr(torch.ops, space), base), overload)


def _blank(dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...], requires_grad: bool) -> torch.Tensor:
    return blank(torch.empty_strided(size, stride, dtype=dtype, requires_grad=requires_grad))


def _tensor(
    storage: torch.UntypedStorage,
    kind: type,
    dtype: torch.dtype,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    inference: bool,
    requires_grad: bool,
) -> torch.Tensor:
    with torch.inference_mode(inference):
        made = torch.empty(0, dtype=dtype)
        made.set_(storage, offset, size, stride)
    if kind is torch.nn.Parameter:
        return torch.nn.Parameter(made, requires_grad=requires_grad)
    return made.requires_grad_(requires_grad)
