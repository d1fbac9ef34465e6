"""The programs of the documentation run, and print what the pages say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import DOCS, blocks, mismatch, outputs, pages


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(DOCS).with_suffix("").as_posix())
def test_the_programs_of_a_page_print_what_it_shows(page: Path) -> None:
    differences = [mismatch(output) for output in outputs(page)]
    assert not any(differences), "python -m tests.docs.pages writes them anew:\n" + "\n".join(differences)


def test_blocks_of_a_page() -> None:
    page = '```python\nx = 1\n```\n\n<!-- not run -->\n```python\n...\n```\n```text title="Output"\n1\n```\n'
    assert [(block.kind, block.title, block.text) for block in blocks(page)] == [
        ("python", "", "x = 1\n"),
        ("text", "Output", "1\n"),
    ]
