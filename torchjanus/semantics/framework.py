"""Records framework calls of a watched run at the level of the torch API (JANUS's whitelist of known operations).

Knows nothing of hooks. One node for ``F.cross_entropy``, ``Tensor.backward`` or an in-place method: the C++ below is
not looked into, and neither is Python code that torch runs for one such call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from torchjanus.graph.program import Modes
from torchjanus.origin import Origin, Step
from torchjanus.semantics.recording import CONSTANT_TYPES, Recording
from torchjanus.trace.events import Asserted, Op, TensorRef
from torchjanus.trace.values import Apply, Fetch, Traced, plain, trace_value

__all__ = ["FrameworkRecorder", "ambient_modes"]

# What a tensor says about itself without being computed. The graph holds all of it constant, by the guards on inputs.
_METADATA = frozenset(
    """shape dtype device ndim is_leaf layout is_cuda is_cpu is_meta is_mps is_xpu is_sparse is_quantized is_nested
    is_mkldnn is_sparse_csr is_vulkan is_ipu is_maia is_mtia is_ort is_xla is_hpu itemsize nbytes names output_nr
    retains_grad requires_grad size dim numel stride nelement ndimension element_size is_floating_point is_complex
    is_contiguous storage_offset __len__ get_device is_same_size is_signed is_inference is_conj is_neg is_pinned
    is_shared is_distributed result_type can_cast promote_types is_tensor is_storage finfo iinfo __hash__ __class__
    is_grad_enabled __dir__ __repr_html__ __cuda_array_interface__ _is_view is_nonzero_static dense_dim sparse_dim
    has_names is_set_to __instancecheck__ _has_symbolic_sizes_strides _is_zerotensor""".split()
)
_FETCHES: dict[str, type | None] = {"item": None, "__float__": float, "__int__": int}
_REFUSED: dict[str, tuple[str, str]] = {
    "numpy": (
        "the array shares memory with a tensor that the graph computes.",
        "Return the tensor and convert it after.",
    ),
    "__array__": ("NumPy reads a tensor that the graph computes.", "Return the tensor and convert it after."),
    "data_ptr": ("the address of a tensor in a graph means nothing.", ""),
    "untyped_storage": ("a graph's tensors have no storage of their own.", ""),
    "storage": ("a graph's tensors have no storage of their own.", ""),
    "_typed_storage": ("a graph's tensors have no storage of their own.", ""),
    "register_hook": ("a hook is Python code inside the backward pass.", "Apply it to the gradient after backward()."),
    "register_post_accumulate_grad_hook": (
        "a hook is Python code inside the backward pass.",
        "Apply it after backward().",
    ),
    "grad_fn": ("the autograd graph is not there when a compiled graph runs.", ""),
    "__dlpack__": ("the memory leaves torch.", "Return the tensor and convert it after."),
    "share_memory_": ("a graph cannot move storage.", "Do it before the first call."),
    "resize_": ("it changes storage in place.", "Make a new tensor instead."),
    "set_": ("it replaces a tensor's storage.", "Use copy_()."),
    "__deepcopy__": ("the copy's autograd state cannot be taken into a graph.", "Use clone()."),
    "__reduce_ex__": ("pickling reads a tensor's memory.", "Do it outside of the step."),
}
_BACKWARD = frozenset({"backward", "grad"})


def ambient_modes() -> Modes:
    """The state of torch under which the next framework call runs."""
    autocast: tuple[tuple[str, torch.dtype, bool], ...] = ()
    if torch.is_autocast_enabled("cpu"):
        autocast += (("cpu", torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()),)
    if torch.is_autocast_enabled("cuda"):
        autocast += (("cuda", torch.get_autocast_dtype("cuda"), torch.is_autocast_cache_enabled()),)
    return Modes(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast, torch.get_default_dtype())


def call_name(func: Callable[..., Any]) -> str:
    """``Tensor.grad.__get__``, ``torch.relu``, ``F.linear``: how a person would write the function."""
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


class FrameworkRecorder(TorchFunctionMode):
    """Runs every framework call for real and records it."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.recording = recording
        # Leaves whose .grad the program has looked at, set or accumulated into.
        self.graded: dict[int, torch.Tensor] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.call(func, args, kwargs or {})

    def call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make the call for real, and record it as one node, a fetch, an assertion, or nothing (metadata)."""
        name = call_name(func)
        last = name.rpartition(".")[2]
        access = last if last in ("__get__", "__set__", "__delete__") else ""
        short = name.split(".")[-2] if access else last
        bare_args, bare_kwargs = _bare(args), _bare(kwargs)
        if access == "__get__" and short == "grad":
            return self._grad(func, args[0])
        if short in _METADATA and access == "__get__" and self._looked_at(args[0], short):
            return func(*bare_args)
        if short in _METADATA and access != "__set__":
            for value in (*args, *kwargs.values()):
                self._pin_inside(value, f"argument of {name}")
            return func(*bare_args, **bare_kwargs)
        if short in _FETCHES and not access:
            return self._fetch(func, args[0], _FETCHES[short])
        if short == "tolist":
            return self._fetch_list(func, args[0])
        if short in ("__bool__", "is_nonzero"):
            return self._decide(func, args[0])
        if short in ("__format__", "__repr__", "__str__"):
            return self._show(func, args, kwargs)
        if (
            short == "_set_grad_enabled"
            or name.startswith("profiler.")
            or "profiler" in (getattr(func, "__module__", "") or "")
        ):
            return func(*bare_args, **bare_kwargs)
        if access == "__get__" and short == "grad_fn" and func(*bare_args) is None:
            return None  # as sure as requires_grad is
        if short.startswith("_fused_"):
            self.recording.refuse(
                f"{name} inside the step", "torch cannot make it functional.", "Leave fused=True out: graphs fuse."
            )
        if short in _REFUSED:
            why, remedy = _REFUSED[short]
            self.recording.refuse(f"{name} inside the step", why, remedy)
            return func(*bare_args, **bare_kwargs)
        if access == "__set__" and short == "data":
            self.recording.refuse(
                "'x.data = y' replaces a tensor's storage", "a graph cannot hold that back.", "Use x.copy_(y)."
            )
        return self._operate(func, name, args, kwargs, bare_args, bare_kwargs)

    # -- one node -------------------------------------------------------------------------------------------------

    def _operate(
        self,
        func: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        bare_args: tuple[Any, ...],
        bare_kwargs: dict[str, Any],
    ) -> Any:
        recording = self.recording
        symbols = tuple(self.symbol(a, name) for a in args)
        keywords = {k: self.symbol(v, name) for k, v in kwargs.items()}
        modes = ambient_modes()
        place = recording.place
        if name.rpartition(".")[2] in _BACKWARD:
            self._before_backward()
        # A __get__ or __set__ of a data descriptor is called through its slot, as Python does.
        result = func(*bare_args, **bare_kwargs)
        outs: list[TensorRef] = []
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                outs.append(self._known(leaf) or recording.new_tensor(leaf))
            elif leaf is not None and not _harmless(leaf):
                recording.refuse(
                    f"{name} returns a {type(leaf).__name__}",
                    "it is computed from tensors and the program goes on with it in Python.",
                    "Keep it a tensor.",
                )
        recording.note(Op(func, name, symbols, keywords, tuple(outs), modes, place))
        recording.ops += 1
        return result

    def _looked_at(self, tensor: torch.Tensor, name: str) -> bool:
        """Note a property of a tensor that the graph may never compute with: then only this property is guarded."""
        origin = self.recording.owner(tensor)
        if origin is None or self._known(tensor) is not None:
            return False
        with torch._C.DisableTorchFunction():
            value = getattr(tensor, name)
        if not isinstance(value, bool | torch.dtype | torch.device):
            return False
        self.recording.found(origin.then(Step.FIELD, name), value)
        return True

    def _known(self, tensor: torch.Tensor) -> TensorRef | None:
        number = self.recording.number(tensor)
        return None if number is None else TensorRef(number)

    def ref(self, tensor: torch.Tensor, name: str = "") -> TensorRef | None:
        """The tensor's number; a tensor found in the heap becomes an input of the graph. None (and a refusal) if
        nobody knows where it comes from."""
        known = self._known(tensor)
        if known is not None:
            return known
        origin = self.recording.owner(tensor)
        if origin is None:
            self.recording.refuse(
                f"{name or 'the step'} uses a tensor of unknown origin",
                "it was reached through code that is not watched (a C extension, a cache, a default argument).",
                "Pass it as an argument or read it from an attribute.",
            )
            # Number it all the same: the run goes on, and one refusal for it is enough.
            return self.recording.new_tensor(tensor)
        ref = self.recording.input_tensor(tensor, origin)
        with torch._C.DisableTorchFunction():
            if tensor.requires_grad and tensor.is_leaf and id(tensor) not in self.graded:
                self._grad_at_entry(tensor, origin)
        return ref

    def symbol(self, value: Any, name: str) -> Any:
        """An argument as the trace keeps it: TensorRefs for tensors, expressions for traced numbers."""
        if isinstance(value, torch.Tensor):
            return self.ref(value, name)
        if isinstance(value, Traced):
            return value.expr
        if (isinstance(value, CONSTANT_TYPES) and not isinstance(value, torch.Size)) or type(value) in (int, float):
            return value
        if isinstance(value, list | tuple):
            parts = [self.symbol(v, name) for v in value]
            if isinstance(value, list):
                return parts
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if isinstance(value, dict):
            return {k: self.symbol(v, name) for k, v in value.items()}
        if isinstance(value, slice):
            return slice(*(self.symbol(v, name) for v in (value.start, value.stop, value.step)))
        if isinstance(value, int | float):  # IntEnum, numpy.float64 and their like
            return value
        if isinstance(value, type):
            return value
        self.recording.refuse(
            f"{name} takes a {type(value).__name__}", "its contents are not part of the graph.", "Pass a tensor."
        )
        return None

    # -- gradients ------------------------------------------------------------------------------------------------

    def _grad_at_entry(self, leaf: torch.Tensor, origin: Origin) -> None:
        """A leaf's gradient when the call begins is state that backward() may add to."""
        self.graded[id(leaf)] = leaf
        self.recording.found(origin.then(Step.FIELD, "grad"), leaf.grad)

    def _grad(self, func: Callable[..., Any], tensor: torch.Tensor) -> Any:
        self.ref(tensor, "Tensor.grad")
        value = func(tensor)
        if value is None or self._known(value) is not None or self.recording.owner(value) is not None:
            return value
        out = self.recording.new_tensor(value)
        self.recording.note(
            Op(func, "Tensor.grad.__get__", (self.ref(tensor),), {}, (out,), ambient_modes(), self.recording.place)
        )
        self.recording.ops += 1
        return value

    def _before_backward(self) -> None:
        for leaf in self.graded.values():
            with torch._C.DisableTorchFunction():
                hooked = leaf._backward_hooks or getattr(leaf, "_post_accumulate_grad_hooks", None)
            if hooked:
                self.recording.refuse(
                    "backward() runs a hook on a parameter", "a hook is Python code inside the backward pass.", ""
                )

    # -- from tensors to Python -----------------------------------------------------------------------------------

    def _fetch(self, func: Callable[..., Any], tensor: torch.Tensor, kind: type | None) -> Any:
        ref = self.ref(tensor, "Tensor.item")
        value = plain(func(tensor))  # float(tensor) calls item(), which may have come here first
        assert ref is not None
        if isinstance(value, bool):
            self.recording.note(Asserted(ref, value, self.recording.ops, self.recording.place))
            return value
        if type(value) not in (int, float):
            self.recording.refuse(f"item() gives a {type(value).__name__}", "only int and float are carried on.", "")
            return value
        return self._fetched(value, Fetch(ref.number, self.recording.ops, type(value) if kind is None else kind))

    def _fetched(self, value: Any, fetch: Fetch) -> Any:
        self.recording.trace.fetched[fetch.token] = value
        return trace_value(value, fetch)

    def _fetch_list(self, func: Callable[..., Any], tensor: torch.Tensor) -> Any:
        ref = self.ref(tensor, "Tensor.tolist")
        assert ref is not None
        value = func(tensor)
        after = self.recording.ops
        counter = iter(range(10**9))

        def carry(part: Any) -> Any:
            if isinstance(part, list):
                return [carry(p) for p in part]
            index = next(counter)
            if type(part) not in (int, float):
                self.recording.refuse("tolist() of a boolean tensor", "its elements decide what Python does next.", "")
            return self._fetched(part, Fetch(ref.number, after, type(part), index))

        return carry(value)

    def _decide(self, func: Callable[..., Any], tensor: torch.Tensor) -> bool:
        ref = self.ref(tensor, "bool")
        outcome = bool(func(tensor))
        assert ref is not None
        self.recording.note(Asserted(ref, outcome, self.recording.ops, self.recording.place))
        return outcome

    def _show(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = args[0]
        text = func(*_bare(args), **_bare(kwargs))
        ref = self.ref(tensor, "str")
        with torch._C.DisableTorchFunction():
            simple = tensor.dim() == 0 and not tensor.is_complex() and tensor.dtype != torch.bool
            kind = type(tensor.item()) if simple else None
        spec = args[1] if len(args) > 1 else ""
        if kind is not None and spec and ref is not None:
            # format(tensor, ".3f") of a scalar is format(tensor.item(), ".3f").
            return trace_value(str(text), Apply(format, (Fetch(ref.number, self.recording.ops, kind), plain(spec))))
        self.recording.refuse(
            "a tensor is turned into text inside the step",
            "the text is not known before the graph has run.",
            "Print tensor.item(), or return the tensor and print it after.",
        )
        return text

    def _pin_inside(self, value: Any, why: str) -> None:
        if isinstance(value, Traced):
            self.recording.pin(value, why)
        elif isinstance(value, list | tuple):
            for part in value:
                self._pin_inside(part, why)
        elif isinstance(value, torch.Tensor):
            self.ref(value, why)


def _harmless(leaf: Any) -> bool:
    """Results that say nothing about tensor contents."""
    return isinstance(leaf, torch.dtype | torch.device | torch.layout | torch.Size | str)


def _bare(value: Any) -> Any:
    """The arguments as the unwatched program would pass them."""
    if isinstance(value, Traced):
        return plain(value)
    if type(value) in (tuple, torch.Size):
        return tuple(_bare(v) for v in value)
    if type(value) is list:
        return [_bare(v) for v in value]
    if type(value) is dict:
        return {k: _bare(v) for k, v in value.items()}
    if type(value) is slice:
        return slice(_bare(value.start), _bare(value.stop), _bare(value.step))
    return value
