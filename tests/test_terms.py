"""Standard terms everywhere: no word of our own that docs/glossary.md replaces, in names, prose or messages."""

from __future__ import annotations

import re

import pytest

from tests import terms


def test_no_replaced_word_is_used() -> None:
    assert [str(use) for use in terms.uses()] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The rounds of a loop", ["The rounds", "rounds of"]),
        ("A kernel rounds differently, and numbers are rounded", []),
        ("a round trip, ``told`` and `every round`", []),
        ("what one iteration hands on to the next", ["hands on"]),
        ("Loops are told once", ["told"]),
    ],
)
def test_words_of_prose(text: str, words: list[str]) -> None:
    assert sorted(word for word, _ in terms.prose(text)) == sorted(words)


def test_names_are_checked_where_they_are_defined() -> None:
    source = "import random\n\ndef in_each_round(told_once):\n    Telling = round(random.choice(told_once))\n"
    defined = [name for name, _ in terms.definitions(terms.ast.parse(source))]
    found = [name for name in defined for _ in terms.named(name, True)]
    assert sorted(found) == ["Telling", "in_each_round", "told_once"]


def test_the_glossary_has_a_line_for_each_term() -> None:
    """Terms in alphabetical order, each with a meaning and a place that exists."""
    lines = (terms.ROOT / "docs" / "glossary.md").read_text().splitlines()
    rows = [re.split(r" *\| *", line)[1:-1] for line in lines if line.startswith("| ")][1:]
    assert len(rows) > 40
    assert all(len(row) == 3 and all(row) for row in rows)
    names = [row[0].rstrip("*").casefold() for row in rows]
    assert names == sorted(names)
    for where in (place for row in rows for place in re.findall(r"`([^`]+)`", row[2])):
        path = terms.ROOT / "torchjanus" / where
        assert path.is_dir() or path.with_suffix(".py").exists(), where
