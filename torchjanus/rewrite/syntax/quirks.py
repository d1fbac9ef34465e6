"""Differences of interpreters that rewritten code has to reproduce, found by the running compiler, not by version."""

from __future__ import annotations

import dis

__all__ = ["ITERATION_BLAMES_LOOP", "NESTED_TRUTH_ASKED_ONCE", "TRUTH_BLAMES_STATEMENT"]


def _column(source: str, operation: str) -> int:
    """Return the column of the first instruction of this kind."""
    for instruction in dis.get_instructions(compile(source, "<probe>", "exec", dont_inherit=True)):
        if instruction.opname.startswith(operation) and instruction.positions is not None:
            column = instruction.positions.col_offset
            return -1 if column is None else column
    return -1


def _truths(source: str) -> int:
    """Return how many instructions test a truth when ``source`` is run with a false value."""

    class False_:
        asked = 0

        def __bool__(self) -> bool:
            False_.asked += 1
            return False

    eval(compile(source, "<probe>", "eval", dont_inherit=True), {"a": False_(), "b": 1, "c": 2})
    return False_.asked


# ``for x in iterable``: an error in making the iterator is reported at the whole statement, or at the iterable.
ITERATION_BLAMES_LOOP = _column("for x in y: pass", "GET_ITER") == 0

# ``if x``: an error in testing x is reported at the statement (3.11), or at x. For a comparison, always at it.
TRUTH_BLAMES_STATEMENT = _column("if x: y", "POP_JUMP") == 0

# ``a and b or c``, with a false: whether the compiler jumps to c without testing a again.
NESTED_TRUTH_ASKED_ONCE = _truths("a and b or c") == 1
