"""The report of small programs, word for word, with the paths of files left out."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import torchjanus


def report(step: Any) -> str:
    return re.sub(
        r"[^\s(]*test_explanation\.py:(\d+)",
        lambda m: f"F:{int(m[1]) - first(step)}",
        str(torchjanus.explain(step, detail=True)),
    )


def first(step: Any) -> int:
    return int(step.fn.__code__.co_firstlineno)


STATE = SimpleNamespace(scale=2.0, on=True)


def small(x: torch.Tensor) -> torch.Tensor:
    y = x * STATE.scale
    print("sum", y.sum().item())
    return y


def test_an_entry_with_a_relaxation(capsys: Any) -> None:
    step = torchjanus.speculate(small, executor="replay")
    STATE.scale = 2.0
    for _ in range(5):
        step(torch.ones(2))
    STATE.scale = 3.0
    step(torch.ones(2))
    text = report(step).splitlines()
    assert text[:2] == [
        "small  (F:0)",
        "  6 calls: 3 speculated, 3 watched, 0 imperative; 1 missed, 0 violated, 0 refused; 2 compiles, 1 entries",
    ]
    assert "    numbers read at each call: STATE.scale" in text
    at = text.index("      F:1")
    assert "        STATE.scale is of type float" in text[at:]
    assert text[text.index("    made at commit:") + 1].startswith("      F:2  extern print('sum', ")
    assert text[text.index("  what happened:") + 1 :] == [
        "    call 6: F:1  miss: STATE.scale == 2.0, but now it is 3.0",
        "    call 6: F:1  relax: STATE.scale == 2.0: relaxed, it is an input from now on",
    ]
    assert capsys.readouterr().out.splitlines() == ["sum 4.0"] * 5 + ["sum 6.0"]


def refusing(x: torch.Tensor) -> Any:
    return x.data_ptr()


def test_a_refusal_shows_the_line_and_the_remedy() -> None:
    step = torchjanus.speculate(refusing, executor="replay")
    for _ in range(4):
        step(torch.ones(2))
    text = report(step).splitlines()
    at = text.index("  refused:")
    assert text[at + 1 : at + 3] == [
        "    F:1  Tensor.data_ptr inside the step: "
        "the address of a tensor in a graph means nothing. [tensor-internals]",
        "        return x.data_ptr()",
    ]
    assert text[2].startswith("  runs imperatively: F:1: Tensor.data_ptr inside the step")


def leaving_live(x: torch.Tensor, w: torch.nn.Parameter) -> torch.Tensor:
    (x * w).sum().backward()
    return (x * w).sum()


def test_what_is_wrong_with_the_whole_call_is_reported_of_where_the_function_is_written() -> None:
    step = torchjanus.speculate(leaving_live, executor="replay")
    for _ in range(4):
        step(torch.ones(2), torch.nn.Parameter(torch.ones(2)))
    text = report(step).splitlines()
    at = text.index("  refused:")
    assert text[at + 1].startswith("    F:0  a tensor leaves the step with its backward pass still to come")
    assert text[at + 2].strip().startswith("def leaving_live(")
    assert "unknown" not in "".join(text)


def test_a_module_is_written_where_its_forward_is() -> None:
    reported = torchjanus.explain(torchjanus.speculate(torch.nn.Linear(2, 2)))
    assert reported.place.file.endswith("linear.py")
    assert reported.place.line == torch.nn.Linear.forward.__code__.co_firstlineno


def of_some(items: list[torch.Tensor]) -> torch.Tensor:
    return items[0] + items[1] if len(items) == 2 else items[0] * 2


def test_a_miss_is_reported_by_its_reasons_not_by_all_that_follows_from_them() -> None:
    step = torchjanus.speculate(of_some, executor="replay")
    for count in (2, 2, 2, 2, 1):
        step([torch.ones(3) for _ in range(count)])
    assert step.statistics().missed == 1
    reported = [event.text for event in step.events if event.kind == "miss"]
    assert reported == ["(len(items) == 2) is True, but now len(items) is 1"]


def of_many(settings: list[str], x: torch.Tensor) -> torch.Tensor:
    return x * sum(float(setting == "on") for setting in settings)


def test_a_few_reasons_of_a_miss_are_enough() -> None:
    step = torchjanus.speculate(of_many, executor="replay")
    for setting in ("on", "on", "on", "on", "off"):
        step([setting] * 9, torch.ones(3))
    reported = [event.text for event in step.events if event.kind == "miss"]
    assert len(reported) == 4
    assert reported[-1].endswith("(and 5 more of what is assumed does not hold)")


def asserting(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x + 1
    return x


def refusing_in_a_library(x: torch.Tensor) -> Any:
    made = torch.nn.Linear(2, 2)
    layer = torch.nn.utils.weight_norm(made)
    return layer(x).detach()


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_a_refusal_in_a_library_shows_the_line_that_calls_it() -> None:
    step = torchjanus.speculate(refusing_in_a_library, executor="replay")
    for _ in range(4):
        step(torch.ones(2))
    line = refusing_in_a_library.__code__.co_firstlineno + 2
    reported = str(torchjanus.explain(step, detail=True))
    text = reported.splitlines()
    at = text.index("  refused:")
    assert f"test_explanation.py:{line} (in " in text[at + 1]
    assert text[at + 2].strip() == "layer = torch.nn.utils.weight_norm(made)"
    assert any(f"test_explanation.py:{line}  cut: " in one for one in text)  # the layer is made by Python


def test_assertions_are_listed_with_their_line() -> None:
    step = torchjanus.speculate(asserting, executor="replay")
    for _ in range(4):
        step(torch.ones(2))
    step(-torch.ones(2))
    text = report(step).splitlines()
    assert text[text.index("    asserted inside the graph:") + 1] == "      F:1  stays True"
    assert text[-1] == "    call 5: F:1  violation: a condition on tensors stopped being True"


def test_the_parts_are_data() -> None:
    step = torchjanus.speculate(asserting, executor="replay")
    for _ in range(4):
        step(torch.ones(2))
    story = torchjanus.explain(step)
    (entry,) = story.entries
    assert (story.name, entry.executor, entry.runs, entry.violations) == ("asserting", "replay", 1, 0)
    assert story.statistics == step.statistics()
    assert any(str(a) == "x is float32[2]" for a in entry.assumptions)


def test_a_step_that_was_never_called() -> None:
    step = torchjanus.speculate(asserting)
    assert report(step).splitlines() == [
        "asserting  (F:0)",
        "  0 calls: 0 speculated, 0 watched, 0 imperative; 0 missed, 0 violated, 0 refused; 0 compiles, 0 entries",
    ]


def test_what_stands_in_for_library_code_is_library_code() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        return loss.item()

    fast = torchjanus.speculate(step, executor="replay")
    for _ in range(5):
        fast(torch.ones(2))
    text = str(torchjanus.explain(fast, detail=True))
    assert "torchjanus/semantics" not in text  # the lines named are the user's
    assert "read from tensors before the graph: 2 (optimizer.state[<Parameter>]['step'])" in text


def test_a_miss_names_in_what_a_tensor_differs() -> None:
    layer = torch.nn.Linear(4, 3)
    step = torchjanus.speculate(lambda x: layer(x).sum().item(), executor="replay")
    for _ in range(4):
        step(torch.ones(2, 4))
    layer.weight.requires_grad_(False)
    step(torch.ones(2, 4))
    layer.weight.requires_grad_(True)
    step(torch.ones(4, 2).t())
    reported = [event.text for event in step.events if event.kind == "miss"]
    assert reported == [
        "layer.weight is float32[3, 4], but now it is float32[3, 4] (requires_grad False instead of True)",
        "x is float32[2, 4], but now it is float32[2, 4] (strides (1, 2) instead of (4, 1))",
    ]


def test_a_selection_of_the_hosts_is_reported_with_its_line() -> None:
    def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x[x > 0], x.nonzero().squeeze(1), x.masked_select(x > 0)[:1]

    made = torchjanus.speculate(step, executor="replay")
    for _ in range(6):
        made(torch.randn(20))
    (reported, *_) = [event.text for event in made.events if event.kind == "hosted"]
    assert f"{__file__}:{step.__code__.co_firstlineno + 1}: the step gives a view" in reported


def rooted(x: torch.Tensor) -> torch.Tensor:
    total = x.sum().item()
    root = total**-0.5
    y = x + 1
    return y * root


def rooted_at_once(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum().item() ** -0.5


def counted(x: torch.Tensor) -> torch.Tensor:
    known = x.tolist()
    size = int(known[1] * 10)

    return torch.zeros(size)


@pytest.mark.parametrize(
    ("fn", "reported"),
    [
        (rooted, "F:4  computes (%1.item() ** -0.5) from a number fetched from a tensor (fetched in line 1, computed"
                 " in line 2): a graph would"),
        (rooted_at_once, "F:1  computes (%1.item() ** -0.5) from a number fetched from a tensor: a graph would"),
        (counted, "F:4  differs: no two runs are alike; the last two part here: assume int((%0.tolist()[1] * 10)) =="
                  " 1 (argument of torch.zeros; fetched in line 1, computed in line 2) / "),
    ],
)  # fmt: skip
def test_a_number_is_reported_with_the_lines_that_made_it(fn: Any, reported: str) -> None:
    step = torchjanus.speculate(fn, executor="replay")
    for n in range(5):
        step(torch.ones(3) * (n + 1) / 10)
    text = re.sub(r"in line (\d+)", lambda m: f"in line {int(m[1]) - first(step)}", report(step))
    assert re.sub(r"== \d+ \(", "== 1 (", text).count(reported), text
