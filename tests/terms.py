"""The words of our own that docs/glossary.md replaces by standard terms, and where they are still used.

A name is checked where it is defined, so names of other libraries (``round``, ``random.choice``) are not. Prose is
checked without what it quotes in backticks.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_PIECE = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")

# Words of our own and the standard term for each: neither in names nor in prose.
REPLACED = {
    "told": "merged, reported, distinguished",
    "untold": "unrolled",
    "telling": "merging",
    "teller": "merger",
    "vain": "speculative, wasted",
    "reckon": "compute",
    "reckons": "computes",
    "reckoned": "computed; recurrence",
    "reckoning": "recurrence",
    "grove": "call group",
    "groves": "call groups",
    "planting": "call grouping",
    "repertoire": "variant table",
    "recogniser": "matcher",
    "manieth": "index",
    "midst": "middle",
    "kin": "related",
    "unfit": "not suited; refused",
}
# Words with an honest meaning in prose ("a kernel rounds differently"): not in names of our own.
REPLACED_IN_NAMES = {
    "round": "iteration, repetition",
    "rounds": "iterations, repetitions",
    "handed": "loop-carried, passed",
}
# Words with an honest meaning in tests ("both ways", ``random.choices``): not in names of the package.
REPLACED_IN_PACKAGE = {
    "ways": "arms, variants, paths",
    "halves": "partition",
    "turned": "reverse",
    "choice": "switch, selection",
    "choices": "switches, selections",
    "origin": "access path",
    "origins": "access paths",
    "chooser": "runner of a switch",
    "story": "event log",
    "speaking": "rewriter",
    "patience": "learning policy",
    "lying": "layout, alias",
    "plains": "untraced computations",
    "takers": "consumers, users",
    "turning": "loop test, varying",
    "thawing": "requires_grad",
}
# The same words in prose where they mean a thing of ours.
PHRASES = {
    r"\b(?:a|the|each|every|per|first|last|next|one|two|three|many|few|\d+|of) rounds?\b(?! trip| number)": "iteration",
    r"\brounds? (?:of|that|in which)\b": "iteration of",
    r"\bways through\b": "paths through, variants of, arms of",
    r"\bhand(?:s|ed|ing)? on\b": "carry, pass",
    r"\bspo?ea?ks? of\b|\bspoken of\b": "refer to",
    r"\bhow[- ]manieth\b": "index",
}
# Names that stand for another meaning in the package than in quoted code of other projects.
_OPERATORS = {"rounds_complex", "rounds_number"}  # properties of operators: they round numbers
# A file with none of these needs no closer look.
_WORDS = {*REPLACED, *REPLACED_IN_NAMES, *REPLACED_IN_PACKAGE, "hand", "hands", "handing", "speak", "speaks", "spoken"}


@dataclass(frozen=True)
class Use:
    """One use of a replaced word."""

    file: str
    line: int
    word: str
    term: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.word}: say {self.term}"


@cache
def files() -> tuple[str, ...]:
    """The files of the repository that people read, generated ones and foreign texts left out."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(
        name
        for name in listed.splitlines()
        if name.endswith((".py", ".md", ".toml", ".yml")) or name == "Makefile"
        if not name.startswith("tests/rewrite/corpus/") and name != "tests/terms.py"
    )


def pieces(name: str) -> Iterator[str]:
    """The words of a name, in lower case."""
    for word in _PIECE.findall(name):
        yield word.lower()


def definitions(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The names that a module defines, each with its line: functions, classes, parameters, variables and attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.arg(arg=name):
                yield name, node.lineno
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield name, node.lineno  # type: ignore[attr-defined]


def texts(source: str, tree: ast.AST, all_strings: bool) -> Iterator[tuple[str, int]]:
    """The comments and docstrings of a module, line by line; with ``all_strings`` its other strings too."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string, token.start[0]
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr):
            docstrings.add(id(node.body[0].value))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and (all_strings or id(node) in docstrings):
            for number, line in enumerate(node.value.splitlines()):
                yield line, node.lineno + number


def prose(text: str) -> Iterator[tuple[str, str]]:
    """The replaced words of one line of prose, each with the standard term."""
    plain = re.sub(r"``[^`]*``|`[^`]*`|https?://\S+|\]\([^)]*\)", " ", text)
    for word in re.findall(r"[A-Za-z]+", plain):
        if word.lower() in REPLACED:
            yield word, REPLACED[word.lower()]
    for pattern, term in PHRASES.items():
        for found in re.findall(pattern, plain, re.IGNORECASE):
            yield found, term


def named(name: str, in_package: bool) -> Iterator[tuple[str, str]]:
    """The replaced words of a name, each with the standard term."""
    if name not in _OPERATORS and not name.startswith("__"):
        for word in pieces(name):
            term = REPLACED.get(word) or REPLACED_IN_NAMES.get(word)
            if term is None and in_package:
                term = REPLACED_IN_PACKAGE.get(word)
            if term is not None:
                yield name, term


def uses_in(name: str) -> Iterator[Use]:
    """The replaced words in one file, its own name included."""
    in_package = name.startswith("torchjanus/")
    for word, term in named(Path(name).stem, in_package):
        yield Use(name, 0, word, term)
    source = (ROOT / name).read_text()
    if _WORDS.isdisjoint(word.lower() for word in set(_PIECE.findall(source))):
        return
    if not name.endswith(".py"):
        for number, line in enumerate(source.splitlines(), 1):
            for word, term in prose(line):
                yield Use(name, number, word, term)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # programs that are odd on purpose
        tree = ast.parse(source)
    for defined, line_number in definitions(tree):
        for word, term in named(defined, in_package):
            yield Use(name, line_number, word, term)
    for text, line_number in texts(source, tree, in_package):
        for word, term in prose(text):
            yield Use(name, line_number, word, term)


def uses() -> list[Use]:
    """All uses of replaced words in the repository."""
    return [use for name in files() for use in uses_in(name)]


if __name__ == "__main__":
    for use in uses():
        print(use)
