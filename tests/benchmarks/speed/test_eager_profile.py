"""Where eager spends a step's time."""

from __future__ import annotations

import pytest

from benchmarks.speed import eager_profile


@pytest.mark.parametrize("name", ["lenet", "lstm"])
def test_products_are_a_part_of_a_step(name: str) -> None:
    found = eager_profile.shares(name, 2, small=True)
    assert found.program == name
    assert found.products > 0
    assert found.others > 0
    assert found.limit == pytest.approx(found.step / found.products)


def test_a_table_has_a_line_for_each_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert eager_profile.main(["--only", "lenet", "--calls", "1", "--small"]) == 0
    reported = capsys.readouterr().out
    assert "lenet" in reported
    assert "limit" in reported
