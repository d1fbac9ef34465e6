"""Each entry of OpInfo: forward, backward, in place and into given tensors, of several dtypes and ways to lie."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch

from benchmarks.robustness.torch_databases.loading import operators
from benchmarks.robustness.torch_databases.playing import SEED, Case, copy_of

__all__ = ["LAYOUTS", "cases", "contiguous", "flat_of", "laid", "name_of", "names"]

FEW = 2  # samples of each way but the first two
DTYPES = (torch.float64, torch.bfloat16, torch.complex64, torch.int64, torch.bool)


def names() -> list[str]:
    """Of all entries, in the database's order."""
    return [name_of(op) for op in operators()]


def name_of(op: Any) -> str:
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


# -- the programs: ``part`` of a call


def applied(call: Any) -> Any:
    return call[0](*call[1], **call[2])


def applied_into(call: Any) -> Any:
    return call[0](*call[1], **call[2], out=call[3])


def differentiated(call: Any) -> Any:
    op, args, kwargs, inputs, places, tangents = call
    flat = flat_of(op(*args, **kwargs))
    gradients = torch.autograd.grad([flat[k] for k in places], inputs, tangents, allow_unused=True)
    return [part.detach() for part in flat], gradients


def differentiated_in_place(call: Any) -> Any:
    op, args, kwargs, inputs, places, tangents = call
    flat = flat_of(op(args[0].clone(), *args[1:], **kwargs))
    gradients = torch.autograd.grad([flat[k] for k in places], inputs, tangents, allow_unused=True)
    return [part.detach() for part in flat], gradients


def pulled(result: Any, given: tuple[Any, ...]) -> Any:
    """The gradients of three backward passes that the caller makes: with tangents of random numbers, of ones that share
    their memory, and that depend on the result."""
    ((_, args, kwargs),) = given
    inputs = [each for each in flat_of([args, list(kwargs.values())]) if each.requires_grad]
    flat = [each for each in flat_of(result) if each.requires_grad]
    tangents = (
        [torch.randn_like(each, memory_format=torch.contiguous_format) for each in flat],
        [torch.ones((), dtype=each.dtype).expand(each.shape) for each in flat],
        [each.detach() * 2 for each in flat],
    )
    return [torch.autograd.grad(flat, inputs, some, retain_graph=True, allow_unused=True) for some in tangents]


def flat_of(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for part in value for tensor in flat_of(part)]
    return []


# -- ways to lie


def contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def reversed_(tensor: torch.Tensor) -> torch.Tensor:
    """The last dimension lies outermost."""
    order = tuple(reversed(range(tensor.dim())))
    return tensor.permute(order).contiguous().permute(order)


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.movedim(1, -1).contiguous().movedim(-1, 1) if tensor.dim() > 2 else tensor


def sliced(tensor: torch.Tensor) -> torch.Tensor:
    """With gaps."""
    return torch.stack([tensor] * 2, -1)[..., 0] if tensor.dim() else tensor


def expanded(tensor: torch.Tensor) -> torch.Tensor:
    """All rows are one."""
    return tensor[:1].expand(tensor.shape) if tensor.dim() and tensor.size(0) else tensor


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "reversed": reversed_,
    "channels last": channels_last,
    "sliced": sliced,
    "expanded": expanded,
}


