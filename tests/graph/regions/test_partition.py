"""Bodies of iterations as a forward and a backward graph: sources, results, gradients, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchjanus.core.errors import Refused
from torchjanus.graph.ir.program import Input, Node, Program, Ref
from torchjanus.graph.regions.partition import Partition, adopted, kind_of, partition_of, structure_of
from torchjanus.graph.regions.sizes import named
from torchjanus.trace.modes import Modes


def body(
    *nodes: tuple[Any, tuple[Any, ...]], inputs: int = 2, outs: tuple[int, ...] = (), modes: Any = None
) -> Program:
    """Return a body: each node makes the next tensor; the last one is the result, or ``outs``."""
    made = [
        Node(func, args, {}, (Ref(inputs + number),), modes or Modes()) for number, (func, args) in enumerate(nodes)
    ]
    results = outs or (inputs + len(nodes) - 1,)
    after = (len(nodes),) * len(results)
    given = tuple(Input(torch.ones(3), True, True) for _ in range(inputs))
    return Program(given, (), tuple(made), tuple(map(Ref, results)), after, (), ())


SUM = ((torch.add, (Ref(0), Ref(1))), (torch.tanh, (Ref(2),)))


def kinds(*grads: bool, size: int = 3) -> Any:
    return named([kind_of(torch.ones(size).requires_grad_(grad)) for grad in grads])


def part(program: Program, given: Any, carried: int = 1, stacked: int = 1, **options: Any) -> Partition:
    return partition_of(program, carried, stacked, given, **options)


def test_the_kind_of_a_tensor_is_its_layout() -> None:
    assert kind_of(torch.ones(2, 3).t()) == ((3, 2), (1, 3), torch.float32, torch.device("cpu"), False)


def test_the_forward_graph_computes_one_iteration() -> None:
    made = part(body(*SUM), kinds(False, False))
    assert made.backward is None and made.wanted == made.tangents == ()
    assert [source.kind for source in made.forward.sources] == ["carried", "stacked"]
    h, x = torch.randn(3), torch.randn(3)
    (out, *rest) = made.forward.graph(h, x)
    assert torch.equal(out, torch.tanh(h + x)) and not rest


def test_the_backward_graph_gives_the_gradients_that_autograd_gives() -> None:
    made = part(body(*SUM), kinds(True, True))
    assert made.wanted == (0, 1) and made.tangents == (0,) and made.backward is not None
    h, x = (torch.randn(3, requires_grad=True) for _ in range(2))
    results = made.forward.graph(h.detach(), x.detach())
    values = {"output": results, "saved": results[made.results :], "tangent": [torch.ones(3)]}
    values |= {"carried": [h.detach()], "stacked": [x.detach()]}
    given = [values[source.kind][source.index] for source in made.backward.sources]
    found = made.backward.graph(*given)
    expected = torch.autograd.grad(torch.tanh(h + x).sum(), (h, x))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_only_what_requires_gradients_has_them() -> None:
    made = part(body(*SUM), kinds(False, True))
    assert 1 in made.wanted
    # The carried value requires gradients after the first iteration.
    assert made.tangents == (0,)


def test_inputs_are_numbered_by_their_role() -> None:
    made = part(body(*SUM, inputs=3), kinds(False, False, False), carried=1, stacked=1)
    assert made.inputs == 3


def test_random_iterations_say_so() -> None:
    made = part(body((torch.add, (Ref(0), Ref(1))), (torch.rand_like, (Ref(2),))), kinds(False, False))
    assert made.random and not part(body(*SUM), kinds(False, False)).random


def test_bodies_of_equal_structure_share_a_partition_if_asked() -> None:
    given = kinds(False, False)
    one = part(body(*SUM), given, shared=True)
    assert part(body(*SUM), given, shared=True) is one
    assert part(body(*SUM), given) is not one
    other = body((torch.sub, (Ref(0), Ref(1))), (torch.tanh, (Ref(2),)))
    assert structure_of(body(*SUM)) == structure_of(body(*SUM)) != structure_of(other)


def test_an_unpacked_partition_gives_way_to_the_one_that_exists() -> None:
    given = kinds(False, False, size=5)
    program = body(*SUM)
    one = part(program, given, shared=True)
    made_for = (given.kinds, given.others, given.hints)
    assert adopted(part(program, given), program, frozenset(), made_for) is one


def test_carried_values_keep_their_size() -> None:
    grows = body((torch.cat, ([Ref(0), Ref(1)],)))
    with pytest.raises(Refused) as error:
        part(grows, kinds(False, False))
    assert error.value.refusal.reason == "loop-body"


def test_iterations_under_autocast_are_refused() -> None:
    with pytest.raises(Refused, match="autocast") as error:
        part(body(*SUM, modes=Modes(inference=True)), kinds(False, False))
    assert error.value.refusal.reason == "loop-body"


def test_sizes_are_filled_in() -> None:
    made = part(body(*SUM), kinds(False, False))
    assert made.sized(()) is made
    assert made.sized((7,)).gives == made.gives  # no result depends on it
