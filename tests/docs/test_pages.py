"""The programs of the documentation run, and print what the pages say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.tools import plots
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


@pytest.mark.parametrize("page", sorted((DOCS / "architecture").glob("*.md")), ids=lambda page: page.stem)
def test_names_of_the_architecture_are_where_it_says(page: Path) -> None:
    for name, path in re.findall(r"^\| `(\w+)` \| `(torchjanus/[\w/.]+)` \|", page.read_text(), re.MULTILINE):
        source = (DOCS.parent / path).read_text()
        defined = rf"^ *(?:def|class) {name}\b|^ *{name}\b *[:=]"
        assert re.search(defined, source, re.MULTILINE), f"{name} is not in {path}"


@pytest.mark.parametrize("name", plots.PLOTS)
def test_plots_show_the_records(name: str) -> None:
    picture = (DOCS / "pictures" / f"{name}.svg").read_text()
    assert f"numbers {plots.digest(name)}" in picture, "python docs/tools/plots.py draws it anew"


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.relative_to(DOCS).as_posix())
def test_pictures_are_there(page: Path) -> None:
    for picture in re.findall(r'<img [^>]*src="([^"]+)"', page.read_text()):
        assert (page.parent / picture).exists(), picture


def test_each_page_is_in_a_menu() -> None:
    menus = (DOCS.parent / "mkdocs.yml").read_text().partition("\nnav:\n")[2].split()
    assert [page for page in DOCS.rglob("*.md") if page.relative_to(DOCS).as_posix() not in menus] == []
