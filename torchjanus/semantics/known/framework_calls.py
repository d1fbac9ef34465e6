"""What is known of torch's functions by name: which only query, which fetch a value, which no graph can hold.

Plain tables; knows nothing of recordings.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchjanus.core.kinds import getattr, isinstance
from torchjanus.trace.user_code import ACCUMULATED, GRADIENT

__all__ = [
    "BACKWARD",
    "FETCHES",
    "HOOKING",
    "METADATA",
    "REFUSED",
    "SIZED",
    "accessor",
    "call_name",
    "checks",
    "parts_of_name",
    "scaled_update",
]

# Properties of a tensor that need no computation. The graph holds them constant by the guards on its inputs.
METADATA = frozenset(
    """shape dtype device ndim is_leaf layout is_cuda is_cpu is_meta is_mps is_xpu is_sparse is_quantized is_nested
    is_mkldnn is_sparse_csr is_vulkan is_ipu is_maia is_mtia is_ort is_xla is_hpu itemsize nbytes names output_nr
    retains_grad requires_grad size dim numel stride nelement ndimension element_size is_floating_point is_complex
    is_contiguous storage_offset __len__ get_device is_same_size is_signed is_inference is_conj is_neg is_pinned
    is_shared is_distributed result_type can_cast promote_types is_tensor is_storage finfo iinfo __hash__ __class__
    is_grad_enabled __dir__ __repr_html__ __cuda_array_interface__ _is_view is_nonzero_static dense_dim sparse_dim
    has_names is_set_to __instancecheck__ _has_symbolic_sizes_strides _is_zerotensor""".split()
)
# Of these, those that depend on a tensor's sizes in a way that is not traced.
SIZED = frozenset({"stride", "is_contiguous", "nbytes", "is_same_size", "__repr_html__"})
FETCHES: dict[str, type | None] = {"item": None, "__float__": float, "__int__": int}
REFUSED: dict[str, tuple[str, str]] = {
    "numpy": (
        "the array shares memory with a tensor that the graph computes.",
        "Return the tensor and convert it after.",
    ),
    "__array__": ("NumPy reads a tensor that the graph computes.", "Return the tensor and convert it after."),
    "data_ptr": ("the address of a tensor in a graph means nothing.", ""),
    "untyped_storage": ("a graph's tensors have no storage of their own.", ""),
    "storage": ("a graph's tensors have no storage of their own.", ""),
    "_typed_storage": ("a graph's tensors have no storage of their own.", ""),
    "grad_fn": ("the autograd graph is not there when a compiled graph runs.", ""),
    "__dlpack__": ("the memory leaves torch.", "Return the tensor and convert it after."),
    "share_memory_": ("a graph cannot move storage.", "Do it before the first call."),
    "resize_": ("it changes storage in place.", "Make a new tensor instead."),
    "set_": ("it replaces a tensor's storage.", "Use copy_()."),
    "__reduce_ex__": ("pickling reads a tensor's memory.", "Do it outside of the step."),
}
HOOKING = {"register_hook": GRADIENT, "register_post_accumulate_grad_hook": ACCUMULATED}
BACKWARD = frozenset({"backward", "grad"})
_RAISING = ("linalg", "cholesky", "inverse", "solve", "multinomial", "bernoulli", "poisson", "lu_", "svd", "eig", "qr")


def call_name(func: Callable[..., Any]) -> str:
    """Return the function's name as a program spells it: ``Tensor.grad.__get__``, ``torch.relu``, ``F.linear``."""
    name = getattr(func, "__name__", "") or repr(func)
    owner = getattr(func, "__self__", None)
    if name in ("__get__", "__set__", "__delete__") and owner is not None:
        return f"Tensor.{getattr(owner, '__name__', owner)}.{name}"
    kind = getattr(func, "__objclass__", None)
    if kind is not None and issubclass(kind, torch._C.TensorBase):
        return f"Tensor.{name}"
    qualname: str = getattr(func, "__qualname__", name)
    if qualname.startswith("Tensor."):
        return qualname
    module: str = getattr(func, "__module__", None) or "torch"
    short = {"torch.nn.functional": "F", "torch._C._nn": "F", "torch._C": "torch"}.get(module, module)
    return f"{short}.{name}"


def parts_of_name(func: Callable[..., Any]) -> tuple[str, str, str]:
    """Return the name as a program spells it, the name without owner, and the accessor of a property (or "")."""
    name = call_name(func)
    last = name.rpartition(".")[2]
    access = last if last in ("__get__", "__set__", "__delete__") else ""
    return name, name.split(".")[-2] if access else last, access


def accessor(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function. Method wrappers, which Python makes for each access to an attribute (``x.T``), are made
    unique, so that calls of the same one compare equal."""
    return _ACCESSORS.setdefault(func, func) if type(func) is types.MethodWrapperType else func


_ACCESSORS: dict[Callable[..., Any], Callable[..., Any]] = {}


def scaled_update(short: str, kwargs: Mapping[str, Any]) -> str:
    """Return which argument keeps a fused update of an optimizer out of graphs; "" if none does."""
    if not short.startswith("_fused_"):
        return ""
    if isinstance(kwargs.get("lr"), torch.Tensor):
        return "a learning rate that is a tensor"
    scaled = any(kwargs.get(name) is not None for name in ("grad_scale", "found_inf"))
    return "the scale of a GradScaler" if scaled else ""


def checks(name: str, args: tuple[Any, ...]) -> bool:
    """Whether the operation raises on some values: decompositions, and operations that take indices."""
    if _may_raise(name):
        return True
    tensors = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
    with torch._C.DisableTorchFunction():
        for tensor in tensors:
            if not tensor.is_floating_point() and tensor.dtype is not torch.bool and tensor.dim() > 0:
                return True
    return False


@functools.cache
def _may_raise(name: str) -> bool:
    return any(word in name for word in _RAISING)
