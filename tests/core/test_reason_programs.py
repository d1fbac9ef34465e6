"""Each program of docs/reasons.md meets its code; codes that no program is sure to meet are met by hand."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import torchjanus
from torchjanus import runtime
from torchjanus.core.errors import Refused
from torchjanus.core.reasons import reasons
from torchjanus.execute.compiled import compiling, invoke
from torchjanus.graph.aten.symbolic_sizes import Fixed
from torchjanus.graph.ir.program import Input, Node, Program, Ref
from torchjanus.graph.lowering.lower import lower
from torchjanus.graph.recursion.cells import buffers
from torchjanus.graph.switches.rewrites import fold
from torchjanus.runtime.entries import entry_making
from torchjanus.runtime.runs import payback
from torchjanus.runtime.runs.budget import Budget
from torchjanus.semantics.watch.objects import state
from torchjanus.semantics.watch.objects.finalization import Finalization
from torchjanus.semantics.watch.run import watch_call
from torchjanus.trace.modes import Modes


def test_each_code_has_a_program_or_a_situation() -> None:
    assert [code for code, reason in reasons().items() if bool(reason.program) is bool(reason.situation)] == []
    assert {code for code, reason in reasons().items() if reason.situation} == SITUATIONS.keys()


WITH_PROGRAMS = [code for code, reason in reasons().items() if reason.program]


@pytest.mark.parametrize(
    "code", [pytest.param(code, marks=pytest.mark.slow if at % 3 else ()) for at, code in enumerate(WITH_PROGRAMS)]
)
def test_the_program_meets_its_code(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "program.py"
    path.write_text(reasons()[code].program)
    names: dict[str, Any] = {"torch": torch, "np": np, "torchjanus": torchjanus, "__name__": "program"}
    monkeypatch.setattr(
        torchjanus, "speculate", lambda fn=None, executor="replay": runtime.speculate(fn, executor=executor)
    )
    torch.manual_seed(0)
    enabled, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(path.read_text(), str(path), "exec"), names)
    finally:
        torch.set_grad_enabled(enabled)
        torch.set_default_dtype(dtype)
    if isinstance(names["step"], torchjanus.NotStaged):
        assert names["step"].refusal.reason == code
        assert names["step"].refusal.place.file == str(path)
        return
    explanation = torchjanus.explain(names["step"], detail=True)
    assert code in explanation.codes, explanation
    assert f"[{code}]" in str(explanation)


# -- what no program is sure to meet ------------------------------------------------------------------------------


def _lowered(*nodes: Node) -> None:
    lower(Program((Input(torch.ones(3), False, True),), (), nodes, (), (), (), ()))


def _raised(act: Callable[..., Any], *args: Any) -> tuple[str, ...]:
    with pytest.raises(Refused) as caught:
        act(*args)
    return (caught.value.refusal.reason,)


def _default_dtype(patch: pytest.MonkeyPatch) -> tuple[str, ...]:
    one, two = (Modes(default_dtype=dtype) for dtype in (torch.float32, torch.float64))
    return _raised(_lowered, *(Node(torch.relu, (Ref(0),), {}, (Ref(k),), modes) for k, modes in ((1, one), (2, two))))


def _generator_seeded(patch: pytest.MonkeyPatch) -> tuple[str, ...]:
    return _raised(_lowered, Node(torch.manual_seed, (3,), {}, ()))


def _trace_differs(patch: pytest.MonkeyPatch) -> tuple[str, ...]:
    return _raised(_lowered, Node(lambda x: x + 1, (Ref(0),), {}, (Ref(0),)))


def _internal_fault(patch: pytest.MonkeyPatch) -> tuple[str, ...]:
    def fails(*args: Any) -> Any:
        raise RuntimeError("no")

    patch.setattr(Finalization, "settle", fails)
    step = torchjanus.speculate(lambda x: x * 2, executor="replay")
    assert step(torch.ones(1)).item() == 2.0
    return torchjanus.explain(step).codes


def _learning_no_time(patch: pytest.MonkeyPatch) -> tuple[str, ...]:
    step = torchjanus.speculate(lambda x: x * 2, executor="replay")
    for _ in range(4):
        step(torch.ones(2))
    patch.setattr(Budget, "allows", lambda *args, **kwargs: False)
    assert step(torch.ones(1, 2)).tolist() == [[2.0, 2.0]]
    return torchjanus.explain(step).codes


def _learning_not_worth_yet(patch: pytest.MonkeyPatch) -> tuple[str, ...]:
    patch.setattr(payback, "AT_ONCE", 0)
    patch.setattr(payback, "FEW", 0)
    patch.setattr(payback, "LEARNED", 1e6)
    step = torchjanus.speculate(lambda x: x * 2, executor="auto")
    for _ in range(4):
        assert step(torch.ones(2)).tolist() == [2.0, 2.0]
    assert step.statistics().watched == 1
    return torchjanus.explain(step).codes


def _watching_too_long(patch: pytest.MonkeyPatch) -> tuple[str, ...]:
    patch.setattr(Budget, "longest_watch", property(lambda self: -1.0))
    patch.setattr(state, "PERIOD", 3)

    def step(x: torch.Tensor) -> torch.Tensor:
        for number in range(20):
            x = x + number
        return x

    step = torchjanus.speculate(step, executor="replay")
    for _ in range(4):
        step(torch.ones(2))
    return torchjanus.explain(step).codes


def _entry_dropped(patch: pytest.MonkeyPatch) -> tuple[str, ...]:
    step = torchjanus.speculate(lambda x: x * 2, executor="replay")
    for _ in range(4):
        step(torch.ones(2))
    step._learning.record_verification(step.entries[0], ["the result"])
    assert not step.entries
    return torchjanus.explain(step).codes


def _inductor_recurrent_layer(patch: pytest.MonkeyPatch) -> tuple[str, ...]:
    node = SimpleNamespace(target="aten.mkldnn_rnn_layer.default")
    lowered: Any = SimpleNamespace(graph=SimpleNamespace(graph=SimpleNamespace(nodes=[node])), lent=2)
    return _raised(compiling._without_rnn_kernels, lowered)


def _inductor_disagrees(patch: pytest.MonkeyPatch) -> tuple[str, ...]:
    patch.setattr(invoke, "disagreement", lambda *args: "output 0 differs")
    patch.setattr(invoke, "_CompiledCell", lambda *args: None)
    parts = SimpleNamespace(cell=SimpleNamespace(name="encode"))
    return _raised(invoke._compiled_cell, None, SimpleNamespace(number=0, parts=parts), {}, {})


def _loop_count_fixed(patch: pytest.MonkeyPatch) -> tuple[str, ...]:
    def fixed(*args: Any) -> Any:
        raise Fixed({0: "a kernel asks for it"})

    patch.setattr(entry_making, "lowered_or_cached", fixed)
    plan: Any = SimpleNamespace(program=None, dimensions=SimpleNamespace(symbols=()))
    return _raised(entry_making._lower, plan, None)


def _branch_long_run(patch: pytest.MonkeyPatch) -> tuple[str, ...]:
    def step(xs: list[torch.Tensor]) -> torch.Tensor:
        h = torch.zeros(3)
        for x in xs:
            h = torch.tanh(h + x) if x.sum() > 0 else h - x
        return h

    patch.setattr(fold, "MOST_EVENTS", 10)
    _, trace = watch_call(step, (), ([torch.ones(3), -torch.ones(3)] * 3,), {})
    assert fold.LoopMerger().merge(trace) is trace
    return tuple(one.reason for one in trace.remarks)


def _recursion_unseen(patch: pytest.MonkeyPatch) -> tuple[str, ...]:
    return _raised(buffers._row, [], ("argument", "encode", "h"))


SITUATIONS: dict[str, Callable[[pytest.MonkeyPatch], tuple[str, ...]]] = {
    "default-dtype": _default_dtype,
    "generator-seeded": _generator_seeded,
    "trace-differs": _trace_differs,
    "internal-fault": _internal_fault,
    "learning-no-time": _learning_no_time,
    "watching-too-long": _watching_too_long,
    "learning-not-worth-yet": _learning_not_worth_yet,
    "entry-dropped": _entry_dropped,
    "inductor-recurrent-layer": _inductor_recurrent_layer,
    "inductor-disagrees": _inductor_disagrees,
    "loop-count-fixed": _loop_count_fixed,
    "branch-long-run": _branch_long_run,
    "recursion-unseen": _recursion_unseen,
}


@pytest.mark.parametrize("code", SITUATIONS)
def test_the_situation_has_its_code(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert code in SITUATIONS[code](monkeypatch)
