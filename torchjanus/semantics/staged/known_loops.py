"""Loops over what is known while a program is staged: their iterations are run, and are parts of the graph.

An iteration that a staged value may end has what follows it, the other iterations included, in one arm of a switch. So
the elements of a loop can be asked for again: arms are run again where they turn out to leave lists of other lengths.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch

from torchjanus.core.kinds import isinstance
from torchjanus.rewrite.hooks.lifted import BREAK, CONTINUE, RETURN, Exit, cells_of
from torchjanus.semantics.staged.regions import Part, Regions
from torchjanus.semantics.staged.unknown.journal import Journal
from torchjanus.semantics.staged.unknown.places import Elements
from torchjanus.semantics.staged.unknown.values import StagedValue
from torchjanus.tracegraph.graph import Block

__all__ = ["KnownLoops"]


class KnownLoops(Regions):
    """Loops of which no staged value says how long they are."""

    def iteration(self, test: Part, body: Part) -> tuple[bool | None, Any]:
        """Run the test of a ``while`` and, if it is known to hold, one iteration: what was decided, and how the
        iteration was left. None, and nothing has happened, if a staged value decides whether there is another one."""
        variables = cells_of(test, body)
        block, journal, site = Block(), Journal(), self.site
        for cell in variables.values():
            journal.note(cell)
        self.journals.append(journal)
        decided: Any = None
        left = None
        try:
            with self.builder.block(block):
                decided = test()
                if not isinstance(decided, torch.Tensor | StagedValue):
                    decided = bool(decided)
                    left = body() if decided else None
        finally:
            self.journals.pop()
        for obj, _ in journal.before.values():
            if self.journals:
                self.journals[-1].note(obj)
        if isinstance(decided, torch.Tensor | StagedValue) or (left is not None and left.only is None):
            journal.take_back()
            self.site = site
            return None, None
        self.builder.blocks[-1].nodes += block.nodes
        return decided, left

    def iterations(self, elements: Elements, body: Callable[[Any], Any], orelse: Part | None, begin: int = 0) -> Any:
        """A ``for`` whose elements are known: each iteration is run, from the one at ``begin`` on. What follows an
        iteration that may be the last may be run again."""
        while (found := elements.at(begin)) is not None:
            begin += 1
            self.advanced += not elements.are_plain
            left = body(found[0])
            if left is None or left.kinds <= {0, CONTINUE}:
                continue
            if left.only == BREAK:
                return None
            if left.only == RETURN:
                return left
            left = self.without_continue(left)
            if 0 not in left.kinds:
                return self.without_break(left)
            goes_on = functools.partial(self.iterations, elements, body, orelse, begin)
            return self.without_break(self.after(left, lambda go=goes_on: go(), (body, orelse)))  # type: ignore[misc]
        return orelse() if orelse is not None else None

    def without_continue(self, left: Exit) -> Exit:
        """How the rest of the loop is left if an iteration is left so."""
        if CONTINUE not in left.kinds:
            return left
        return Exit(
            (left.kinds - {CONTINUE}) | {0}, left.value, self.compute(operator.and_, (left.flag, BREAK | RETURN))
        )

    def without_break(self, left: Exit | None) -> Exit | None:
        """How a loop is left whose rounds are left so."""
        if left is None or BREAK not in left.kinds:
            return left
        if RETURN not in left.kinds:
            return None
        kinds = (left.kinds - {BREAK}) | {0}
        return Exit(kinds, left.value, self.compute(operator.and_, (left.flag, RETURN)))
