"""Liveness analysis of a function's local variables on its bytecode."""

from __future__ import annotations

import dis
import functools
from types import CodeType

from torchjanus.core.kinds import isinstance

__all__ = ["live_after"]

_ENDING = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})
_ALWAYS = frozenset({"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE"})


def live_after(code: CodeType, offset: int) -> frozenset[str]:
    """Return the variables that are live after the instruction at an offset. Cell and free variables always are."""
    following, before = _analysed(code)
    shared = frozenset((*code.co_cellvars, *code.co_freevars))
    return shared.union(*(before[target] for target in following.get(offset, before)))


@functools.lru_cache(maxsize=256)
def _analysed(code: CodeType) -> tuple[dict[int, list[int]], dict[int, frozenset[str]]]:
    """Return, by offset, the successors of each instruction and the variables that are live before it."""
    instructions = list(dis.get_instructions(code))
    reads: dict[int, set[str]] = {}
    writes: dict[int, set[str]] = {}
    following: dict[int, list[int]] = {}
    jumps = {*dis.hasjrel, *dis.hasjabs}
    for number, one in enumerate(instructions):
        reads[one.offset], writes[one.offset] = _accesses(one)
        found = []
        if one.opname not in _ENDING | _ALWAYS and number + 1 < len(instructions):
            found.append(instructions[number + 1].offset)
        if one.opcode in jumps:
            found.append(one.argval)
        following[one.offset] = found
    for entry in dis.Bytecode(code).exception_entries:  # type: ignore[attr-defined]
        for one in instructions:
            if entry.start <= one.offset < entry.end:
                following[one.offset].append(entry.target)
    before = {one.offset: frozenset(reads[one.offset]) for one in instructions}
    changed = True
    while changed:
        changed = False
        for one in reversed(instructions):
            after = frozenset[str]().union(*(before[target] for target in following[one.offset]))
            live = frozenset(reads[one.offset]) | (after - writes[one.offset])
            if live != before[one.offset]:
                before[one.offset], changed = live, True
    return following, before


def _accesses(one: dis.Instruction) -> tuple[set[str], set[str]]:
    """Return the variables that an instruction reads, and those that it only sets."""
    names = [name for name in (one.argval if isinstance(one.argval, tuple) else (one.argval,)) if isinstance(name, str)]
    match one.opname:
        case "STORE_FAST":
            return set(), set(names)
        case "STORE_FAST_STORE_FAST":
            return set(), set(names)
        case "STORE_FAST_LOAD_FAST" if len(names) == 2:
            return {names[1]} - {names[0]}, {names[0]}
    return (set(names), set()) if "FAST" in one.opname else (set(), set())
