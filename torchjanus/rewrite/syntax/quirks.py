"""Where interpreters differ in what rewritten code has to imitate. Asked of the running compiler, not of version
numbers."""

from __future__ import annotations

import dis

__all__ = ["ITERATION_BLAMES_LOOP", "NESTED_TRUTH_ASKED_ONCE", "TRUTH_BLAMES_STATEMENT"]


def _column(source: str, operation: str) -> int:
    """The column that the first instruction of this kind is blamed on."""
    for instruction in dis.get_instructions(compile(source, "<probe>", "exec", dont_inherit=True)):
        if instruction.opname.startswith(operation) and instruction.positions is not None:
            column = instruction.positions.col_offset
            return -1 if column is None else column
    return -1


def _truths(source: str) -> int:
    """How many instructions ask for a truth when ``source`` is run with a value that is false."""

    class False_:
        asked = 0

        def __bool__(self) -> bool:
            False_.asked += 1
            return False

    eval(compile(source, "<probe>", "eval", dont_inherit=True), {"a": False_(), "b": 1, "c": 2})
    return False_.asked


# ``for x in iterable``: an error in making the iterator is blamed on the whole statement, or on the iterable.
ITERATION_BLAMES_LOOP = _column("for x in y: pass", "GET_ITER") == 0

# ``if x``: an error in asking x for its truth is blamed on the statement (3.11), or on x. With a comparison, always
# on it.
TRUTH_BLAMES_STATEMENT = _column("if x: y", "POP_JUMP") == 0

# ``a and b or c``, a false: whether the compiler jumps on to c without asking a again.
NESTED_TRUTH_ASKED_ONCE = _truths("a and b or c") == 1
