"""Whole made-up programs about the object model: parts of a few kinds, used by one step, read by one tensor.

What the step reads becomes factors of its result, so that whatever is read late, early or twice shows in it. Programs
are deterministic, and small: they are about Python, not about graphs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.fuzz.choices import Choices, RandomChoices
from tests.fuzz.kinds import attributes, classes, containers, effects, libraries
from tests.fuzz.kinds.piece import Kind, Lines, Piece

__all__ = ["object_sources"]

CALLS = 10
NAME = "fuzzed"
KINDS: tuple[tuple[int, Kind], ...] = tuple(
    (weight * 4, kind) for part in (classes, attributes, containers, effects) for weight, kind in part.KINDS
) + tuple((weight, kind) for weight, kind in libraries.KINDS)

IMPORTS = """
import abc
import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import itertools
import logging
import operator
import pickle
import sys
import threading
import types
import warnings

import numpy as np
import torch

from tests.programs.harness import Call, Program, program
"""
LIBRARIES = {
    "graphs": "import networkx as nx",
    "learners": "import sklearn.metrics\nimport sklearn.preprocessing",
    "frames": "import pandas as pd",
    "words": "import nltk",
}


def indented(lines: Lines) -> Lines:
    return ["    " + line for line in lines]


def assigned(text: str) -> set[str]:
    """The variables that statements assign; those of a comprehension are its own."""
    nodes = list(ast.walk(ast.parse(text)))
    own = {id(part) for node in nodes if isinstance(node, ast.comprehension) for part in ast.walk(node.target)}
    return {node.id for node in nodes if isinstance(node, ast.Name) and _is_stored(node) and id(node) not in own}


def _is_stored(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


class ObjectWriter:
    """Writes one program."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.kinds: list[str] = []

    def module(self) -> str:
        c = self.choices
        pieces = []
        for number in range(c.weighted([(3, 1), (4, 2), (2, 3)])):
            kind = c.weighted(KINDS)
            self.kinds.append(kind.__name__)
            pieces.append(kind(c, number))
        imports = IMPORTS.strip("\n").split("\n")
        imports += [LIBRARIES[kind] for kind in dict.fromkeys(self.kinds) if kind in LIBRARIES]
        lines = [*imports]
        for piece in pieces:
            lines += ["", "", *piece.outside.strip("\n").split("\n")] if piece.outside else []
        lines += ["", "", "@program()", f"def {NAME}():", *indented(self.body(pieces))]
        return "\n".join(line.rstrip() for line in "\n".join(lines).split("\n")) + "\n"

    def body(self, pieces: list[Piece]) -> Lines:
        c = self.choices
        before = "\n".join(piece.before.strip("\n") for piece in pieces)
        step: Lines = []
        if c.chance(50):
            step.append(f"x = x * {self.number(pieces)}")
        for _ in range(c.between(1, 5)):
            step += self.statement(pieces, 0)
        for _ in range(c.between(1, 3)):
            step.append(f"x = x {c.pick(('*', '+'))} {self.number(pieces)}")
        step.append(c.pick(("return x + total", f"return x, total, {self.number(pieces)}", "return x * 2, total")))
        changes = self.changes(pieces)
        shared = assigned(before)
        lines = [*before.split("\n"), "", "def step(x, k=1.0):"]
        rebound = sorted(shared & assigned("\n".join(step)))
        lines += indented([*([f"nonlocal {', '.join(rebound)}"] if rebound else []), "total = k", *step])
        times = []
        for number, change in changes.items():
            rebound = sorted(shared & assigned("\n".join(change)))
            lines += ["", f"def change{number}():"]
            lines += indented([*([f"nonlocal {', '.join(rebound)}"] if rebound else []), *change])
            times.append(f"{number}: change{number}")
        state = [part for piece in pieces for part in piece.state]
        plain = ", ".join(part for part in state if not part.startswith("lambda"))
        counts = ", ".join(f"({part})()" for part in state if part.startswith("lambda"))
        kept = f"[{', '.join(part for part in (plain, counts) if part)}]"
        numbers = ["1.0"] * CALLS
        if c.chance(25):
            for place in range(4, CALLS):
                numbers[place] = c.pick(("1.0", "2.0", "0.5"))
        calls = [f"    Call(torch.linspace(-1, 1, 4) + {i}.0, {k})," for i, k in enumerate(numbers)]
        lines += ["", "calls = [", *calls, "]"]
        return [*lines, f"return Program(step, calls, before={{{', '.join(times)}}}, state=(lambda: {kept},))"]

    def number(self, pieces: list[Piece]) -> str:
        c = self.choices
        text = c.pick(c.pick(pieces).numbers)
        return c.weighted([(4, text), (1, f"({text} + {c.pick(c.pick(pieces).numbers)})"), (1, f"({text} * 0.5)")])

    def action(self, pieces: list[Piece]) -> Lines:
        return self.choices.pick(self.choices.pick(pieces).actions).split("\n")

    def statement(self, pieces: list[Piece], depth: int) -> Lines:
        c = self.choices
        form = c.weighted(
            [
                (8, "plain"),
                (3, "read"),
                (2 * (depth < 2), "if"),
                (1 * (depth < 2), "for"),
                (1 * (depth < 2), "try"),
                (1, "tensor"),
            ]
        )
        if form == "plain":
            return self.action(pieces)
        if form == "read":
            return [f"total = 0.5 * total + {self.number(pieces)}"]
        if form == "tensor":
            return [f"x = torch.tanh(x) + {self.number(pieces)}"]
        inside = self.statement(pieces, depth + 1)
        if c.chance(40):
            inside += self.statement(pieces, depth + 1)
        if form == "if":
            test = c.pick((f"{self.number(pieces)} > {c.between(0, 3)}", "k > 1", f"x.sum() < {c.pick((100, 5))}"))
            lines = [f"if {test}:", *indented(inside)]
            return lines + (["else:", *indented(self.action(pieces))] if c.chance(40) else [])
        if form == "for":
            return [f"for _ in range({c.between(1, 3)}):", *indented(inside)]
        return [
            "try:",
            *indented(inside),
            "except Exception as error:",
            "    print('caught', type(error).__name__, error)",
        ]

    def changes(self, pieces: list[Piece]) -> dict[int, Lines]:
        """What happens between the calls, by the number of the call that comes next."""
        c = self.choices
        made: dict[int, Lines] = {}
        for _ in range(c.weighted([(3, 0), (3, 1), (2, 2)])):
            made.setdefault(c.between(4, CALLS - 1), []).append(c.pick(c.pick(pieces).changes))
        return made


def object_sources(count: int, seed: int) -> Iterator[str]:
    """The texts of made-up programs about the object model."""
    for number in range(count):
        yield ObjectWriter(RandomChoices(seed * 1_000_000 + number)).module()
