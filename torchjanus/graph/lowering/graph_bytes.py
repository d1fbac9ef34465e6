"""Serialise a lowered graph, and make the text by which it is found again: everything on which lowering depends.

The text is made from a closed list of kinds of value. There is no text where a program holds anything else (an object
or an operator of the user, a replaced torch function), or runs under a mode of the user; then each process lowers the
program itself. Knows nothing of where bytes are kept.
"""

from __future__ import annotations

import pickle
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import typing_extensions
from torch._functorch import config, predispatch
from torch.backends import cuda, mha, mkldnn, opt_einsum

from torchjanus.core.errors import OWN_FOLDER, Place
from torchjanus.core.lazy import deferred
from torchjanus.graph.aten.symbolic_sizes import Symbolic
from torchjanus.graph.ir.graph_pickling import graph_bytes
from torchjanus.graph.ir.lowered import Lowered, Pullback
from torchjanus.graph.ir.program import Formula, Input, Measured, Node, Program, Ref, Slot, Symbol
from torchjanus.graph.lowering.function_bytes import graphs_of as own_graphs_of
from torchjanus.graph.lowering.function_bytes import own_calls, own_functions, pack_made_of, unpack_made_of
from torchjanus.graph.lowering.program_bytes import home_of, pack_program, standing, unpack_program
from torchjanus.graph.operators.loop_op import keys_in
from torchjanus.graph.recursion.cells.invoke import EntryCalls
from torchjanus.graph.recursion.variants.plan import Buffer, Column, Recursion, Reduction
from torchjanus.graph.recursion.variants.segments import CellFunction
from torchjanus.graph.regions.loop import Loop, TerminatedLoop
from torchjanus.graph.regions.loop_bytes import graphs_of, pack_iterations, trimmed, unpack_iterations
from torchjanus.graph.regions.switch import Switch
from torchjanus.graph.regions.switch_gradients import Flow, asking_of
from torchjanus.ops.namespaces import foreign_overrides
from torchjanus.trace.loops.records import TensorTermination
from torchjanus.trace.modes import Modes
from torchjanus.trace.user_code import MARKS
from torchjanus.trace.values import Apply, Expr

__all__ = ["keys_of", "pack_lowered", "ready_to_read", "signature", "unpack_lowered"]

pickling = deferred("torch.fx._graph_pickler")

_PLAIN = (type(None), bool, int, str, bytes, complex, type(Ellipsis))
_TORCH = (torch.dtype, torch.device, torch.memory_format, torch.layout)
_DATA = (Ref, Slot, Symbol, Measured, Modes, Place, TensorTermination, Buffer, Column, Reduction, *MARKS)
_DESCRIBED = (types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType)

# The folders of torch and of torchjanus.
_FOLDERS = (str(Path(torch.__file__).parent), OWN_FOLDER)
_TYPING = (typing.__file__, typing_extensions.__file__)  # torch decorates functions with these
_LRU = type(cache(abs))
# The modules whose classes have instances in torch's namespaces, besides functions.
_MAKERS = frozenset(
    """builtins torch pybind11_builtins typing typing_extensions abc _frozen_importlib _frozen_importlib_external
    _thread""".split()
)


class _Unknown(Exception):
    """The value has no text."""


def signature(program: Program) -> str | None:
    """Return a text that is equal for two programs only if they are lowered to the same graph, in any process with this
    version of torchjanus, PyTorch and Python on this processor. None where that is not certain.

    It leaves out the values of the slots in the watched runs: see ``unpack_lowered``.
    """
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        return None
    try:
        return "\n".join((*_surroundings(), *_of_program(program), *_of_own(program)))
    except _Unknown:
        return None


