"""The table of constructs: complete, true, and in docs/design/rewriting.md, too. Run this file to write it there."""

from __future__ import annotations

import ast
from pathlib import Path

from docs.tools.constructs import ROWS, UNUSED, with_table
from torchjanus.rewrite.build import CONSTRUCTS
from torchjanus.rewrite.hooks import Semantics

PAGE = Path(__file__).resolve().parents[2] / "docs" / "design" / "rewriting.md"
LISTED = {node: row for row in ROWS for node in row.nodes}


def test_every_node_class_of_this_python_is_listed() -> None:
    ours = {
        name for name in dir(ast) if isinstance(getattr(ast, name), type) and issubclass(getattr(ast, name), ast.AST)
    }
    ours = {name for name in ours if not name.startswith("_")}
    assert ours - UNUSED - LISTED.keys() == set()


def test_no_node_class_is_listed_twice() -> None:
    assert sum(len(row.nodes) for row in ROWS) == len(LISTED)


def test_every_row_says_which_hook_or_why_native() -> None:
    for row in ROWS:
        assert row.hooks or row.native, row
        for hook in row.hooks:
            assert callable(getattr(Semantics, hook)), hook


def test_every_construct_module_is_listed_with_a_hook_or_a_reason() -> None:
    passed_on = {
        "AnnAssign",
        "Assign",
        "Delete",
        "Expr",
        "AsyncFor",
        "AsyncWith",
    }  # rewritten for what stands inside of them
    for node in CONSTRUCTS:
        row = LISTED[node.__name__]
        assert row.hooks or node.__name__ in passed_on, node


def test_every_hook_is_asked_by_some_construct() -> None:
    asked = {hook for row in ROWS for hook in row.hooks} | {"set_attr", "del_attr"}
    hooks = {name for name in vars(Semantics) if not name.startswith("_")}
    assert hooks == asked


def test_the_table_of_the_page_is_this_one() -> None:
    text = PAGE.read_text()
    assert text == with_table(text), f"run: python {Path(__file__).name}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
