"""What an object is is asked past what it says of itself, wherever values of programs are looked at."""

from __future__ import annotations

import ast
import builtins
from pathlib import Path

import pytest

import torchjanus
from torchjanus.core.kinds import is_one_of
from torchjanus.core.kinds import isinstance as is_of_kind

ROOT = Path(torchjanus.__file__).parent
# Watched themselves, in place of a library's functions: the watch knows Python's own isinstance().
WATCHED = ("inspecting", "reducing", "stand_ins")
PARTS = ("semantics", "trace", "host", "runtime/runs", "runtime/learning", "runtime/parts")
# What sees values of programs while they are watched, and when calls are guarded.
SEEING = sorted([
    *(path for part in PARTS for path in (ROOT / part).rglob("*.py") if path.stem not in WATCHED),
    ROOT / "core" / "access_path.py",
])  # fmt: skip


class Pretending:
    asked = 0

    @property
    def __class__(self):  # type: ignore[no-untyped-def]
        type(self).asked += 1
        return dict


def test_an_object_is_not_asked() -> None:
    one = Pretending()
    assert not is_of_kind(one, dict)
    assert not is_of_kind(one, int | str)
    assert is_of_kind(one, (int, Pretending))
    assert Pretending.asked == 0
    assert isinstance(one, dict)
    assert Pretending.asked == 1


@pytest.mark.parametrize("path", SEEING, ids=lambda path: str(path.relative_to(ROOT)))
def test_pythons_own_is_not_used(path: Path) -> None:
    tree = ast.parse(path.read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    uses = any(isinstance(call.func, ast.Name) and call.func.id == "isinstance" for call in calls)
    imports = any(isinstance(node, ast.ImportFrom) and node.module == "torchjanus.core.kinds" for node in tree.body)
    assert imports or not uses, f"{path}: from torchjanus.core.kinds import isinstance"


@pytest.mark.parametrize("path", SEEING, ids=lambda path: str(path.relative_to(ROOT)))
def test_patterns_do_not_ask(path: Path) -> None:
    """``case str():`` is Python's own isinstance, too; classes of ours are matched with what is ours."""
    patterns = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.MatchClass)]
    asking = [each for each in patterns if is_pythons(ast.unparse(each.cls))]
    assert not asking or path.stem in ("recurrences", "requirements"), f"{path}:{asking[0].lineno}: ask by isinstance()"


def is_pythons(name: str) -> bool:
    return hasattr(builtins, name) or name.partition(".")[0] in ("types", "functools", "weakref", "collections")


def test_a_callee_is_not_compared() -> None:
    class Callee:
        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared")

        def __call__(self) -> None: ...

    assert not is_one_of(Callee(), (len, max, Callee))
    assert is_one_of(max, (len, max))
    assert is_one_of(dict, frozenset({list, dict}))
    assert not is_one_of([].append, frozenset({list.append}))
