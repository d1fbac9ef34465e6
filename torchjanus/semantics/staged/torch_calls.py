"""Which calls of torch a staged graph can hold: those that compute, in the modes in which the program was staged.

Knows nothing of values that are not known.
"""

from __future__ import annotations

from typing import Any

import torch

from torchjanus.core.errors import Place, refused
from torchjanus.core.kinds import isinstance

__all__ = ["EFFECTS", "modes_looked_at", "refuse_effects", "refuse_unrecorded"]

# Functions whose effects are not the graph's.
EFFECTS = frozenset({
    "backward", "manual_seed", "seed", "set_rng_state", "retain_grad", "register_hook", "set_default_dtype",
    "register_post_accumulate_grad_hook", "numpy", "set_", "share_memory_", "set_default_device", "resize_",
    "__array__", "tolist", "data_ptr", "storage", "untyped_storage", "__repr__", "__str__", "__format__",
})  # fmt: skip
# Operators that raise for no contents of tensors, once their kinds fit.
_NEVER_RAISING = frozenset(
    """add sub mul truediv neg pos abs eq ne lt le gt ge sum mean exp log tanh sigmoid relu sqrt matmul mm linear cat
    stack zeros ones zeros_like clone ones_like where max min norm sin cos t transpose unsqueeze squeeze softmax
    log_softmax pow clamp all any detach _set_grad_enabled float double dot mv reshape view flatten expand iadd isub
    imul add_ sub_ mul_""".split()
)
_NAMESPACES = frozenset({"aten", "prims", "torchvision"})
# Queries that depend on the layout of a tensor.
_OF_MEMORY = frozenset({"is_contiguous", "stride", "storage_offset", "is_non_overlapping_and_dense"})


def modes_looked_at() -> tuple[Any, ...]:
    """Return what operators look at besides their operands."""
    attention = torch.backends.cuda
    return (
        attention.math_sdp_enabled(), attention.flash_sdp_enabled(), attention.mem_efficient_sdp_enabled(),
        attention.cudnn_sdp_enabled(), torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(), torch.get_default_dtype(),
    )  # fmt: skip


def refuse_effects(function: Any, name: str, place: Place) -> None:
    """Raise Refused for a call that does more than compute."""
    owner = getattr(function, "__self__", None)
    if name in ("__set__", "__delete__") or name in EFFECTS:
        raise refused(
            "staged-effect", f"{getattr(owner, '__name__', name) if name[:2] == '__' else name}()",
            "A graph that is staged computes; it does not change gradients, generators or attributes of tensors, "
            "and has no memory to hand out.", "Do it outside of the staged function.", place,
        )  # fmt: skip
    if _namespace(function) not in _NAMESPACES:
        raise refused(
            "staged-effect", f"{function}, an operator of the program's own", "Its type is found by running it: "
            "its code may do more than compute.", "Call what it does, or do it outside of the staged function.",
            place,
        )  # fmt: skip


def refuse_unrecorded(function: Any, name: str, modes: tuple[Any, ...], *, trying: bool, place: Place) -> None:
    """Raise Refused for a call whose result depends on what a staged graph does not record. ``modes``: those in which
    the program was staged; ``trying``: whether a ``try`` block of the program is around the call."""
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda") or torch.is_inference_mode_enabled():
        raise refused("staged-mode", "autocast or inference mode", "Staged graphs do not record these modes.",
                      "Call the staged function in the mode instead.", place)  # fmt: skip
    if name in _OF_MEMORY:
        raise refused("staged-value", f"{name}() of a staged tensor", "A graph takes tensors of any strides, and "
                      "operators may choose them.", "Call contiguous(), which copies only where it has to.",
                      place)  # fmt: skip
    if modes_looked_at() != modes:
        raise refused("staged-mode", "a mode of torch that is changed", "Staged graphs do not record it.",
                      "Call the staged function in the mode instead.", place)  # fmt: skip
    if trying and name not in _NEVER_RAISING:
        raise refused(
            "staged-try", f"{name or function}() within try", "Whether it raises is known when the graph runs: "
            "handlers run when the function is staged.", "Do it before the try statement.", place,
        )  # fmt: skip


def _namespace(function: Any) -> str:
    """Whose operator it is: torch's own are of "aten"."""
    if isinstance(function, torch._ops.OpOverloadPacket):
        return str(function._qualified_op_name).partition("::")[0]
    return str(getattr(function, "namespace", getattr(function, "_namespace", "aten")))
