"""MkDocs hook: documents of the repository's root become pages, and links out of docs/ lead somewhere in the site.

The documents stay readable as files: a page links to ``../ARCHITECTURE.md``, and this module turns that into a link to
the page that is made of it. A file that has no page (a source file) is named in place of the link.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
# Documents outside of docs/, by the page that is made of each.
PAGES = {
    "architecture/overview.md": "ARCHITECTURE.md",
    "contributing/changelog.md": "CHANGELOG.md",
    "contributing/rules.md": "CONTRIBUTING.md",
    "measurements.md": "benchmarks/RESULTS.md",
}
PICTURES = ("benchmarks/results/convergence.png",)

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_PICTURE = re.compile(r'(<img [^>]*src=")([^"]+)(")')
_FENCED = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages made of documents outside of docs/, and the pictures that these and others show."""
    for page, document in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / document).read_text()))
    for picture in PICTURES:
        files.append(File.generated(config, picture, abs_src_path=str(ROOT / picture)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """The text of a page, with links that the site can follow."""
    uri = page.file.src_uri
    document = ROOT / PAGES[uri] if uri in PAGES else DOCS / uri
    parts = _FENCED.split(markdown)
    parts[::2] = [_relinked(part, document, uri) for part in parts[::2]]
    return "".join(parts)


def _relinked(text: str, document: Path, uri: str) -> str:
    def link(match: re.Match[str]) -> str:
        mark, words, target, anchor = match.groups()
        if "://" in target:
            return match.group()
        path = _in_site(document, target)
        if path is None:
            # Words that are the file's name already need no second one.
            named = os.path.relpath((document.parent / target).resolve(), ROOT)
            return f"`{named}`" if words.strip("`") in (named, Path(named).name) else f"{words} (`{named}`)"
        return f"{mark}[{words}]({_relative(path, uri)}{anchor or ''})"

    def picture(match: re.Match[str]) -> str:
        path = _in_site(document, match.group(2))
        return match.group() if path is None else f"{match.group(1)}{_relative(path, uri)}{match.group(3)}"

    return _PICTURE.sub(picture, _LINK.sub(link, text))


def _in_site(document: Path, target: str) -> str | None:
    """The path, in the site, of the file to which a document links; None if it is not part of the site."""
    path = (document.parent / target).resolve()
    for page, source in PAGES.items():
        if path == ROOT / source:
            return page
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
    return name if name in PICTURES else None if path.exists() else target


def _relative(path: str, uri: str) -> str:
    return os.path.relpath(path, os.path.dirname(uri) or ".").replace(os.sep, "/")
