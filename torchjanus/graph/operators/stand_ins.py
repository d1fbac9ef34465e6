"""Replacements for functions of which a trace would lose a check, or which cannot be traced.

Each returns what the original returns, and raises where the original does.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchjanus.core.trees import leaves_of
from torchjanus.graph.ir.program import Node, Slot
from torchjanus.graph.operators import packed_rows
from torchjanus.graph.operators.ctc import ctc_loss
from torchjanus.graph.operators.fused_updates import FUSED_UPDATES
from torchjanus.graph.operators.gradient_formulas import masked_fill, masked_fill_, maximum, minimum, prod
from torchjanus.graph.operators.linspace import linspace
from torchjanus.graph.operators.recurrent import gru, is_packed, lstm, packed, rnn_relu, rnn_tanh
from torchjanus.trace import functions

__all__ = ["OF_NUMBERS", "SUBSCRIPTS", "of_layers", "rounding", "stand_in", "tensor_given"]


def stand_in(func: Any, symbolic: bool = False) -> Any:
    """Return the replacement for ``func`` in a graph, or ``func``. ``symbolic``: in a graph with dynamic sizes."""
    if symbolic and (made := _SYMBOLIC.get(func)) is not None:
        return made
    return _STANDING_IN.get(func, func) if isinstance(func, _FUNCTIONS) else func


def of_layers(func: Any) -> bool:
    """Whether a function of a graph computes recurrent layers: tracing it takes as long as many operations."""
    return any(func is one for one in _LAYERS)


def rounding(node: Node) -> Any:
    """Return the function to call for an operation: a traceable one where it rounds numbers of the host to a dtype."""
    made = _ROUNDING.get(node.func) if isinstance(node.func, _NATIVE) else None
    if made is None:
        return node.func
    given = node.args[2:] if made is _set_rounded else [*node.args, *node.kwargs.values()]
    return made if any(isinstance(number, Slot) for number in leaves_of(list(given))) else node.func


def _tensor(data: Any, *, dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor:
    """``torch.tensor`` of numbers, some of which are symbolic or 0-d tensors; float64 holds a float, int64 an int."""
    numbers = list(leaves_of(data))
    dtype = dtype or _dtype_of(numbers)
    device = options.get("device")
    with torch.no_grad():
        parts = [
            number.reshape(()).to(device=device, dtype=dtype, copy=True)
            if isinstance(number, torch.Tensor)
            else torch.full((), number, dtype=dtype, device=device)
            for number in numbers
        ]
        made: torch.Tensor = torch.ops.aten._unsafe_view(torch.stack(parts), _shape(data))  # no view to autograd
    return made.requires_grad_() if options.get("requires_grad", False) else made


def _as_tensor(data: Any, dtype: torch.dtype | None = None, device: Any = None, **options: Any) -> torch.Tensor:
    """``torch.as_tensor`` and ``torch.asarray`` of numbers, see ``_tensor``."""
    return _tensor(data, dtype=dtype, device=device)


def _new_tensor(like: torch.Tensor, data: Any, *, dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor:
    """``Tensor.new_tensor`` of numbers, see ``_tensor``."""
    return _tensor(data, dtype=dtype or like.dtype, **{"device": like.device, **options})


def _stays(numbers: Sequence[Any], dtype: torch.dtype | None) -> bool:
    """Whether distinct numbers that a graph is traced with stay distinct in this dtype."""
    wide = (torch.float32, torch.float64, torch.complex64, torch.complex128)
    floats = any(isinstance(number, float | torch.SymFloat) for number in numbers)
    kind = dtype or _dtype_of(list(numbers))
    return kind in wide or (kind in (torch.int32, torch.int64) and not floats)


def _rounded(data: Any, *, dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor:
    """``torch.tensor`` of numbers of the host."""
    if _stays([*leaves_of(data)], dtype):
        return torch.tensor(data, dtype=dtype, **options)
    return _tensor(data, dtype=dtype, **options)


def _as_rounded(data: Any, dtype: torch.dtype | None = None, device: Any = None, **options: Any) -> torch.Tensor:
    """``torch.as_tensor`` and ``torch.asarray`` of numbers of the host."""
    return _rounded(data, dtype=dtype, device=device)


def _new_rounded(like: torch.Tensor, data: Any, *, dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor:
    """``Tensor.new_tensor`` of numbers of the host."""
    return _rounded(data, dtype=dtype or like.dtype, **{"device": like.device, **options})


def _set_rounded(tensor: torch.Tensor, index: Any, number: Any) -> None:
    """``tensor[index] = number``, where the number or a part of the index is a number of the host."""
    if isinstance(number, int | float) and not _stays([number], tensor.dtype):
        number = torch.full((), number, dtype=tensor.dtype, device=tensor.device)
    tensor[index] = number


def tensor_given(
    data: Any, *, dtype: torch.dtype | None = None, fetched: Sequence[bool] = (), **options: Any
) -> torch.Tensor:
    """``torch.tensor`` of lists that contain one-element tensors, which count as numbers of any shape.

    ``fetched``: for each number, whether it is a Python number, which may be a tensor here."""
    numbers = list(leaves_of(data)) if isinstance(data, list | tuple) else []
    if not any(isinstance(number, torch.Tensor) for number in numbers):
        return torch.tensor(data, dtype=dtype, **options)
    if dtype is None:
        kinds = [
            number.dtype if isinstance(number, torch.Tensor) and not pythons else _own_dtype(number)
            for number, pythons in zip(numbers, fetched or [False] * len(numbers), strict=True)
        ]
        dtype = functools.reduce(torch.promote_types, kinds)
    return _tensor(data, dtype=dtype, **options)


def _own_dtype(number: Any) -> torch.dtype:
    """Return the dtype that ``torch.tensor`` gives a Python number."""
    return torch.tensor(number).dtype if isinstance(number, bool | complex) else _dtype_of([number])


def _full(size: Any, fill_value: Any, *, dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor:
    """``torch.full`` with a number that may be a 0-d tensor."""
    if not isinstance(fill_value, torch.Tensor):
        return torch.full(size, fill_value, dtype=dtype, **options)
    zeros = torch.zeros(size, dtype=dtype or _dtype_of([fill_value]), **options)
    with torch.no_grad():
        return zeros.copy_(fill_value)


def _dtype_of(numbers: list[Any]) -> torch.dtype:
    floats = (n.is_floating_point() if isinstance(n, torch.Tensor) else isinstance(n, float) for n in numbers)
    return torch.get_default_dtype() if any(floats) else torch.int64


def _shape(data: Any) -> tuple[int, ...]:
    return (len(data), *_shape(data[0])) if isinstance(data, list | tuple) else ()


def _one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """``one_hot`` by scatter, which checks the classes; traced, the original compares with a range instead."""
    if num_classes < 0:
        return torch.nn.functional.one_hot(tensor, num_classes)
    zeros = torch.zeros((*tensor.shape, num_classes), dtype=torch.int64, device=tensor.device)
    return zeros.scatter_(-1, tensor.unsqueeze(-1), 1)


def _getitem(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    """``tensor[index]`` that does not specialise a symbolic index."""
    parts = index if isinstance(index, tuple) else (index,)
    if not any(isinstance(part, torch.SymInt) for part in parts):
        return tensor[index]
    if not all(isinstance(part, int | slice | torch.SymInt) and not isinstance(part, bool) for part in parts):
        return tensor[index]
    dim = 0
    for part in parts:
        if isinstance(part, slice):
            tensor = tensor[(*(slice(None),) * dim, part)] if part != slice(None) else tensor
            dim += 1
        else:
            tensor = tensor.select(dim, part)
    return tensor


def _lstm_cell(
    x: torch.Tensor, state: Any, weight_x: Any, weight_h: Any, bias_x: Any = None, bias_h: Any = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the operations of torch's cells, whose C++ code specialises sizes."""
    h, c = state
    linear = torch.nn.functional.linear
    gates = linear(h, weight_h, bias_h).add_(linear(x, weight_x, bias_x))
    parts = gates.unsafe_split(gates.size(1) // 4, 1)
    enter, forget, cell, leave = parts[0].sigmoid_(), parts[1].sigmoid_(), parts[2].tanh_(), parts[3].sigmoid_()
    c = (forget * c).add_(enter * cell)
    return leave * c.tanh(), c


def _gru_cell(
    x: torch.Tensor, h: torch.Tensor, weight_x: Any, weight_h: Any, bias_x: Any = None, bias_h: Any = None
) -> torch.Tensor:
    linear = torch.nn.functional.linear
    of_input = linear(x, weight_x, bias_x).unsafe_split(h.size(1), 1)
    of_state = linear(h, weight_h, bias_h).unsafe_split(h.size(1), 1)
    reset = of_state[0].add_(of_input[0]).sigmoid_()
    enter = of_state[1].add_(of_input[1]).sigmoid_()
    new = of_input[2].add(of_state[2].mul_(reset)).tanh_()
    return (h - new).mul_(enter).add_(new)


def _rnn_tanh_cell(*args: Any) -> torch.Tensor:
    return torch.tanh(_rnn_sum(*args))


def _rnn_relu_cell(*args: Any) -> torch.Tensor:
    return torch.relu(_rnn_sum(*args))


def _rnn_sum(
    x: torch.Tensor, h: torch.Tensor, weight_x: Any, weight_h: Any, bias_x: Any = None, bias_h: Any = None
) -> torch.Tensor:
    linear = torch.nn.functional.linear
    return linear(h, weight_h, bias_h).add_(linear(x, weight_x, bias_x))


def _lstm(*args: Any) -> Any:
    """``torch.lstm`` by oneDNN's layers: the C++ code that leads there specialises sizes."""
    if is_packed(args):
        return packed("lstm", *args)
    if not torch.is_grad_enabled():
        return lstm(*args)
    x, state, weights, biases, layers, dropout, train, bidirectional, batch_first = (*args, *(None,) * 9)[:9]
    plain = isinstance(weights, list | tuple) and biases and state[0].size(2) == state[1].size(2)
    if not (plain and torch._C._get_mkldnn_enabled() and x.dtype == torch.float32 and x.device.type == "cpu"):
        return torch.lstm(*args)
    x = (x.transpose(0, 1) if batch_first else x).contiguous()
    h, c = state[0].contiguous(), state[1].contiguous()
    directions, hidden = (2 if bidirectional else 1), h.size(2)
    last_h, last_c = [], []
    for layer in range(layers):
        outs = []
        for direction in range(directions):
            index = layer * directions + direction
            own = weights[4 * index : 4 * index + 4]
            out, new_h, new_c, _ = torch.ops.aten.mkldnn_rnn_layer(
                x, *own, h[index], c[index], direction == 1, [], 2, hidden, layers, biases, bidirectional,
                batch_first, train,
            )  # fmt: skip
            outs.append(out)
            last_h.append(new_h)
            last_c.append(new_c)
        x = outs[0] if directions == 1 else torch.cat(outs, -1)
        if dropout and train and layer < layers - 1:
            x = torch.dropout(x, dropout, True)
    x = x.transpose(0, 1) if batch_first else x
    return x, torch.stack(last_h), torch.stack(last_c)


def _interpolate(
    input: torch.Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> torch.Tensor:
    """``F.interpolate`` of images: the C++ code specialises all sizes to compute those of the result."""
    if input.dim() != 4 or mode not in ("nearest", "bilinear", "bicubic") or recompute_scale_factor or antialias:
        return torch.nn.functional.interpolate(
            input, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias
        )
    scales: list[Any] = [None, None]
    if size is None:
        scales = [
            float(part) for part in (scale_factor if isinstance(scale_factor, list | tuple) else [scale_factor] * 2)
        ]
        sizes = [torch.sym_int(input.size(2 + k) * scale) for k, scale in enumerate(scales)]
    else:
        sizes = list(size) if isinstance(size, list | tuple) else [size] * 2
    aten = torch.ops.aten
    made: torch.Tensor
    if mode == "nearest":
        made = aten.upsample_nearest2d.default(input, sizes, *scales)
    else:
        kernel = aten.upsample_bilinear2d if mode == "bilinear" else aten.upsample_bicubic2d
        made = kernel.default(input, sizes, bool(align_corners), *scales)
    return made


def _pad_sequence(
    sequences: Any, batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> torch.Tensor:
    """``pad_sequence``: the C++ code specialises all lengths to find the greatest."""
    longest = sequences[0].size(0)
    for one in sequences[1:]:
        longest = torch.sym_max(longest, one.size(0))
    count, rest = len(sequences), sequences[0].size()[1:]
    sizes = (count, longest, *rest) if batch_first else (longest, count, *rest)
    made: torch.Tensor = sequences[0].new_full(sizes, padding_value)
    for number, one in enumerate(sequences):
        length = one.size(0)
        row = made.select(0 if batch_first else 1, number)
        row.narrow(0, longest - length if padding_side == "left" else 0, length).copy_(one)
    return made


# Layers, each one operator where sequences are packed: the batch size of each step is known only when the graph runs.
# They have names of their own, by which another process finds them.


def _lstm_layers(*args: Any) -> Any:
    return packed("lstm", *args) if is_packed(args) else lstm(*args)


def _gru_layers(*args: Any) -> Any:
    return packed("gru", *args) if is_packed(args) else torch.gru(*args)


def _rnn_tanh_layers(*args: Any) -> Any:
    return packed("rnn_tanh", *args) if is_packed(args) else torch.rnn_tanh(*args)


def _rnn_relu_layers(*args: Any) -> Any:
    return packed("rnn_relu", *args) if is_packed(args) else torch.rnn_relu(*args)


_SYMBOLIC: dict[Any, Callable[..., Any]] = {
    torch.Tensor.__getitem__: _getitem,
    torch.nn.functional.interpolate: _interpolate,
    torch.linspace: linspace,
    torch._C._nn.pad_sequence: _pad_sequence,
    torch.lstm: _lstm,
    torch.gru: gru,
    torch.rnn_tanh: rnn_tanh,
    torch.rnn_relu: rnn_relu,
    torch.lstm_cell: _lstm_cell,
    torch.gru_cell: _gru_cell,
    torch.rnn_tanh_cell: _rnn_tanh_cell,
    torch.rnn_relu_cell: _rnn_relu_cell,
}
_LAYERS = (_lstm, gru, rnn_tanh, rnn_relu, _lstm_layers, _gru_layers, _rnn_tanh_layers, _rnn_relu_layers)
SUBSCRIPTS = frozenset({torch.Tensor.__getitem__, _getitem})
_FUNCTIONS = (types.BuiltinFunctionType, types.FunctionType, types.MethodDescriptorType)
_NATIVE = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
# Replacements for functions whose numbers the graph computes.
OF_NUMBERS: dict[Any, Callable[..., Any]] = {
    torch.tensor: _tensor,
    torch.full: _full,
    torch.as_tensor: _as_tensor,
    torch.asarray: _as_tensor,
    torch.Tensor.new_tensor: _new_tensor,
}
# Replacements for functions whose C++ code rounds numbers of the host to a dtype: two numbers that a graph is traced
# with may be equal after rounding. Each replacement fills a tensor of that dtype.
_ROUNDING: dict[Any, Callable[..., Any]] = {
    torch.tensor: _rounded,
    torch.as_tensor: _as_rounded,
    torch.asarray: _as_rounded,
    torch.Tensor.new_tensor: _new_rounded,
    torch.Tensor.__setitem__: _set_rounded,
}
_STANDING_IN: dict[Any, Callable[..., Any]] = {
    torch.nn.functional.one_hot: _one_hot,
    torch.nn.functional.ctc_loss: ctc_loss,
    torch.masked_fill: masked_fill,
    torch.Tensor.masked_fill: masked_fill,
    torch.Tensor.masked_fill_: masked_fill_,
    torch.max: maximum,
    torch.Tensor.max: maximum,
    torch.min: minimum,
    torch.Tensor.min: minimum,
    torch.prod: prod,
    torch.Tensor.prod: prod,
    torch.lstm: _lstm_layers,
    torch.gru: _gru_layers,
    torch.rnn_tanh: _rnn_tanh_layers,
    torch.rnn_relu: _rnn_relu_layers,
    functions.taken: packed_rows.taken,
    functions.placed: packed_rows.placed,
    **FUSED_UPDATES,
}
