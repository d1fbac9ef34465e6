"""The measurement of the papers' programs: its figures are what they say, and it shows when they get worse."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.speed import regress
from benchmarks.speed.papers import PROGRAMS, report
from benchmarks.speed.papers.by_hand import BY_HAND
from benchmarks.speed.papers.contender import Contender, modules_of
from benchmarks.speed.papers.contest import Lost, Outcome, contest, rows_of, settle


def outcome(kind: str, times: list[float], **more: Any) -> Outcome:
    warm, reported = more.pop("warm", [1.0, 0.1, 0.1, 0.1]), {"peak_mib": 100.0, **more.pop("reported", {})}
    blocks = [sum(times[n : n + 2]) for n in range(0, len(times), 2)]
    losses = more.pop("losses", [1.0, 2.0, 4.0])
    return Outcome(kind, warm, times=times, blocks=blocks, losses=losses, reported=reported, **more)


def rows() -> dict[str, dict[str, Any]]:
    eager = outcome("eager", [0.1] * 8, warm=[0.1] * 4)
    janus = outcome(
        "torchjanus", [0.05] * 8, losses=[1.0, 2.0, 4.4], waited=[(2, 3.0)], served=[True] * 6 + [False] * 2
    )
    janus.warm = [0.1, 2.1, 0.3, 0.05]
    janus.reported |= {"entries": 2, "runs": ["inductor", "replay"]}
    broken = Outcome("compile step", failure="RuntimeError")
    return {row.contender: asdict(row) for row in rows_of("an", [eager, janus, broken])}


def test_figures_are_what_they_say() -> None:
    row = rows()["torchjanus"]
    assert row["step"] == pytest.approx(50.0)
    assert row["times_eager"] == pytest.approx(2.0)
    assert row["longest"] == pytest.approx(2100.0)
    assert row["stall"] == pytest.approx(2.2)
    assert row["first_fast"] == pytest.approx(0.1 + 2.1 + 0.3 + 0.05 + 3.0)
    assert row["difference"] == pytest.approx(0.1)
    assert row["served"] == 0.75
    assert row["graphs"] == "2 entries"
    assert row["note"] == "inductor; replay"
    assert rows()["compile step"]["times_eager"] is None
    assert rows()["compile step"]["note"] == "RuntimeError"


class Waiting:
    """A contender whose compilers never come to an end; or have, until it makes so many calls."""

    def __init__(self, settled: tuple[int, ...] = ()) -> None:
        self.calls, self.settled = 0, settled

    def ask(self, command: str, limit: float) -> dict[str, Any]:
        words, _, argument = command.partition(" ")
        if words == "settle":
            return {"seconds": 0.001, "settled": self.calls in self.settled}
        self.calls += int(argument)
        return {"seconds": [0.1] * int(argument), "losses": [1.0] * int(argument), "served": []}


def test_a_warm_up_ends_however_long_compilers_take() -> None:
    made = Outcome("torchjanus")
    settle(Waiting(), made, 12, 12, 40, 1, 60.0)  # type: ignore[arg-type]
    assert len(made.warm) == 40 and made.settled is None
    assert [before for before, _ in made.waited] == list(range(12, 40, 4))


def test_a_warm_up_goes_on_until_rare_ways_have_been_met() -> None:
    made = Outcome("torchjanus")
    settle(Waiting((12, 16, 28)), made, 12, 20, 40, 1, 60.0)  # type: ignore[arg-type]
    assert len(made.warm) == 28 == made.settled


def test_what_got_worse_is_reported() -> None:
    before = {"an": {"rows": rows()}}
    assert list(regress.regressions(before, before)) == []
    for change, words in (
        ({"times_eager": 1.8, "low": 1.79, "high": 1.81}, "10% less"),
        ({"served": 0.5}, "50% of the calls"),
        ({"graphs": "5 entries"}, "5 entries"),
        ({"difference": 2.0}, "losses differ"),
        ({"times_eager": None, "note": "ended"}, "does not run any more: ended"),
    ):
        after = {"an": {"rows": {"torchjanus": rows()["torchjanus"] | change}}}
        (line,) = regress.regressions(before, after)
        assert words in line
    noisy = rows()["torchjanus"] | {"times_eager": 1.8, "low": 1.5, "high": 2.1}
    assert list(regress.regressions(before, {"an": {"rows": {"torchjanus": noisy}}})) == []
    assert list(regress.regressions(before, {})) == []


def test_records_become_a_table_and_a_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "papers.json"
    (tmp_path / "results").mkdir()
    eager = outcome("eager", [0.1] * 8)
    for name in ("an", "lenet"):
        made = [eager, outcome("symbolic", [0.04] * 8), outcome("torchjanus", [0.05] * 8, reported={"entries": 1})]
        report.keep(name, rows_of(name, made), {"torchjanus": ["inductor compiled"]}, file=file)
    assert set(report.load(file)) == {"an", "lenet"}
    table, plot = report.render(file, tmp_path)
    text = table.read_text()
    assert "| an | JANUS |" in text
    assert "torchjanus 2.00 times eager over 2 programs" in text
    assert "0.80 times what was written by hand over 2" in text
    assert "- inductor compiled" in text
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert regress.main([str(file), str(file)]) == 0
    assert "2 programs compared, 0 regressions" in capsys.readouterr().out
    worse = json.loads(file.read_text())
    worse["programs"]["an"]["rows"]["torchjanus"]["times_eager"] = 0.5
    (tmp_path / "worse.json").write_text(json.dumps(worse))
    assert regress.main([str(tmp_path / "worse.json"), str(file)]) == 1


def test_networks_are_found_wherever_a_program_keeps_them() -> None:
    found = {name: len(modules_of(PROGRAMS[name].make(0, small=True).state)) for name in ("an", "lenet", "a3c", "ppo")}
    assert found == {"an": 2, "lenet": 1, "a3c": 2, "ppo": 1}


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_HAND)
def test_steps_by_hand_compute_what_eager_does(name: str) -> None:
    # Inception on two pictures makes ten times more of each rounding at every step.
    calls = 4 if name == "inception" else 12
    # One after the other: to make a contender seeds the generator that its steps draw from.
    eager, other = (Contender(name, kind, small=True).run(calls)["losses"] for kind in ("eager", "symbolic"))
    for one, two in zip(eager, other, strict=True):
        assert math.isclose(one, two, rel_tol=1e-5)


@pytest.mark.slow
def test_a_second_process_finds_what_the_first_one_has_kept() -> None:
    outcomes = contest("an", 3, 60, 120, ("eager", "torchjanus", "torchjanus again"), small=True)
    _, first, again = rows_of("an", outcomes)
    assert not again.note.startswith("not done")
    assert any("an earlier run had compiled" in note for note in outcomes[2].reported["notes"])
    assert first.difference is not None
    assert again.first_fast is not None


@pytest.mark.slow
def test_a_contest_of_processes() -> None:
    outcomes = contest("an", 3, 60, 60, ("eager", "torchjanus"), small=True)
    eager, janus = rows_of("an", outcomes)
    assert eager.times_eager == 1.0
    assert janus.note in ("inductor", "replay")
    assert janus.served == 1.0
    assert janus.difference is not None
    assert janus.difference < 1e-4


def test_without_eager_there_is_nothing_to_compare_with() -> None:
    with pytest.raises(Lost, match="an: eager is not done after 0 s"):
        contest("an", 1, 0.001, 0.001, ("eager",), small=True, module="tests.benchmarks.speed.silent_contender")
