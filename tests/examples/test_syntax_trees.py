"""The example of syntax trees: it learns, it repeats itself, and speculation changes nothing."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest
import torch

from torchjanus import runtime

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch):
    """The example with two packages and small trees."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import syntax_trees

    monkeypatch.setattr(syntax_trees, "PACKAGES", ["logging", "encodings"])
    monkeypatch.setattr(syntax_trees, "LARGEST", 25)
    monkeypatch.setattr(syntax_trees, "BATCH", 4)
    return syntax_trees


def losses(example, folder: Path, *arguments: str) -> list[float]:
    target = folder / "losses.json"
    example.main([*arguments, "--losses", str(target)])
    return json.loads(target.read_text())


def test_eager_learns_and_repeats_itself(example, tmp_path: Path, capsys) -> None:
    first = losses(example, tmp_path, "--eager", "--steps", "40")
    assert sum(first[-10:]) < 0.8 * sum(first[:10])
    out = capsys.readouterr().out
    assert "after 40 steps" in out
    accuracy, majority = (
        float(line.split(kind)[1].split("%")[0])
        for kind, line in zip(("accuracy", "always:"), out.splitlines()[-2:], strict=True)
    )
    assert accuracy > majority
    assert losses(example, tmp_path, "--eager", "--steps", "5") != first[:5]  # the rate falls faster
    assert losses(example, tmp_path, "--eager", "--steps", "40") == first


def test_trees_are_within_the_limits_and_parted(example) -> None:
    training, test, words = example.load(0)
    for tree, label in [*training, *test]:
        assert example.SMALLEST <= len(example.nodes(tree)) <= example.LARGEST
        assert 0 <= label < 2
        assert all(0 < kind < words and 0 <= name < words for kind, name in (n.words for n in example.nodes(tree)))
    assert not {id(tree) for tree, _ in training} & {id(tree) for tree, _ in test}
    assert set(Counter(label for _, label in test)) == {0, 1}


def test_speculated_losses_are_eagers(example) -> None:
    training, _, words = example.load(0)
    before = runtime.default_executor()
    runtime.default_executor("replay")
    try:
        found = []
        for step in (example.train_step, example.torchjanus.speculate(example.train_step)):
            torch.manual_seed(0)
            chance = random.Random(0)
            model = example.TreeLSTM(words, 8)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            batches = (example.batch(chance.sample(training, 2)) for _ in range(6))
            found.append([step(model, optimizer, *given)[0].item() for given in batches])
    finally:
        runtime.default_executor(before)
    assert found[0] == pytest.approx(found[1], rel=1e-5)
