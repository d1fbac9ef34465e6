"""What iterations of a loop can know of those before them, by the loop's source."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from torchjanus.core.errors import Place
from torchjanus.graph.recursion.entry_loops.carried import carries_nothing

LOOPS = [
    ("loss = 0\nfor t in OVER:\n    loss = loss + f(t)", True),
    ("loss = 0\nfor t in OVER:\n    loss += f(t)", True),
    ("loss = 0\nfor t in OVER:\n    h = f(t)\n    loss = loss + h.sum() + h.mean()", True),
    ("found = [f(t) for t in OVER]", True),
    ("found = sum(f(t) for t in OVER)", True),
    ("for t, y in OVER:\n    out.append(f(t, y))", True),
    ("found = [f(last := t) for t in OVER]", False),
    ("was = False\nfor t in OVER:\n    if was: f(t)\n    was = t.flag", False),
    ("for t in OVER:\n    if t.flag: was = True\n    f(was)", False),
    ("loss = 0\nfor t in OVER:\n    loss = loss + f(t)\n    if loss: g()", False),
    ("for t in OVER:\n    if seen.get('a'): f(t)\n    seen['a'] = t.flag", False),
    ("for t in OVER:\n    f(self.was)\n    self.was = t.flag", False),
    ("for t in OVER:\n    h = f(h, t)", False),
]


@pytest.mark.parametrize(("text", "nothing"), LOOPS)
def test_what_iterations_hand_on(tmp_path: Path, text: str, nothing: bool) -> None:
    file = tmp_path / "loop.py"
    file.write_text(text)
    (line,) = (n for n, part in enumerate(text.splitlines()) if "OVER" in part)
    column = text.splitlines()[line].index("OVER")
    assert carries_nothing(Place(str(file), line + 1, column)) is nothing


def test_a_place_without_a_loop(tmp_path: Path) -> None:
    file = tmp_path / "loop.py"
    file.write_text(textwrap.dedent("OVER = 1\n"))
    assert not carries_nothing(Place(str(file), 1, 0))
    assert not carries_nothing(Place(str(tmp_path / "nothing.py"), 1, 0))
