"""The page and the trace: complete, by themselves, and right in their numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import torchjanus
from tests.runtime.report import programs
from torchjanus import cli, runtime
from torchjanus.runtime.report.chrome_trace import chrome_trace
from torchjanus.runtime.report.page import _bars, html_page
from torchjanus.runtime.runs.call_times import KEPT, CallTimes

VOID = {"meta", "br", "link", "img"}


class Checked(HTMLParser):
    """Notes what is open, what is fetched, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.text = ""
        self.heights: list[float] = []

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        if tag not in VOID:
            self.open.append(tag)
        given = dict(attributes)
        self.fetched += [given[name] for name in ("src", "href") if name in given]
        if tag == "script":
            self.fetched.append("script")
        if "height:" in given.get("style", ""):
            self.heights.append(float(given["style"].removeprefix("height:").removesuffix("%")))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data


def checked(page: str) -> Checked:
    found = Checked()
    found.feed(page)
    assert found.open == []
    assert found.fetched == []
    return found


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    return {name: torchjanus.explain(step).data() for name, step in programs.steps().items()}


@pytest.mark.parametrize("make", programs.PROGRAMS)
def test_each_program_has_a_page(data: dict[str, Any], make: Callable[[], Any]) -> None:
    one = data[make.__name__]
    page = checked(html_page("train.py", 1.5, [json.loads(json.dumps(one))]))
    assert one["name"] in page.text
    for cost in one["costs"]:
        assert cost["what"] in page.text and cost["remedy"] in page.text
    for graph in one["graphs"]:
        assert all(each["text"] in page.text for each in graph["assumptions"])
    for part in one["parts"]:
        assert part["label"] in page.text


def test_the_source_stands_beside_what_it_relies_on(data: dict[str, Any]) -> None:
    page = checked(html_page("train.py", 1.5, [data["trained"]])).text
    assert "def train_step(model" in page
    assert "'if loss > 1000' stays False" in page
    assert "x = torch.relu(self.conv1(x))" in page  # a line of another function that assumes something


def test_texts_of_programs_are_no_markup() -> None:
    page = html_page("<script>alert(1)</script>", 0.0, [], ["train.py:1 <b>: & why"])
    assert "<script>" not in page and "&lt;script&gt;" in page
    assert "Nothing was speculated on" in checked(page).text


def test_the_bars_of_a_timeline_are_full(data: dict[str, Any]) -> None:
    timeline = data["trained"]["timeline"]
    page = checked(html_page("train.py", 1.5, [data["trained"]]))
    bars = [*_bars(timeline)]
    assert len(page.heights) == sum(len(bar["parts"]) for bar in bars)
    assert all(sum(height for _, height in bar["parts"]) <= 100.01 for bar in bars)
    # All seconds of all calls are in a bar, also of calls that are longer than one.
    width = timeline["width"] * -(-len(timeline["bins"]) // 160)
    shown = sum(height / 100 * width for bar in bars for _, height in bar["parts"])
    assert shown == pytest.approx(sum(seconds for _, seconds in timeline["total"].values()))


def test_the_trace_has_all_calls(data: dict[str, Any]) -> None:
    trace = json.loads(json.dumps(chrome_trace([*data.values()])))["traceEvents"]
    calls = [event for event in trace if event.get("cat") == "call"]
    assert len(calls) == sum(one["statistics"]["calls"] for one in data.values())
    assert all(event["ts"] >= 0 and event["dur"] > 0 for event in calls)
    assert {event["args"]["name"] for event in trace if event["ph"] == "M"} == {one["name"] for one in data.values()}
    (miss,) = {event["args"]["call"] for event in calls if event["name"] == "watched" and event["args"]["call"] == 9}
    assert any(event["name"] == "miss" and event["cat"] == "event" for event in trace) and miss == 9


def test_calls_that_are_only_counted_are_in_the_trace_too(data: dict[str, Any]) -> None:
    times = CallTimes()
    for number in range(4 * KEPT):
        times.record(number + 1, "graph", number * 0.01, number * 0.01 + 0.005)
    step = programs.uncalled()
    step.times = times
    trace = chrome_trace([torchjanus.explain(step).data()])["traceEvents"]
    counted = sum(int(event["name"].split()[0]) for event in trace if event.get("cat") == "calls")
    kept = sum(event.get("cat") == "call" for event in trace)
    assert kept == 2 * KEPT
    assert 0.9 * 2 * KEPT <= counted <= 2 * KEPT


SCRIPT = """\
import torch, torchjanus
def step(x):
    return x * 2
step = torchjanus.speculate(step, executor="replay")
for _ in range(5):
    step(torch.ones(2))
"""


def test_the_command_writes_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    import sys

    monkeypatch.setattr(runtime, "keep_speculated", lambda: None)  # it would keep the steps of other tests alive, too
    for name in ("argv", "path"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    (tmp_path / "train.py").write_text(SCRIPT)
    page, trace = tmp_path / "report.html", tmp_path / "trace.json"
    arguments = ["run", "--report", str(page), "--trace", str(trace), "--no-report", str(tmp_path / "train.py"), "-v"]
    assert cli.main(arguments) == 0
    assert "train.py -v" in checked(page.read_text()).text
    assert len([one for one in json.loads(trace.read_text())["traceEvents"] if one.get("cat") == "call"]) >= 5
    assert cli.main(["run", "--report", str(tmp_path / "no" / "r.html"), str(tmp_path / "train.py")]) == 2
