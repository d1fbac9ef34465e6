"""A graph whose writes are exchanged for functional operators computes what the one with writes does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torchjanus.graph.aten.functional.rewrite_writes import functionalised
from torchjanus.ops.aten import operator_of

aten = torch.ops.aten


def written_twice(x: Any, y: Any) -> Any:
    x.add_(y)
    z = x * 2
    x.mul_(3)
    return z, x + 1


def made_and_changed(x: Any, y: Any) -> Any:
    z = x + y
    z.mul_(2).add_(1)
    return z.t(), z


def views_before_and_after(x: Any, y: Any) -> Any:
    before = x.t().sum()
    x.copy_(y)
    return before, x.t(), x.view(-1)[2:]


def another_name(x: Any, y: Any) -> Any:
    z = x.detach()
    z.add_(y)
    return x * 2, z.view_as(x)


def a_view_of_the_whole(x: Any, y: Any) -> Any:
    z = x.view(3, 4)
    x.zero_()
    return z + y


def lists(x: Any, y: Any) -> Any:
    z = y.clone()
    torch._foreach_add_([x, z], [y, x + 1])
    torch._foreach_mul_([x, z], 0.5)
    return x - z


def statistics(x: Any, y: Any) -> Any:
    mean, variance = torch.zeros(4), torch.ones(4)
    made = aten._native_batch_norm_legit.default(x, None, None, mean, variance, True, 0.1, 1e-5)
    return made[0] + y, mean, variance


def drawn(x: Any, y: Any) -> Any:
    return torch.empty_like(x).bernoulli_(0.5) * y, x.uniform_(0.0, 2.0)


def squeezed(x: Any, y: Any) -> Any:
    z = (x + y).sum(0, keepdim=True)
    z.squeeze_(0)
    return z.mul_(2).add_(1)


def transposed(x: Any, y: Any) -> Any:
    z = x * y
    z.add_(1)
    return z.transpose_(0, 1) * 2


def put(x: Any, y: Any) -> Any:
    x.index_put_([torch.tensor([0, 2])], y[:2], accumulate=True)
    return x.sum()


def half(x: Any, y: Any) -> Any:
    z = x.bfloat16()
    z.add_(y)
    return z


REWRITTEN = [
    written_twice, made_and_changed, views_before_and_after, another_name, a_view_of_the_whole, lists, statistics,
    drawn, squeezed, transposed, put,
]  # fmt: skip


def part(x: Any, y: Any) -> Any:
    x[0].add_(1)
    return x * y


def view_read_later(x: Any, y: Any) -> Any:
    z = x.t()
    x.add_(y)
    return z * 2


def column_of_a_result(x: Any, y: Any) -> Any:
    z = x * y
    z[:, 1].mul_(2)
    return z


def other_layout(x: Any, y: Any) -> Any:
    z = y.t().clone(memory_format=torch.contiguous_format).t()
    z.copy_(x).add_(1)
    return x.t().contiguous().t().copy_(z).exp_()


def one_of_a_list(x: Any, y: Any) -> Any:
    z, t = x.split(2, 1)
    z.mul_(y[:, :2])
    return z + t


def gates(x: Any, y: Any) -> Any:
    a, b = (x * 2).split(2, 1)
    c, d = y.split_with_sizes([1, 3], 1)
    a.add_(b).sigmoid_()
    d.mul_(3)
    return a * b, c, d


def parts_and_whole(x: Any, y: Any) -> Any:
    row, rows = x[1], x[1:]
    x.mul_(2)
    row.add_(1)
    x[0] = row * y[2]
    return row, rows, x.sum(), x


def a_part_of_a_part(x: Any, y: Any) -> Any:
    z = x[1:]
    z[0].add_(1)
    return x * y


def every_second(x: Any, y: Any) -> Any:
    x[:, ::2].mul_(y[:, 1::2])
    return x[:, 1]


LEFT = [view_read_later, a_part_of_a_part]
EITHER = [half, other_layout]
REWRITTEN += [part, column_of_a_result, one_of_a_list, gates, parts_and_whole, every_second]


def graph_of(step: Callable[..., Any]) -> torch.fx.GraphModule:
    return make_fx(step, tracing_mode="fake")(torch.randn(3, 4), torch.randn(3, 4))


def results(run: Callable[..., Any]) -> Sequence[torch.Tensor]:
    """Return what it gives, and what its arguments hold then."""
    torch.manual_seed(1)
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    torch.manual_seed(2)
    made = run(x, y)
    return [one.clone() for one in (*(made if isinstance(made, tuple | list) else (made,)), x, y)]


def equal(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(
        torch.equal(one, other) and one.stride() == other.stride() for one, other in zip(first, second, strict=True)
    )


def rewritten(step: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return the rewritten graph, which writes its arguments at the end; None if it was left as it is."""
    module = graph_of(step)
    before = str(module.graph)
    contents = functionalised(module.graph)
    if contents is None:
        assert str(module.graph) == before
        return None
    assert not any(operator_of(node.target).writes for node in module.graph.nodes)
    output = next(reversed(module.graph.nodes))
    with module.graph.inserting_before(output):
        for place, content in contents.items():
            module.graph.call_function(aten.copy_.default, (place, content))
    module.graph.lint()
    module.recompile()
    return module


@pytest.mark.parametrize("step", [*REWRITTEN, *EITHER])
def test_results_and_contents_are_those_of_the_writes(step: Callable[..., Any]) -> None:
    made = rewritten(step)
    if made is not None or step in REWRITTEN:
        assert made is not None
        assert equal(results(made), results(step))


@pytest.mark.parametrize("step", REWRITTEN)
def test_fakes_say_what_is_computed(step: Callable[..., Any]) -> None:
    module = graph_of(step)
    contents = functionalised(module.graph)
    assert contents is not None

    class Compared(torch.fx.Interpreter):
        def run_node(self, node: torch.fx.Node) -> Any:
            made, fake = super().run_node(node), node.meta.get("val")
            if isinstance(made, torch.Tensor) and node.op != "output":
                assert (fake.shape, fake.stride(), fake.dtype) == (made.shape, made.stride(), made.dtype)
                owners.setdefault(made.untyped_storage()._cdata, set()).add(fake.untyped_storage()._cdata)
                kept.append(made)
            return made

    owners: dict[int, set[int]] = {}
    kept: list[torch.Tensor] = []
    Compared(module).run(torch.randn(3, 4), torch.randn(3, 4))
    assert all(len(fakes) == 1 for fakes in owners.values())  # what shares memory does so as fakes, too
    assert len({*owners}) == len({fake for fakes in owners.values() for fake in fakes})


@pytest.mark.parametrize("step", LEFT)
def test_what_other_views_read_or_write_is_left(step: Callable[..., Any]) -> None:
    assert rewritten(step) is None