def laid(value: Any, lie: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_nested or value.is_quantized or type(value) is not torch.Tensor:
            return value
        return lie(value.detach()).requires_grad_(value.requires_grad)
    if type(value) in (list, tuple):
        return type(value)(laid(part, lie) for part in value)
    if isinstance(value, dict):
        return {key: laid(part, lie) for key, part in value.items()}
    return value


# -- the cases


def cases(name: str, limit: int | None = None, way: str = "") -> Iterator[Case]:
    """All of one entry; of each way at most ``limit``, and only ways that contain ``way``."""
    for op in operators():
        if name_of(op) == name:
            for one, ways in _ways(op).items():
                if way in one:
                    yield from islice(ways, limit)


def _ways(op: Any) -> dict[str, Iterator[Case]]:
    supported = op.supported_dtypes("cpu")
    first = next((dtype for dtype in (torch.float32, *DTYPES) if dtype in supported), None)
    if first is None:
        return {}
    graded = op.supports_autograd and first in op.supported_backward_dtypes("cpu")
    ways = {f"{_text(first)} forward": _cases(op, first, "forward", None)}
    if graded:
        ways[f"{_text(first)} backward"] = _cases(op, first, "backward", None, grad=True)
        ways[f"{_text(first)} result"] = _cases(op, first, "result", FEW, grad=True)
    for layout in LAYOUTS:
        kind = "backward" if graded else "forward"
        ways[f"{_text(first)} {kind}, {layout}"] = _cases(op, first, kind, FEW, grad=graded, layout=layout)
    if op.inplace_variant is not None:
        ways[f"{_text(first)} in place"] = _cases(op, first, "in place", FEW)
        for layout in ("reversed", "sliced"):
            ways[f"{_text(first)} in place, {layout}"] = _cases(op, first, "in place", FEW, layout=layout)
        if graded and op.supports_inplace_autograd:
            kind = "in place backward"
            ways[f"{_text(first)} {kind}"] = _cases(op, first, kind, FEW, grad=True)
    if op.supports_out:
        ways[f"{_text(first)} out"] = _cases(op, first, "out", FEW)
        ways[f"{_text(first)} out, reversed"] = _cases(op, first, "out", FEW, layout="reversed")
    for dtype in DTYPES:
        if dtype in supported and dtype is not first:
            ways[f"{_text(dtype)} forward"] = _cases(op, dtype, "forward", FEW)
            if dtype.is_complex and op.supports_autograd and dtype in op.supported_backward_dtypes("cpu"):
                ways[f"{_text(dtype)} backward"] = _cases(op, dtype, "backward", FEW, grad=True)
    return ways


def _text(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _cases(
    op: Any, dtype: torch.dtype, kind: str, few: int | None, *, grad: bool = False, layout: str = ""
) -> Iterator[Case]:
    way = f"{_text(dtype)} {kind}{', ' if layout else ''}{layout}"
    try:
        with warnings.catch_warnings(action="ignore"):
            torch.manual_seed(SEED)
            samples = list(islice(op.sample_inputs("cpu", dtype, requires_grad=grad), few))
    except Exception as error:
        reported = f"has no samples: {type(error).__name__}"
        yield Case(name_of(op), way, 0, _raising(reported))
        return
    for number, sample in enumerate(samples):
        args, kwargs = (sample.input, *sample.args), dict(sample.kwargs)
        try:
            with warnings.catch_warnings(action="ignore"):
                if layout:
                    args, kwargs = laid((args, kwargs), LAYOUTS[layout])
                made = _made(op, kind, args, kwargs, layout)
        except Exception as error:
            made = _raising(f"{type(error).__name__} in eager")
        if made is not None and kind == "result":
            yield Case(name_of(op), way, number, made, stateful=True, after=pulled)
        elif made is not None:
            yield Case(name_of(op), way, number, made)


def _raising(reported: str) -> Callable[[], Any]:
    def make() -> Any:
        raise LookupError(reported)

    return make


def _made(op: Any, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any], layout: str) -> Callable[[], Any] | None:
    call: tuple[Any, ...]
    part: Callable[[Any], Any]
    if kind in ("forward", "in place"):
        function = op.op if kind == "forward" else op.inplace_variant
        part, call = applied, (function, args, kwargs)
    elif kind == "out":
        torch.manual_seed(SEED)
        made = op.op(*copy_of((args, kwargs))[0], **kwargs)
        if not isinstance(made, torch.Tensor) and not all(isinstance(each, torch.Tensor) for each in made):
            return None
        part, call = applied_into, (op.op, args, kwargs, laid(_emptied(made), LAYOUTS.get(layout, contiguous)))
    else:
        function, part = op.op, differentiated
        if kind == "in place backward":
            function, part = op.inplace_variant, differentiated_in_place
        own_args, own_kwargs = copy_of((args, kwargs))
        torch.manual_seed(SEED)
        first = own_args[0].clone() if kind == "in place backward" else own_args[0]
        flat = flat_of(function(first, *own_args[1:], **own_kwargs))
        places = [k for k, each in enumerate(flat) if each.requires_grad]
        inputs = [each for each in flat_of([args, list(kwargs.values())]) if each.requires_grad]
        if not places or not inputs:
            return None
        tangents = [torch.randn_like(flat[k], memory_format=torch.contiguous_format) for k in places]
        call = (function, args, kwargs, inputs, places, tangents)
        if kind == "result":  # the caller asks for gradients
            part, call = applied, (function, args, kwargs)
    return lambda: (part, (call,), None)


def _emptied(made: Any) -> Any:
    if isinstance(made, torch.Tensor):
        return torch.zeros_like(made).requires_grad_(False)
    return tuple(map(_emptied, made))
