"""Recurrent layers over sequences of any length, and over packed sequences, each as one operator of the graph.

C++ iterates over the elements of a sequence, so a trace would be unrolled and valid for one length only. Here the
forward operator calls the layer while autograd records, and the backward operator uses that recording, which gives
gradients that are bitwise eager's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torchjanus.core.errors import refused
from torchjanus.graph.operators.loop_op import TAGS, define

__all__ = ["autograd_within", "gru", "is_packed", "lstm", "packed", "rnn_relu", "rnn_tanh"]

_LSTM = "lstm"
_KINDS: dict[str, Callable[..., Any]] = {
    _LSTM: torch.lstm,
    "gru": torch.gru,
    "rnn_tanh": torch.rnn_tanh,
    "rnn_relu": torch.rnn_relu,
}
# Instead of "1" where no gradients are recorded: torch's products ask an operand for ``requires_grad`` even then, and
# round differently.
_FLAG = "f"
_PACKED = "packed_"  # prefix of the kind of a layer over packed sequences


def is_packed(args: Sequence[Any]) -> bool:
    """Whether a layer takes packed sequences: the elements, and the batch size of each step."""
    return len(args) > 3 and isinstance(args[1], torch.Tensor) and isinstance(args[3], list | tuple)


def packed(kind: str, *args: Any) -> Any:
    """``torch.lstm`` and the others over packed sequences."""
    data, counts, hidden, weights, biases, count, dropout, train, bidirectional = (*args, *(None,) * 9)[:9]
    states = hidden if kind == _LSTM else (hidden,)
    directions, each = 1 + bidirectional, 4 if biases else 2
    projected = len(weights) != count * directions * each
    if (unsupported := _unsupported(projected, data)) is not None:
        why = "The batch size of each of its steps is in a tensor, which a graph does not look at."
        remedy = "Give the layer padded sequences; or run it outside of the autocast, without projections, on the CPU."
        raise refused("trace-failed", f"a packed sequence goes into a recurrent layer {unsupported}", why, remedy)
    last: list[list[torch.Tensor]] = [[] for _ in states]
    for layer in range(count):
        first = layer * directions
        own = weights[first * each : (first + directions) * each]
        begin = [row for state in states for row in state.unbind(0)[first : first + directions]]
        data, *ends = _layer(_PACKED + kind, biases, directions, data, counts, *begin, *own)
        for place, rows in enumerate(last):
            rows += ends[place * directions : (place + 1) * directions]
        if dropout and train and layer < count - 1:
            data = torch.dropout(data, dropout, True)
    return (data, *(torch.stack(rows) for rows in last))


def _unsupported(projected: bool, data: torch.Tensor) -> str | None:
    """Return which layers over packed sequences are no operator of the graph, if this is one of them."""
    if torch.is_autocast_enabled("cpu"):
        return "under autocast"
    if data.device.type != "cpu":
        return f"on a {data.device.type} device"
    return "with projections" if projected else None


def lstm(*args: Any) -> Any:
    """``torch.lstm`` where no gradients are recorded.

    Its kernel rounds differently where they are, and a graph runs with gradients recorded."""
    projected = not is_packed(args) and args[1][0].size(2) != args[1][1].size(2)
    return torch.lstm(*args) if torch.is_grad_enabled() or projected else _layers(_LSTM, *args)


def gru(*args: Any) -> Any:
    """``torch.gru`` over a sequence whose length may be symbolic."""
    return _layers("gru", *args)


def rnn_tanh(*args: Any) -> Any:
    """``torch.rnn_tanh`` over a sequence whose length may be symbolic."""
    return _layers("rnn_tanh", *args)


def rnn_relu(*args: Any) -> Any:
    """``torch.rnn_relu`` over a sequence whose length may be symbolic."""
    return _layers("rnn_relu", *args)


def _layers(kind: str, *args: Any) -> Any:
    x, hidden, weights, biases, count, dropout, train, bidirectional, batch_first = (*args, *(None,) * 9)[:9]
    if is_packed(args):
        return packed(kind, *args)
    if (
        not isinstance(weights, list | tuple)
        or x.device.type != "cpu"
        or x.dim() != 3
        or torch.is_autocast_enabled("cpu")
    ):
        return _KINDS[kind](*args)
    x = x.transpose(0, 1) if batch_first else x
    directions, each = 1 + bidirectional, 4 if biases else 2
    states = hidden if kind == _LSTM else (hidden,)
    last: list[list[torch.Tensor]] = [[] for _ in states]
    for layer in range(count):
        first = layer * directions
        own = weights[first * each : (first + directions) * each]
        begin = [row for state in states for row in state.unbind(0)[first : first + directions]]
        x, *ends = _layer(kind, biases, directions, x, *begin, *own)
        for place, rows in enumerate(last):
            rows += ends[place * directions : (place + 1) * directions]
        if dropout and train and layer < count - 1:
            x = torch.dropout(x, dropout, True)
    return (x.transpose(0, 1) if batch_first else x), *(torch.stack(rows) for rows in last)


def _layer(kind: str, biases: bool, directions: int, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Run one layer in one or both directions; return its output and its last states."""
    recorded = torch.is_grad_enabled()
    made: tuple[torch.Tensor, ...] = _Layer.apply(kind, biases, directions, recorded, *given)  # type: ignore[no-untyped-call]
    return made


