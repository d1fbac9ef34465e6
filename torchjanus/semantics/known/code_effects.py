"""What a code object may do, by its instructions: the names that it looks up, and what it sets, imports and changes.

In: a code object. Out: its ``CodeEffects``, which include those of the functions that it makes.
"""

from __future__ import annotations

import dis
import functools
import types
from dataclasses import dataclass

from torchjanus.core.kinds import isinstance

__all__ = ["CHANGING", "CodeEffects", "code_effects"]


CHANGING = frozenset(
    """append appendleft extend extendleft insert remove pop popleft popitem clear update setdefault add discard sort
    reverse rotate move_to_end intersection_update difference_update symmetric_difference_update subtract put put_nowait
    fill itemset resize""".split()
)


@dataclass(frozen=True)
class CodeEffects:
    """What a code object does, by its instructions."""

    names: frozenset[str]  # attributes and variables that it looks up
    sets: frozenset[str]  # attributes that it sets or deletes
    variables: frozenset[str]  # global variables that it sets or deletes
    shared: frozenset[str]  # variables of enclosing functions that it sets or deletes
    imports: frozenset[str]  # modules that it imports
    items: bool  # it may change a container or a tensor


@functools.lru_cache(4096)
def code_effects(code: types.CodeType) -> CodeEffects:
    names, sets, variables, shared, imports = set(code.co_names), set[str](), set[str](), set[str](), set[str]()
    items = False
    for instruction in dis.get_instructions(code):
        match instruction.opname:
            case "STORE_ATTR" | "DELETE_ATTR":
                sets.add(instruction.argval)
            case "STORE_GLOBAL" | "DELETE_GLOBAL":
                variables.add(instruction.argval)
            case "STORE_DEREF" | "DELETE_DEREF" if instruction.argval in code.co_freevars:
                shared.add(instruction.argval)
            case "IMPORT_NAME":
                imports.add(instruction.argval)
            case "STORE_SUBSCR" | "DELETE_SUBSCR" | "STORE_SLICE":
                items = True
            case "BINARY_OP":
                items = items or instruction.argrepr.endswith("=")
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = code_effects(constant)
            names |= inner.names
            sets |= inner.sets
            variables |= inner.variables
            imports |= inner.imports
            shared |= inner.shared & set(code.co_freevars)
            items = items or inner.items
    items = items or any(name in CHANGING or (name.endswith("_") and name[-2:] != "__") for name in names)
    return CodeEffects(
        frozenset(names), frozenset(sets), frozenset(variables), frozenset(shared), frozenset(imports), items
    )
