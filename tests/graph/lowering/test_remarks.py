"""What lowering does not optimise is part of the lowered graph: it is reported wherever the graph was made."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torchjanus
from torchjanus.core.errors import NOWHERE, Place
from torchjanus.core.remarks import Remark, Remarks, collected, remark
from torchjanus.execute.processes.lowering import pack_made, unpack_made
from torchjanus.graph.generalize.generalize import generalise
from torchjanus.graph.lowering.lower import lower_rolled
from torchjanus.graph.operators.loop_op import own_keys, reserve_keys
from torchjanus.semantics.watch.run import watch_call

HERE = Place("step.py", 3)


def own_parameters(x: torch.Tensor) -> torch.Tensor:
    for w in WEIGHTS:
        x = torch.tanh(x @ w)
    return x.detach()


WEIGHTS = [torch.eye(3).requires_grad_() for _ in range(20)]
LINE = own_parameters.__code__.co_firstlineno + 2


def program() -> Any:
    return generalise([watch_call(own_parameters, (), (torch.ones(2, 3),), {})[1]]).program


def test_a_loop_that_is_not_rolled_has_a_remark() -> None:
    (one,) = lower_rolled(program()).remarks
    assert (one.reason, one.place.line) == ("loop-parameters", LINE)
    assert one.detail


def test_remarks_come_with_a_graph_from_another_process() -> None:
    source, keys = program(), reserve_keys()
    with own_keys(keys):
        lowered = lower_rolled(source)
    packed = pack_made(lowered, source, keys)
    assert packed is not None
    made = unpack_made(packed, source, reserved=True)
    assert made is not None and made.remarks == lowered.remarks != ()


def test_the_report_shows_remarks_of_graphs_in_use() -> None:
    step = torchjanus.speculate(own_parameters, executor="replay")
    for _ in range(4):
        step(torch.ones(2, 3))
    assert step.statistics().speculated == 1
    assert [(one.reason, one.place.line) for one in step.remarks] == [("loop-parameters", LINE)]
    assert f"{LINE}  each iteration takes a parameter of its own [loop-parameters]" in str(
        torchjanus.explain(step, detail=True)
    )


def test_arms_that_are_not_selected_between_have_a_remark() -> None:
    @torchjanus.speculate(executor="replay")
    def step(xs: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(4, 4)
        for x in xs:
            if x.sum() > 0:
                h = torch.tanh(h @ x)
            else:
                h = h - x
        return h

    for n in range(8):
        step(torch.randn(6, 4, 4, generator=torch.Generator().manual_seed(n)))
    (one,) = step.remarks
    assert one.reason == "branch-not-selected"
    assert one.place.line == step.fn.__code__.co_firstlineno + 4  # the ``if``


def test_only_a_collector_keeps_remarks() -> None:
    remark(HERE, "loop-small")
    with collected() as outer:
        remark(HERE, "loop-small", "first")
        with collected() as inner:
            remark(HERE, "loop-body", "other")
        remark(NOWHERE, "loop-small", "nobody could look there")
    assert list(outer) == [Remark("loop-small", HERE, "first")]
    assert list(inner) == [Remark("loop-body", HERE, "other")]


def test_a_collector_ends_with_an_error() -> None:
    with collected() as outer:
        with pytest.raises(ValueError, match="no"), collected():
            raise ValueError("no")
        remark(HERE, "loop-small")
    assert len(list(outer)) == 1


def test_remarks_of_one_line_are_one() -> None:
    remarks = Remarks()
    remarks.add([Remark("loop-small", HERE), Remark("loop-body", HERE, "later")])
    assert list(remarks) == [Remark("loop-body", HERE, "later")]
    remarks.merged(HERE)
    assert not list(remarks)