def _of_program(program: Program) -> Iterator[str]:
    storages: dict[int, int] = {}
    yield from (_of_input(entry, storages) for entry in program.inputs)
    yield from (f"{slot.type.__name__} {slot.name} {slot.stage}" for slot in program.slots)
    yield from (f"{one.expr} {one.hint} {one.slot} {one.few} {one.made}" for one in program.dimensions)
    yield from map(_of_node, program.nodes)
    yield from (_text((one.ref, one.expected, one.after)) for one in program.assertions)
    yield from (_text((one.after, one.outputs, one.begins)) for one in program.cuts)
    yield from (_text((one.ref, one.dim, one.after)) for one in program.measures)
    yield _text((program.outputs, program.output_after, program.leaves, program.escaping))


def _of_node(node: Node) -> str:
    merged = _text(node.args), _text(node.kwargs), node.outs, _text(node.modes), _text(node.place), node.layouts
    return f"{_function(node.func)}{merged}"


def _of_own(program: Program) -> Iterator[str]:
    """Yield what the functions made for the program compute, and which of them each call uses."""
    numbers = {id(own): number for number, own in enumerate(own_functions(program))}
    yield str([numbers[id(own)] for own in own_calls(program)])
    for own in own_functions(program):
        match own:
            case EntryCalls():
                yield _text((own.count, own.used, own.shown, own.tables))
                yield from _of_recursion(own.invocation.recursion)
            case Switch():
                yield str(own.results)
                for arm in own.arms:
                    yield _text(arm.answers)
                    yield from _of_program(arm.body)
            case Flow(flows=flows):
                yield _text((flows.matrix, sorted(flows.last), sorted(flows.each), own.asked))


def _of_recursion(recursion: Recursion) -> Iterator[str]:
    for tensor in recursion.shared:
        yield f"{tuple(tensor.size())} {tensor.stride()} {tensor.dtype} {tensor.device} {tensor.requires_grad}"
    for cell in recursion.cells:
        if not isinstance(cell.function, CellFunction):
            raise _Unknown
        yield _text((cell.name, cell.takes, cell.columns, cell.gives, cell.alone))
        yield _text((cell.function.shared, cell.function.takes, cell.function.columns, cell.function.gives))
        yield from map(_of_node, cell.function.nodes)
    others = (one.name for one in fields(recursion) if one.name not in ("shared", "cells"))
    yield _text(tuple(getattr(recursion, name) for name in others))


