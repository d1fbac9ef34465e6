"""The report on one screen: what it says of a few programs, and that it fits."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import torchjanus
from tests.runtime.report import programs
from torchjanus.core.errors import NOWHERE, Place
from torchjanus.runtime import Event
from torchjanus.runtime.report.costs import Cost, _remedy, costs_of
from torchjanus.runtime.report.facts import _unwrapped
from torchjanus.runtime.report.screen import HEIGHT
from torchjanus.runtime.runs.call_times import COMPILED, GRAPH, KEPT, MOST_BINS, WATCHED, CallTimes


@pytest.fixture(scope="module")
def steps() -> dict[str, Any]:
    return programs.steps()


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("make", programs.PROGRAMS)
def test_it_fits(steps: dict[str, Any], make: Callable[[], Any], width: int) -> None:
    lines = torchjanus.explain(steps[make.__name__]).screen(width).splitlines()
    assert len(lines) <= HEIGHT
    if len(os.path.relpath(programs.__file__)) < 50:  # a path is not broken
        assert max(map(len, lines)) <= width


def said(step: Any, width: int = 200) -> str:
    return torchjanus.explain(step).screen(width)


def line_of(fragment: str) -> str:
    with open(programs.__file__) as file:
        return f"programs.py:{next(number for number, line in enumerate(file, 1) if fragment in line)}"


def test_a_training_step(steps: dict[str, Any]) -> None:
    text = said(steps["trained"])
    assert re.search(r"speed +\d+\.\d (ms|us) a call by replay; eager was not measured", text)
    assert re.search(r"served +\d+ of 14 calls, \d+% of their time; the first was call 4, after \d", text)
    assert "__" not in text and "id(" not in text
    assert re.search(r"arguments +model and optimizer stay the same; mode is '\w+' or '\w+'", text)
    assert re.search(rf"{line_of('self.conv1(x)')} +model.conv1 stays the same", text)
    assert re.search(rf"{line_of('if loss > 1000')} +'if loss > 1000' stays False", text)
    assert re.search(r"and \d+ facts of Python's classes and of libraries", text)


def test_what_cost_most_has_a_price_and_a_way_out(steps: dict[str, Any]) -> None:
    costs = torchjanus.explain(steps["trained"]).data()["costs"]
    assert all(one["seconds"] >= 0 for one in costs)
    by_text = {one["what"]: one["remedy"] for one in costs}
    (number,) = [remedy for what, remedy in by_text.items() if "['lr'] == " in what]
    assert "torchjanus.vary(\"optimizer.param_groups[0]['lr']\")" in number
    (size,) = [remedy for what, remedy in by_text.items() if "images is float32" in what]
    assert 'torchjanus.vary("images.shape[0]")' in size
    (mode,) = [one for one in costs if "mode == 'plain'" in one["what"]]
    assert mode["remedy"].startswith("Each value gets a graph of its own")
    assert re.fullmatch(r"[\d.]+ m?s", mode["price"])
    assert [one["seconds"] for one in costs] == sorted((one["seconds"] for one in costs), reverse=True)


def test_the_remedy_of_a_miss_works(steps: dict[str, Any]) -> None:
    costs = torchjanus.explain(steps["trained"]).data()["costs"]
    names = [name for one in costs for name in re.findall(r'vary\("(.*?)"\)', one["remedy"])]
    assert len(names) == 3
    step = torchjanus.vary(*names)(torchjanus.speculate(programs.train_step, executor="replay"))
    torch.manual_seed(0)
    model = programs.LeNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for number in range(9):
        optimizer.param_groups[0]["lr"] = 0.1 / (number + 1) if number > 5 else 0.1
        size = 8 if number < 7 else 6
        step(model, optimizer, torch.randn(size, 1, 8, 8), torch.randint(10, (size,)), "plain")
    assert step.statistics().missed == 0


def test_a_refused_step(steps: dict[str, Any]) -> None:
    text = said(steps["refused"])
    assert "speed    eager's: Python makes the calls" in text
    assert "served   none of 8 calls; 3 watched and 5 by Python" in text
    assert re.search(rf"{line_of('len(locals())')} calls locals\(\): .* \[frame-inspection\]\n", text)
    assert "instead: Name the variables instead." in text


def test_what_one_line_meets_several_times_is_said_once(steps: dict[str, Any]) -> None:
    explained = torchjanus.explain(steps["refused"])
    [refusal] = explained.refusals
    inner = replace(refusal, place=Place("library.py", 7), caller=refusal.place)
    twice = replace(explained, refusals=(refusal, inner, replace(inner, place=Place("library.py", 8))))
    assert [cost.reason for cost in costs_of(twice)].count("frame-inspection") == 1


def test_a_step_with_parts(steps: dict[str, Any]) -> None:
    text = said(steps["parted"])
    assert re.search(r"served +none of 20 calls, parts of \d+; \d+ watched and \d+ by Python", text)
    assert re.search(r"parts +by graphs: programs.py:\d+ ", text)
    assert "weak reference" in text


def test_a_step_that_was_not_called(steps: dict[str, Any]) -> None:
    assert "it has not been called yet" in said(steps["uncalled"])


def test_a_fault_of_ours_is_on_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    step = torchjanus.speculate(programs.many, executor="replay")
    monkeypatch.setattr(type(step._learning), "learn", lambda *_: 1 / 0)
    for _ in range(4):
        step(torch.ones(3))
    assert "torchjanus itself failed: ZeroDivisionError" in said(step)


@pytest.mark.parametrize("make", programs.PROGRAMS)
def test_everything_is_data_that_json_takes(steps: dict[str, Any], make: Callable[[], Any]) -> None:
    explained = torchjanus.explain(steps[make.__name__])
    data = json.loads(json.dumps(explained.data()))
    assert data["statistics"]["calls"] == explained.statistics.calls
    assert len(data["graphs"]) == explained.statistics.entries
    total = sum(calls for calls, _ in data["timeline"]["total"].values())
    assert total == explained.statistics.calls


def test_detail_has_what_the_screen_leaves_out(steps: dict[str, Any]) -> None:
    text = str(torchjanus.explain(steps["trained"], detail=True))
    assert "'__call__' not in LeNet.__dict__" in text
    assert text == torchjanus.explain(steps["trained"]).detailed()


# ---- the times of calls ----


def test_bins_become_longer_and_keep_all_calls() -> None:
    times = CallTimes()
    for number in range(5000):
        times.record(number + 1, WATCHED if number < 3 else GRAPH, 100 + number * 0.01, 100 + number * 0.01 + 0.004)
    assert len(times.bins) <= MOST_BINS
    total = times.total
    assert {kind: calls for kind, (calls, _) in total.items()} == {WATCHED: 3, GRAPH: 4997}
    assert abs(total[GRAPH][1] - 4997 * 0.004) < 1e-6
    assert times.width * len(times.bins) >= 50 - times.width
    assert times.served is not None and times.served.number == 4
    assert [one.number for one in times.calls] == [*range(1, KEPT + 1), *range(5000 - KEPT + 1, 5001)]
    assert abs(times.typical(GRAPH) - 0.004) < 1e-6


def test_short_calls_by_graphs_are_counted_by_some_of_them() -> None:
    times, made = CallTimes(), 0
    for number in range(5000):
        if times.skips:
            times.skips -= 1
            continue
        made += 1
        times.record(number + 1, COMPILED, number * 1e-4, number * 1e-4 + 5e-5)
    assert made < 2000
    assert abs(times.total[COMPILED][0] - 5000) <= 8


def test_why_calls_are_pythons_is_said_if_more_than_a_few_are() -> None:
    step = torchjanus.speculate(programs.many, executor="replay")
    for _ in range(5):
        step(torch.ones(3))
    step._learning.event_log.record("budget", "there is no time to learn")
    counts = step._learning.counts
    counts.speculated, counts.imperative = 1000, 20
    assert "no time to learn" not in said(step)
    counts.imperative = 100
    assert "Python's there is no time to learn" in said(step)


def test_the_way_out_names_numbers_and_sizes_only() -> None:
    number = Event(4, "miss", "step.lr == 0.1, but now it is 0.2")
    tensor = Event(5, "miss", "order is the same Tensor, but now it is another: int64[9]")
    condition = Event(6, "miss", "(i <= 1000) is True, but now i is 1001")
    relaxed = {"step.lr == 0.1", "order is the same Tensor"}
    remedies = [
        _remedy("miss", one.text.partition(", but now")[0], relaxed, one) for one in (number, tensor, condition)
    ]
    assert remedies[0] == 'Nothing: it is an input now. torchjanus.vary("step.lr") saves the miss.'
    assert remedies[1] == "Nothing: it is an input now."
    assert "each gets a graph" in remedies[2]
    assert Cost("", NOWHERE, "", "", seconds=53.99).price == "54.0 s"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("((n % k) == 0)", "(n % k) == 0"),
        ("(n % k) == 0", "(n % k) == 0"),
        ("(a) and (b)", "(a) and (b)"),
        ("((a))", "a"),
    ],
)
def test_only_parentheses_around_the_whole_are_left_out(text: str, shown: str) -> None:
    assert _unwrapped(text) == shown
