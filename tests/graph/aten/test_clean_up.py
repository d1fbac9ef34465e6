"""Clean-up changes no value, no draw and no ownership."""

from __future__ import annotations

import operator

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torchjanus.core.errors import InternalFault
from torchjanus.graph.aten import clean_up
from torchjanus.graph.aten.foreach import split_lists

aten = torch.ops.aten


def graph_of(function: object, *examples: torch.Tensor) -> torch.fx.GraphModule:
    return make_fx(function, tracing_mode="fake")(*examples)  # type: ignore[arg-type]


def targets(module: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


def test_noise_is_dropped_and_values_kept() -> None:
    def noisy(x: torch.Tensor) -> list[torch.Tensor]:
        y = x.detach().t().t().view(2, 3).expand(2, 3).clone()
        y.sin()
        return [y + y.clone(), x.cos() * x.cos()]

    module = graph_of(noisy, torch.ones(2, 3))
    x = torch.randn(2, 3)
    before = module(x)
    clean_up.clean(module)
    assert sorted(targets(module)) == ["aten.add.Tensor", "aten.cos.default", "aten.mul.Tensor"]
    assert all(torch.equal(a, b) for a, b in zip(before, module(x), strict=True))


def test_draws_are_neither_merged_nor_dropped_nor_moved() -> None:
    def draws(x: torch.Tensor) -> list[torch.Tensor]:
        first = torch.rand_like(x)
        torch.randn(3)
        second = torch.rand_like(x)
        return [second, first]

    module = graph_of(draws, torch.ones(2))
    clean_up.clean(module)
    assert targets(module) == ["aten.rand_like.default", "aten.randn.default", "aten.rand_like.default"]


def test_a_result_never_shares_memory_with_an_input_or_a_constant() -> None:
    module = graph_of(lambda x: [x.detach(), x.view(4), torch.tensor([1.0, 2.0])], torch.ones(2, 2))
    clean_up.clean(module)
    x = torch.zeros(2, 2)
    for first, second in zip(module(x), module(x), strict=True):
        assert first.data_ptr() != second.data_ptr()
        assert first.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def test_equal_results_stay_two_tensors() -> None:
    module = graph_of(lambda x: [x + 1, x + 1, (x * 2).clone()], torch.ones(2))
    clean_up.clean(module)
    values = module(torch.ones(2))
    assert len({value.data_ptr() for value in values}) == 3


def test_zeros_of_both_signs_are_two_constants() -> None:
    module = graph_of(lambda x: [(x / 0.0).exp() + (x / -0.0).exp()], torch.ones(1))
    clean_up.clean(module)
    assert targets(module).count("aten.div.Tensor") == 2


def test_a_constant_cannot_stand_for_a_tensor() -> None:
    graph = torch.fx.Graph()
    graph.output((graph.call_function(aten.detach.default, (3,)),))
    with pytest.raises(InternalFault, match=r"detach.default is applied to 3"):
        clean_up.clean(torch.fx.GraphModule(torch.nn.Module(), graph))


class Eagerly:
    """Evaluates single calls at once: what a split list call computes."""

    def __init__(self, values: dict[torch.fx.Node, object]) -> None:
        self.values = values

    def convert_call(
        self, target: object, args: tuple[object, ...], kwargs: dict[str, object], value: object
    ) -> object:
        args, kwargs = torch.fx.node.map_arg((args, kwargs), lambda node: self.values[node])  # type: ignore[assignment]
        return target(*args, **kwargs)  # type: ignore[operator]


def test_split_lists_compute_what_the_list_calls_do() -> None:
    def lists(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        pair = torch._foreach_add([a, b], [b, a], alpha=0.3)
        pair = torch._foreach_mul(pair, [2.0, 3.0])
        pair = torch._foreach_div(torch._foreach_sub(pair, 0.1), 1.7)
        pair = torch._foreach_lerp(pair, [a, b], 0.25)
        pair = torch._foreach_addcmul(pair, [a, b], [b, b], value=0.5)
        pair = torch._foreach_addcdiv(pair, [a, b], torch._foreach_add([a.abs(), b.abs()], 1.0), [0.1, 0.2])
        pair = torch._foreach_maximum(torch._foreach_sqrt(torch._foreach_abs(pair)), [a, b])
        pair = torch._foreach_pow(torch._foreach_clamp_min(pair, 0.1), 1.5)
        return [*pair, *torch._foreach_norm(pair), *torch._foreach_neg(pair)]

    a, b = torch.randn(3), torch.randn(3)
    module = graph_of(lists, a, b)
    nodes = list(module.graph.nodes)
    splits = split_lists(nodes)
    assert all(node in splits.nodes for node in nodes if "_foreach_" in str(node.target))
    values: dict[torch.fx.Node, object] = dict(zip(nodes, (a, b), strict=False))
    for node in nodes:
        if node in splits.nodes:
            values[node] = splits.emit(node, Eagerly(values))  # type: ignore[arg-type]
        elif node.op == "call_function":
            assert node.target is not operator.getitem
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda part: values[part])
            values[node] = node.target(*args, **kwargs)
    results = [values[node] for node in nodes[-1].args[0]]
    for got, expected in zip(results, lists(a, b), strict=True):
        torch.testing.assert_close(got, expected)
