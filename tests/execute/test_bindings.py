"""torch's own functions in place of operators: only where they make the very same call."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchjanus.execute.running.bindings import called
from torchjanus.execute.running.gate import below_autograd

aten = torch.ops.aten
X, Y = torch.randn(3, 4), torch.randn(3, 4)

CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (aten.add.Tensor, ("x", "y"), {"alpha": 2}),
    (aten.add.Tensor, ("x", 2), {}),
    (aten.mul.Scalar, ("x", 2.5), {}),
    (aten.pow.Scalar, (2.0, "x"), {}),
    (aten.pow.Tensor_Scalar, ("x", 2), {}),
    (aten.sum.dim_IntList, ("x", [1], True), {}),
    (aten.max.dim, ("x", 1), {}),
    (aten.cat.default, (["x", "y"], 1), {}),
    (aten.select.int, ("x", 0, -1), {}),
    (aten.clamp.default, ("x", None, 1.0), {}),
    (aten.gelu.default, ("x",), {"approximate": "tanh"}),
    (aten._to_copy.default, ("x",), {"dtype": torch.float64}),
    (aten._foreach_mul.Scalar, (["x", "y"], 2.0), {}),
    (aten.index.Tensor, ("x", [torch.tensor([1])]), {}),
    (aten.div.Tensor_mode, ("x", "y"), {"rounding_mode": "floor"}),
    (aten.div.Tensor, ("x", "y"), {}),
]


class Node:
    """As much of a node as is asked for."""

    all_input_nodes = ()

    def __init__(self, value: Any) -> None:
        self.meta = {} if value is None else {"val": value}


def with_values(value: Any, values: dict[str, Any]) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(with_values(one, values) for one in value)
    return values.get(value, value) if isinstance(value, str) else value


@pytest.mark.parametrize(("target", "args", "kwargs"), CALLS, ids=lambda value: str(value)[:24])
def test_results_are_those_of_the_operator(target: Any, args: Any, kwargs: Any) -> None:
    nodes = with_values(args, {"x": Node(X), "y": Node(Y)})
    function, more = called(target, nodes, kwargs)
    given = with_values(args, {"x": X, "y": Y})
    with below_autograd(), torch.no_grad():
        made, wanted = function(*given, **kwargs, **more), target(*given, **kwargs)
    for one, other in zip(*((v if isinstance(v, list | tuple) else [v]) for v in (made, wanted)), strict=True):
        assert torch.equal(one, other)
        assert one.dtype is other.dtype


def test_functions_are_found_and_only_where_they_call_the_same_overload() -> None:
    x, n = Node(X), Node(2.5)
    assert called(aten.add.Tensor, (x, x), {})[0] is torch._C._VariableFunctions.add
    assert called(aten.view.default, (x, [12]), {})[0] is torch._C.TensorBase.view
    # torch.mul() of a number calls mul.Tensor
    assert called(aten.mul.Scalar, (x, n), {})[0] is aten.mul.Scalar._op
    # nothing is known of a value, or there is no such function, or it makes tensors of none
    assert called(aten.add.Tensor, (x, Node(None)), {})[0] is aten.add.Tensor._op
    assert called(aten.index.Tensor, (x, [x]), {})[0] is aten.index.Tensor._op
    assert called(aten.full.default, ([2], 1.0), {})[0] is aten.full.default._op


def test_slices_of_constant_sizes_are_those_of_the_operator() -> None:
    from torchjanus.execute.running.printing import ReplaySource

    for start, end in ((0, 2), (-2, 9223372036854775807), (None, None), (3, 1), (-9, 2), (5, 9)):
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        x.meta["val"] = X
        part = graph.call_function(aten.slice.Tensor, (x, 1, start, end))
        wanted = part.meta["val"] = aten.slice.Tensor(X, 1, start, end)
        graph.output([part])
        source = ReplaySource(torch.fx.GraphModule({}, graph), 1)
        text = source.generate()
        (made,) = source.compute(text)([X], ())
        assert torch.equal(made, wanted)
        assert made.stride() == wanted.stride()
