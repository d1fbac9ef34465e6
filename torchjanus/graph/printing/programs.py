"""A tensor program as text: inputs, numbers, sizes, calls under the lines of the user's file, and outputs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from torchjanus.graph.ir.program import Input, Program
from torchjanus.graph.printing.terms import Sources, call_text, function_name, tensor_type, type_text

__all__ = ["program_text"]


def program_text(program: Program) -> str:
    """Return the program, a call a line."""
    return "\n".join(_lines(program)) + "\n"


def _lines(program: Program) -> Iterator[str]:
    yield f"program: {len(program.nodes)} calls, {len(program.inputs)} inputs, {len(program.slots)} numbers"
    yield from _inputs(program)
    bodies: list[tuple[str, Program]] = []
    yield "calls"
    yield from _calls(program, bodies)
    yield "outputs"
    for position, (ref, after) in enumerate(zip(program.outputs, program.output_after, strict=True)):
        early = "" if after == len(program.nodes) else f"  as after {after} calls"
        fetched = "  only its numbers" if position in program.fetched else ""
        yield f"  {ref}{early}{fetched}"
    if program.leaves:
        yield f"gradients may change of {', '.join(map(str, program.leaves))}"
    for name, body in bodies:
        yield f"body of {name}"
        yield from (f"  {line}" for line in _lines(body))


def _inputs(program: Program) -> Iterator[str]:
    if program.inputs:
        yield "inputs"
    for number, entry in enumerate(program.inputs):
        leaf = " leaf" if entry.is_leaf and entry.requires_grad else ""
        grad = "" if entry.grad is None else f", its .grad is {entry.grad}"
        yield f"  %{number}: {_type_of(entry)}{leaf}  {entry.name}{grad}{_stage(entry.stage)}".rstrip()
    if program.slots:
        yield "numbers"
    for number, kind in enumerate(program.slots):
        seen = ", ".join(map(repr, kind.seen))
        yield f"  ${number}: {kind.type.__name__}, seen {seen}  {kind.name}{_stage(kind.stage)}".rstrip()
    if program.dimensions:
        yield "sizes that change"
    for number, dimension in enumerate(program.dimensions):
        made = "found by the graph" if dimension.made else str(dimension.expr)
        yield f"  s{number}: {dimension.hint} in the last run  {made}"


def _type_of(entry: Input) -> str:
    symbols = entry.symbols
    if not any(symbol is not None for symbol in symbols):
        return tensor_type(entry.example)
    known = zip(entry.example.shape, symbols, strict=True)
    sizes = (size if symbol is None else f"s{symbol}" for size, symbol in known)
    return f"{type_text(sizes, entry.example.dtype)}{' requires grad' if entry.requires_grad else ''}"


def _stage(stage: int) -> str:
    return f"  known after cut {stage}" if stage else ""


def _calls(program: Program, bodies: list[tuple[str, Program]]) -> Iterator[str]:
    sources, between = Sources(), _between(program)
    for position, node in enumerate(program.nodes):
        yield from between[position]
        yield from (f"  # {line}" for line in sources.heading(node.place))
        name = _name_of(node.func, bodies)
        yield f"    {call_text(map(str, node.outs), name, node.args, node.kwargs)}"
    yield from between[len(program.nodes)]


def _between(program: Program) -> dict[int, list[str]]:
    """Return what is done before the call with this number."""
    found: dict[int, list[str]] = defaultdict(list)
    for assertion in program.assertions:
        found[assertion.after].append(f"    assert bool({assertion.ref}) is {assertion.expected}")
    for cut in program.cuts:
        outputs = ", ".join(str(program.outputs[position]) for position in cut.outputs)
        found[cut.after].append(f"    cut: the host makes calls{' with ' + outputs if outputs else ''}")
    return found


def _name_of(func: Any, bodies: list[tuple[str, Program]]) -> str:
    """Return how the function is called here. Programs in it are added to ``bodies``."""
    body = getattr(func, "body", None)
    if isinstance(body, Program):
        name = f"{type(func).__name__.lower()}_{len(bodies)}"
        bodies.append((name, body))
        return name
    if type(func).__module__.startswith("torchjanus."):
        return getattr(func, "__name__", type(func).__name__.lower())
    return function_name(func)
