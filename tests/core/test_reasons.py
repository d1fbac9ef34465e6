"""Reason codes: the table is complete, every code is in use, and every decision against speculation names one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from torchjanus.cli.reasons import page
from torchjanus.core.collector import uncollected
from torchjanus.core.reasons import reasons

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "torchjanus"
# What takes a code as its first argument.
DECIDING = {"NotMergeable", "Refusal", "refuse", "refused"}
# The same names with another meaning: the command line's own errors, and what passes a refusal made before.
OTHERS = {
    "cli/__init__.py",
    "runtime/coexecution/runner.py",
    "runtime/learning/entry_maker.py",
    "runtime/learning/learning.py",
    "runtime/parts/calls.py",
    "runtime/parts/cutting.py",
    "runtime/parts/targets.py",
}


@pytest.fixture(scope="module")
def trees() -> list[tuple[str, ast.Module]]:
    """The modules of the package, parsed once: that takes seconds."""
    paths = sorted(SOURCE.rglob("*.py"))
    with uncollected():
        return [(path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text())) for path in paths]


def test_every_decision_names_a_code_of_the_table(trees: list[tuple[str, ast.Module]]) -> None:
    seen = 0
    for where, tree in trees:
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if name not in DECIDING or not call.args or (where in OTHERS and name == "refuse"):
                continue
            code = call.args[0]
            if where in OTHERS and not isinstance(code, ast.Constant):
                continue
            if getattr(code, "id", getattr(code, "attr", "")) == "reason":
                continue  # carried
            seen += 1
            assert isinstance(code, ast.Constant), f"{where}:{call.lineno}"
            assert code.value in reasons(), f"{where}:{call.lineno}"
    assert seen > 400


def test_nothing_is_raised_without_a_code(trees: list[tuple[str, ast.Module]]) -> None:
    for where, tree in trees:
        for node in (node for node in ast.walk(tree) if isinstance(node, ast.Raise)):
            assert getattr(node.exc, "id", "") not in {"NotMergeable", "Refused"}, f"{where}:{node.lineno}"


def test_every_code_is_in_use(trees: list[tuple[str, ast.Module]]) -> None:
    written = {node.value for _, tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert reasons().keys() - written == set()


def test_the_page_is_the_table() -> None:
    assert (ROOT / "docs" / "reasons.md").read_text() == page() + "\n"


@pytest.mark.parametrize("code", reasons())
def test_an_entry_is_whole(code: str) -> None:
    reason = reasons()[code]
    assert all(text.strip().endswith((".", "`")) for text in (reason.title, reason.meaning, reason.remedy))
    assert code == code.lower() and code.isascii()