class _Layer(torch.autograd.Function):
    """One layer in one or both directions: its output and its last states."""

    @staticmethod
    def forward(
        ctx: Any, kind: str, biases: bool, directions: int, recorded: bool, *given: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.words = (kind, biases, directions)
        wanted = _wanted(ctx)
        *made, handle = _FORWARD(*ctx.words, wanted if recorded else wanted.replace("1", _FLAG), list(given))
        ctx.save_for_backward(*given, handle)
        return tuple(made)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        present = "".join("0" if tangent is None else "1" for tangent in tangents)
        wanted = _wanted(ctx)
        if "1" not in present or "1" not in wanted:
            return (None,) * (4 + len(wanted))
        there = [tangent for tangent in tangents if tangent is not None]
        *given, handle = ctx.saved_tensors
        made = iter(_BACKWARD(*ctx.words, given, handle, present, there, wanted))
        return (*(None,) * 4, *(next(made) if need == "1" else None for need in wanted))


def _wanted(ctx: Any) -> str:
    """Return "1" or "0" for each operand of a layer: whether it needs gradients."""
    return "".join("01"[need] for need in ctx.needs_input_grad[4:])


def _parts(kind: str, directions: int, given: Sequence[torch.Tensor]) -> Iterator[Sequence[torch.Tensor]]:
    """Yield the operands of a layer in three groups: the sequence, the initial states, the weights."""
    first = 2 if kind.startswith(_PACKED) else 1
    second = first + directions * (2 if kind.endswith(_LSTM) else 1)
    yield from (given[:first], given[first:second], given[second:])


def _run(kind: str, biases: bool, directions: int, given: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    sequence, states, weights = _parts(kind, directions, given)
    begin: Any = _stacked(states[:directions])
    if kind.endswith(_LSTM):
        begin = (begin, _stacked(states[directions:]))
    words = (biases, 1, 0.0, False, directions == 2, *(() if kind.startswith(_PACKED) else (False,)))
    out, *last = _KINDS[kind.removeprefix(_PACKED)](*sequence, begin, list(weights), *words)
    return (out, *(row for state in last for row in state.unbind(0)))


def _stacked(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    return rows[0].unsqueeze(0) if len(rows) == 1 else torch.stack(list(rows))


# The attribute under which an empty tensor, saved for backward, holds autograd's recording of the forward run. If only
# a copy of the tensor reaches the backward operator, that computes the layer again.
_RECORDING = "torchjanus_recording"


def _forward(kind: str, biases: bool, directions: int, wanted: str, given: list[torch.Tensor]) -> list[torch.Tensor]:
    handle = torch.empty(0)
    if "1" in wanted:
        recording = _, made = _recorded(kind, biases, directions, wanted, given)
        setattr(handle, _RECORDING, recording)
    else:
        with torch.no_grad(), autograd_within():
            flagged = zip(given, wanted, strict=True)
            operands = [one.detach().requires_grad_() if flag == _FLAG else one for one, flag in flagged]
            made = _run(kind, biases, directions, operands)
    out, *last = (one.detach() for one in made)
    return [out, *(state.clone() for state in last), handle]


def _recorded(
    kind: str, biases: bool, directions: int, wanted: str, given: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor], tuple[torch.Tensor, ...]]:
    """Return the leaves that gradients are wanted of, and the layer's outputs, recorded by autograd."""
    with torch.enable_grad(), autograd_within():
        leaves = [one.detach().requires_grad_(need == "1") for one, need in zip(given, wanted, strict=True)]
        return [leaf for leaf in leaves if leaf.requires_grad], _run(kind, biases, directions, leaves)


def _backward(
    kind: str,
    biases: bool,
    directions: int,
    given: list[torch.Tensor],
    handle: torch.Tensor,
    present: str,
    tangents: list[torch.Tensor],
    wanted: str,
) -> list[torch.Tensor]:
    leaves, made = getattr(handle, _RECORDING, None) or _recorded(kind, biases, directions, wanted, given)
    outs = tuple(out for out, there in zip(made, present, strict=True) if there == "1")
    with autograd_within():  # torch.autograd.grad() takes a tenth of a short sequence's time for looking at these
        found = torch.autograd.Variable._execution_engine.run_backward(
            outs, tuple(tangents), True, False, tuple(leaves), allow_unreachable=True, accumulate_grad=False
        )
    # Autograd gives views, which the program would see as the gradients of its parameters.
    given_or_zero = (torch.zeros_like(leaf) if one is None else one for one, leaf in zip(found, leaves, strict=True))
    return [gradient.contiguous().detach() for gradient in given_or_zero]


def autograd_within() -> Any:
    """Return a context in which autograd records, although the dispatcher excludes it within an operator's
    implementation."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in (torch._C.DispatchKey.AutogradCPU, torch._C.DispatchKey.ADInplaceOrView):
        excluded = excluded.remove(key)
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)


def _forward_shapes(
    kind: str, biases: bool, directions: int, wanted: str, given: list[torch.Tensor]
) -> list[torch.Tensor]:
    (x, *_), states, _ = _parts(kind, directions, given)
    out = x.new_empty((*x.size()[:-1], directions * states[0].size(1)))
    return [out, *(x.new_empty(state.size()) for state in states), x.new_empty(0)]


def _backward_shapes(
    kind: str,
    biases: bool,
    directions: int,
    given: list[torch.Tensor],
    handle: torch.Tensor,
    present: str,
    tangents: list[torch.Tensor],
    wanted: str,
) -> list[torch.Tensor]:
    return [one.new_empty(one.size()) for one, need in zip(given, wanted, strict=True) if need == "1"]


_WORDS = "(str kind, bool biases, int directions"


_FORWARD = define("recurrent", f"{_WORDS}, str wanted, Tensor[] given) -> Tensor[]", _forward, _forward_shapes, TAGS)
_BACKWARD = define(
    "recurrent_backward",
    f"{_WORDS}, Tensor[] given, Tensor handle, str present, Tensor[] tangents, str wanted) -> Tensor[]",
    _backward,
    _backward_shapes,
    TAGS,
)
