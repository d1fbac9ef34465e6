"""What ``x.data = y`` becomes in a graph: nothing but other names, and a place where the input lies afterwards."""

import pytest
import torch

from tests.graph.recording import generalise, record
from torchjanus.core.errors import Refused
from torchjanus.graph.ir.lowered import Fresh, ViewOf
from torchjanus.graph.lowering.lower import lower


def lowered(step, *args):
    program, _ = generalise([record(step, *args)])
    return lower(program)


def targets(graph):
    return [str(node.target) for node in graph.graph.graph.nodes if node.op == "call_function"]


def test_the_input_lies_where_the_new_value_does():
    def step(w, x):
        y = x * 2
        w.data = y
        y.add_(1)
        return y

    made = lowered(step, torch.ones(3), torch.ones(3))
    assert targets(made) == ["aten.mul.Tensor", "aten.add.Tensor"]
    assert made.mutated == ()
    (one,) = made.replaced
    assert (one.index, one.changed) == (1, False)
    assert one.result.source == ViewOf(made.outputs[0].source, (3,), (1,), 0)
    assert "memory of input 1: view of value 0 [3]" in str(made)


def test_what_is_put_back_is_not_replaced():
    def step(w, x):
        old = w.data
        w.data = x * 2
        y = (w * x).sum()
        w.data = old
        return y

    made = lowered(step, torch.ones(3), torch.ones(3))
    assert made.replaced == ()
    assert made.mutated == ()


def test_an_update_by_way_of_data_is_one_in_place():
    def step(w, x):
        w.data -= x

    made = lowered(step, torch.ones(3), torch.ones(3))
    assert (made.replaced, made.mutated) == ((), (0,))


def test_a_change_after_it_is_counted_and_leaves_the_old_memory_alone():
    def step(w, x):
        w.data = w.data * 2
        w.add_(x)

    made = lowered(step, torch.ones(3), torch.ones(3))
    assert made.mutated == ()
    assert made.replaced[0].changed


def test_parts_of_one_vector():
    def step(v, w, x):
        both = torch.cat([v, w]) + x
        v.data = both[:2]
        w.data = both[2:]

    made = lowered(step, torch.ones(2), torch.ones(3), torch.ones(5))
    sources = [one.result.source for one in made.replaced]
    assert {type(source) for source in sources} <= {Fresh, ViewOf}
    assert made.fresh == len({source for source in sources if isinstance(source, Fresh)} or {1})


def test_a_gradient_goes_to_the_leaf_that_it_was():
    def step(w, x):
        w.data = x * 3
        (w * w).sum().backward()

    made = lowered(step, torch.ones(3, requires_grad=True), torch.ones(3))
    (leaf,) = made.leaves
    values = made.graph(torch.ones(3), torch.ones(3))
    assert values[leaf.result.source.index].tolist() == [6.0, 6.0, 6.0]
    assert values[made.replaced[0].result.source.index].tolist() == [3.0, 3.0, 3.0]


def test_the_memory_of_another_input_is_not_shared_for_good():
    def step(w, x):
        w.data = x

    with pytest.raises(Refused, match="in the memory of another that was there before"):
        lowered(step, torch.ones(3), torch.ones(3))


def test_another_size_is_refused():
    program, _ = generalise([record(lambda w, x: torch.Tensor.data.__set__(w, x * 1), torch.ones(3), torch.ones(3))])
    object.__setattr__(program.inputs[1], "example", torch.ones(4))
    with pytest.raises(Refused, match="differ in size"):
        lower(program)
