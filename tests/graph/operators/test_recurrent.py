"""Recurrent layers as one operation of the graph: what they give, and their gradients, against torch's own."""

import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from torchjanus.core.errors import Refused
from torchjanus.graph.operators import recurrent

KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
LENGTHS = (5, 3, 3, 1)


def layer_of(kind: str, **options: Any) -> Any:
    torch.manual_seed(0)
    if kind.startswith("rnn"):
        return nn.RNN(3, 4, nonlinearity=kind.removeprefix("rnn_"), **options)
    return {"lstm": nn.LSTM, "gru": nn.GRU}[kind](3, 4, **options)


def given(layer: Any, kind: str) -> tuple[Any, ...]:
    """What torch's function is given for a packed batch."""
    batch = pack_sequence([torch.randn(n, 3) for n in LENGTHS])
    count = layer.num_layers * (1 + layer.bidirectional)
    states = [torch.randn(count, len(LENGTHS), 4, requires_grad=True) for _ in range(1 + (kind == "lstm"))]
    data = batch.data.detach().requires_grad_()
    hidden = tuple(states) if kind == "lstm" else states[0]
    words = (layer.bias, layer.num_layers, layer.dropout, layer.training, layer.bidirectional)
    return data, batch.batch_sizes, hidden, layer._flat_weights, *words


def gradients(made: Any, args: tuple[Any, ...]) -> list[torch.Tensor]:
    data, _, hidden, weights, *_ = args
    leaves = [data, *(hidden if isinstance(hidden, tuple) else (hidden,)), *weights]
    return list(torch.autograd.grad(sum(one.pow(2).sum() for one in made), leaves))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False}, {"num_layers": 2, "dropout": 0.4}],
    ids=["plain", "deep", "unbiased", "dropout"],
)
def test_packed_layers_are_torchs(kind: str, options: dict[str, Any]) -> None:
    args = given(layer_of(kind, **options), kind)
    torch.manual_seed(1)
    expected = getattr(torch, kind)(*args)
    torch.manual_seed(1)
    met = recurrent.packed(kind, *args)
    assert all(map(torch.equal, met, expected))
    assert all(map(torch.equal, gradients(met, args), gradients(expected, args)))


def test_packed_sequences_that_no_operator_of_the_graph_takes_are_refused() -> None:
    args = given(nn.LSTM(3, 4, proj_size=2), "lstm")
    hidden = (torch.zeros(1, len(LENGTHS), 2), torch.zeros(1, len(LENGTHS), 4))
    with pytest.raises(Refused, match="with projections"):
        recurrent.packed("lstm", *args[:2], hidden, *args[3:])
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(Refused, match="under autocast"):
        recurrent.packed("gru", *given(layer_of("gru"), "gru"))


def test_what_autograd_has_recorded_goes_with_the_handle() -> None:
    layer = layer_of("gru")
    data, counts, hidden, weights, *_ = given(layer, "gru")
    words = ("packed_gru", True, 1)
    taken = [data.detach(), counts, hidden.detach()[0], *(one.detach() for one in weights)]
    wanted = "101" + "1" * len(weights)
    out, last, handle = recurrent._FORWARD(*words, wanted, taken)
    recorded = weakref.ref(getattr(handle, recurrent._RECORDING)[1][0])
    tangents = [torch.ones_like(out), torch.ones_like(last)]
    kept = recurrent._BACKWARD(*words, taken, handle, "11", tangents, wanted)
    made_again = recurrent._BACKWARD(*words, taken, handle.clone(), "11", tangents, wanted)
    assert all(map(torch.equal, kept, made_again))
    assert recorded() is not None
    del handle
    assert recorded() is None
    *_, handle = recurrent._FORWARD(*words, "0" * len(taken), taken)
    assert not hasattr(handle, recurrent._RECORDING)
