"""All passes from a trace to an ATen graph, in the order in which they are run: one row each.

``torchjanus debug --list-passes`` prints the table. What an executor does to a graph afterwards is its own affair
(``torchjanus.execute``).
"""

from __future__ import annotations

from torchjanus.graph.aten.clean_up import CLEAN_UP
from torchjanus.graph.generalize.generalize import PROGRAM
from torchjanus.graph.generalize.selections import SELECTIONS
from torchjanus.graph.ir.passes import PassList
from torchjanus.graph.loops.rewrites.fold import FOLDING, LOOP_OPERANDS, LOOPS
from torchjanus.graph.loops.roll.roll import ROLLING
from torchjanus.graph.lowering.lower import FINISHING, LOWERING
from torchjanus.graph.recursion.entry_loops.loops import RECURSION
from torchjanus.graph.recursion.grouping.grouping import CALL_GROUPS
from torchjanus.graph.switches.rewrites.fold import SWITCH_OPERANDS, SWITCHES

__all__ = ["PASSES", "passes_table"]

PASSES: tuple[PassList, ...] = (
    RECURSION,
    SWITCH_OPERANDS,
    SWITCHES,
    LOOP_OPERANDS,
    LOOPS,
    FOLDING,
    SELECTIONS,
    PROGRAM,
    CALL_GROUPS,
    ROLLING,
    LOWERING,
    CLEAN_UP,
    FINISHING,
)


def passes_table() -> str:
    """Return the passes as a table in Markdown."""
    lines = ["| part | pass | from -> to | what it does | where |", "|---|---|---|---|---|"]
    for passes in PASSES:
        for one in passes.passes:
            where = one.where.replace(".", "/") + ".py"
            lines.append(f"| {passes.title} | `{one.name}` | {one.stage.value} | {one.line} | `{where}` |")
    return "\n".join(lines) + "\n"
