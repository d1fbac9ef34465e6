"""Flags of several devices are one tensor on the processor, in order, and each device is waited for once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from torchjanus.graph.aten.flags import flags_of, stack_flags

DEVICES = ["cpu", "cuda", "cpu", "cuda", "cuda"]


def flag(device: str) -> torch.Tensor:
    return torch.empty((), dtype=torch.bool, device=device)


def targets(graph: torch.fx.Graph) -> list[str]:
    return [str(getattr(node.target, "__name__", "")) for node in graph.nodes if node.op == "call_function"]


def test_flags_of_one_device_stay_there() -> None:
    flags = [torch.tensor(True), torch.tensor(False)]
    assert stack_flags(flags).tolist() == [True, False]
    graph = make_fx(lambda *given: stack_flags(given))(*flags).graph
    assert targets(graph) == ["stack.default"]


@pytest.mark.parametrize("devices", [DEVICES, DEVICES[::-1], ["cuda", "cpu"]])
def test_tensors_and_nodes_of_several_devices_come_together(devices: list[str]) -> None:
    count = devices.count("cuda")
    wanted = ["stack.default", "_to_copy.default", "unbind.int", *["getitem"] * count, "stack.default"]
    with FakeTensorMode(allow_non_fake_inputs=True):
        flags = [flag(device) for device in devices]
        traced = make_fx(lambda *given: stack_flags(given))(*flags).graph
    assert targets(traced) == wanted
    graph = torch.fx.Graph()

    def call(target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        made = graph.call_function(target, args, kwargs)
        made.meta["val"] = target(*torch.fx.node.map_arg(args, lambda part: part.meta["val"]), **kwargs)
        return made

    nodes = [graph.placeholder(f"flag{number}") for number in range(len(flags))]
    for node, one in zip(nodes, flags, strict=True):
        node.meta["val"] = one
    made = stack_flags(nodes, call)
    assert targets(graph) == wanted
    assert len(flags_of(made) or ()) == len(devices)
    assert flags_of(nodes[0]) is None
    value = made.meta["val"]
    assert (value.device.type, value.dtype, tuple(value.size())) == ("cpu", torch.bool, (len(devices),))