def _surroundings() -> Iterator[str]:
    """Yield the settings of torch on which lowering depends. Raises _Unknown where torch itself has been changed."""
    if not _is_untouched():
        raise _Unknown
    if foreign_overrides() - _batching_rules():
        raise _Unknown
    for device in ("cpu", "cuda"):
        yield f"{device} {torch.is_autocast_enabled(device)} {torch.get_autocast_dtype(device)}"
    settings = (
        torch.get_default_dtype(),
        torch.is_autocast_cache_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        torch.get_float32_matmul_precision(),
        torch.get_num_threads(),
        torch.backends.cpu.get_cpu_capability(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_anomaly_enabled(),
        torch._C._get_mkldnn_enabled(),
        torch._C._get_nnpack_enabled(),
        torch._C._get_cudnn_enabled(),
        torch._C._get_cudnn_benchmark(),
        torch._C._get_cudnn_deterministic(),
        mkldnn.deterministic,
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
        mha.get_fastpath_enabled(),
        opt_einsum.enabled,
        opt_einsum.strategy,
        opt_einsum.is_available(),
        torch.cuda.is_available(),
        config.get_hash(),
    )
    yield from map(repr, settings)


def _batching_rules() -> set[str]:
    """Return the kernels that torch.func.vmap overrides when it is first used."""
    library = getattr(predispatch, "VMAP_DECOMPOSITIONS_LIB", None)
    return set() if library is None else {*library._op_impls}


def _is_untouched() -> bool:
    """Whether the functions of torch are its own."""
    spaces = (torch, torch.nn.functional, torch.Tensor, torch.linalg, torch.special, torch.fft)
    return all(_is_own(value) for space in spaces for value in vars(space).values())


def _is_own(value: Any) -> bool:
    """Whether an object in torch's namespaces may be torch's own."""
    value = getattr(value, "__wrapped__", value) if type(value) is _LRU else value
    if type(value) is types.FunctionType:
        return value.__code__.co_filename.startswith((*_FOLDERS, "<string>", *_TYPING))
    if type(value) is types.BuiltinFunctionType:
        return (value.__module__ or "").partition(".")[0] == "torch"
    return type(value) is not types.MethodType and type(value).__module__.partition(".")[0] in _MAKERS


def _of_input(entry: Input, storages: dict[int, int]) -> str:
    tensor = entry.example
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        raise _Unknown
    # Which inputs share memory, and their layouts in it.
    number = storages.setdefault(tensor.untyped_storage()._cdata, len(storages))
    merged = (
        type(tensor).__name__, tuple(tensor.size()), tensor.stride(), tensor.storage_offset(), number,
        tensor.dtype, tensor.device, tensor.is_conj(), tensor.is_neg(), tensor.is_inference(),
        entry.requires_grad, entry.is_leaf, entry.grad, entry.name, entry.stage, entry.symbols, entry.strides,
    )  # fmt: skip
    return _text(merged)


def _text(value: Any) -> str:
    """Return the value as text; equal texts mean equal values. Raises _Unknown."""
    kind = type(value)
    if kind is float:
        return value.hex()  # type: ignore[no-any-return]
    if kind in _PLAIN:
        return repr(value)
    if kind in _TORCH:
        return str(value)
    if kind in (tuple, list, torch.Size):
        return f"{kind.__name__}({','.join(map(_text, value))})"
    if kind is dict:
        return f"dict({','.join(f'{_text(key)}:{_text(part)}' for key, part in value.items())})"
    if kind is slice:
        return f"slice({_text(value.start)},{_text(value.stop)},{_text(value.step)})"
    if kind is Formula:
        return f"Formula({_function(value.func)},{_text(value.args)})"
    if kind in _DATA:
        return f"{kind.__name__}({','.join(_text(getattr(value, one.name)) for one in fields(value))})"
    raise _Unknown


def _function(func: Any) -> str:
    """Return the name of a function in torch or torchjanus. Raises _Unknown for any other function."""
    if is_dataclass(func) and type(func) in MARKS:
        return _text(func)
    if isinstance(func, Loop):
        until = _text(func.go) if isinstance(func, TerminatedLoop) else ""
        body = "; ".join(_of_program(func.body))
        given = f"{func.carried},{func.stacked},{func.loose},{sorted(func.unseen)},{func.trains}"
        return f"{type(func).__name__}({given},{until},{body})"
    if isinstance(func, EntryCalls | Switch):  # see _of_own
        return type(func).__name__
    if (asking := asking_of(func)) is not None:
        return _text(asking[1:])
    kind, name = type(func), getattr(func, "__name__", "")
    if kind is torch._ops.OpOverload and func.namespace == "aten":
        return str(func)
    if kind is types.MethodWrapperType:  # like Tensor.grad.__set__
        return f"{_function(func.__self__)}.{name}"
    if kind in _DESCRIBED:
        return f"{_torch_class(func.__objclass__)}.{name}"
    if kind is types.BuiltinFunctionType:
        home = func.__self__
        if isinstance(home, types.ModuleType) and home.__name__.partition(".")[0] in (
            "torch",
            "builtins",
            "_operator",
            "math",
        ):
            return f"{home.__name__}.{name}"
        if isinstance(home, type):
            return f"{_torch_class(home)}.{name}"
        if getattr(torch._C._VariableFunctions, name, None) is func:  # its module is not recorded
            return f"torch.{name}"
    if kind is types.FunctionType and _found(func) is func and func.__code__.co_filename.startswith(_FOLDERS):
        return f"{func.__module__}.{func.__qualname__}"
    if kind is types.FunctionType and (place := home_of(func)) is not None:
        return f"{place[0].__name__}.{place[1]}"
    raise _Unknown


def _torch_class(home: type) -> str:
    if home.__module__.partition(".")[0] != "torch":
        raise _Unknown
    return f"{home.__module__}.{home.__qualname__}"


def _found(func: types.FunctionType) -> Any:
    """Return the object that is found under the function's qualified name."""
    place: Any = sys.modules.get(func.__module__)
    for name in func.__qualname__.split("."):
        place = getattr(place, name, None)
    return place


_KEPT = tuple(one.name for one in fields(Lowered) if one.name not in ("program", "graph", "pullback"))


def pack_lowered(lowered: Lowered, program: Program) -> bytes | None:
    """Return the graph that ``program`` was lowered to, with its loops rolled or not, and what was made of these. None
    where it contains more than can be packed."""
    own = own_functions(program)
    rolled, iterations, made = None, pack_iterations(lowered.program), pack_made_of(own)
    if iterations is None or made is None or not trimmed(lowered.graph):
        return None
    if lowered.program is not program:
        rolled = pack_program(replace(lowered.program, inputs=()), own)
        if rolled is None:
            return None
    graph = graph_bytes(lowered.graph)
    seen = [slot.seen[-1] for slot in program.slots] if lowered.pinned else []
    stands = {d.expr: s.expr for d, s in zip(program.dimensions, standing(program.dimensions), strict=True)}
    kept = {name: _exchanged(getattr(lowered, name), stands) for name in _KEPT}
    backward = None
    if lowered.pullback is not None:
        other = lowered.pullback.backward
        backward = pack_program(other.program), pack_lowered(other, other.program)
        if None in backward:
            return None
    return pickle.dumps((graph, seen, kept, rolled, iterations, made, backward))


def ready_to_read() -> None:
    """Import what ``unpack_lowered`` needs, which takes a second."""
    assert pickling.GraphPickler


def unpack_lowered(packed: bytes, program: Program) -> Lowered | None:
    """Return what a program with the same signature was lowered to. None where slots were specialised on other values.
    Its loops have the keys with which they were made, which nothing else may have (see loop_op). Loops that this
    process has already, for other paths, keep their keys."""
    graph, seen, kept, rolled, iterations, made, backward = pickle.loads(packed)
    if kept["pinned"] and repr(seen) != repr([slot.seen[-1] for slot in program.slots]):
        return None
    module = pickling.GraphPickler.loads(graph, Symbolic(program.dimensions).mode)
    assert isinstance(module, torch.fx.GraphModule)
    reads = {s.expr: d.expr for d, s in zip(program.dimensions, standing(program.dimensions), strict=True)}
    own = own_functions(program)
    if rolled is not None:
        other = unpack_program(rolled, own)
        program = replace(other, inputs=program.inputs, slots=program.slots, dimensions=program.dimensions)
    known = unpack_made_of(own, made) | unpack_iterations(program, iterations)
    found = Lowered(program=program, graph=module, **{name: _exchanged(part, reads) for name, part in kept.items()})
    if backward is not None:
        reverse = unpack_lowered(backward[1], unpack_program(backward[0]))
        assert reverse is not None
        assert found.saves is not None
        found = replace(found, pullback=Pullback(found.saves, reverse))
    for one in _graphs_of(found):
        for node, key in keys_in(one) if known else ():
            node.args = (known.get(key, key), *node.args[1:])
        one.recompile()
    return found


def keys_of(lowered: Lowered) -> list[int]:
    """Return the keys by which the graph, and the graphs that it runs, name loops and similar functions, in order."""
    return [key for graph in _graphs_of(lowered) for _, key in keys_in(graph)]


def _graphs_of(lowered: Lowered) -> Iterator[torch.fx.GraphModule]:
    yield lowered.graph
    yield from graphs_of(lowered.program)
    for own in own_functions(lowered.program):
        yield from own_graphs_of(own)


def _exchanged(value: Any, others: Mapping[Any, Any]) -> Any:
    """Return the value with some expressions replaced at any depth."""
    if not others:
        return value
    if isinstance(value, Expr):
        if value in others:
            return others[value]
        return Apply(value.func, _exchanged(value.args, others)) if isinstance(value, Apply) else value
    if isinstance(value, tuple):
        return tuple(_exchanged(part, others) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{one.name: _exchanged(getattr(value, one.name), others) for one in fields(value)})
    return value
