"""Calls compiled code by the extension module in which Inductor has put it, without Inductor.

For a CPU, and with Inductor's C++ wrapper, a compiled graph is one extension module whose function takes and returns
handles of tensors. What Inductor and AOTAutograd put around it does nothing more for most graphs than count the
versions of inputs that are changed. The process that compiles checks that (``extension_of``), since it has imported
Inductor anyway. The process that trains then needs neither Inductor, whose import takes half a second in which no
thread runs, nor the wrappers. Where more has to be done, torch loads the artifact (see ``loading``).
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import Any

import torch

from torchjanus.core.lazy import deferred
from torchjanus.execute.compiled.loading import entry_of, graph_of

__all__ = ["CompiledExtension", "Extension", "extension_of"]

inductor = deferred("torch._inductor")

_ENTRY = "inductor_entry_cpp"  # the function of the extension module
_ADDRESS = "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"  # read by the module when it is loaded

# What Inductor writes around the extension module, and what ``CompiledExtension`` does in its place: before PyTorch
# 2.14, and from then on, where an input may be an object of Python's (here none is).
_TENSORS = """
        input_tensors = [arg if isinstance(arg, torch.Tensor) else torch.tensor(arg, device='cpu') for arg in args]
        input_handles = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(input_tensors)
        args.clear()
        del input_tensors"""
_OBJECTS = """
        python_only_input_indices = set()
        input_tensors = []
        input_handle_positions = []
        input_handles = [None] * len(args)
        for idx, arg in enumerate(args):
            if idx in python_only_input_indices:
                continue
            input_handle_positions.append(idx)
            input_tensors.append(arg if isinstance(arg, torch.Tensor) else torch.tensor(arg, device='cpu'))
        packed_input_handles = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(input_tensors)
        for idx, handle in zip(input_handle_positions, packed_input_handles):
            input_handles[idx] = handle
        args.clear()
        del input_handle_positions
        del packed_input_handles
        del input_tensors"""
_CALL = """
        output_handles = f(input_handles)
        output_tensors = torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs(output_handles)
        return output_tensors
    return g
call = _wrap_func(inductor_entry)"""
_AROUND = tuple(
    ast.unparse(ast.parse(f"def _wrap_func(f):\n    def g(args):{taken}{_CALL}")) for taken in (_TENSORS, _OBJECTS)
)
# Functions that are written beside it, and that nothing calls.
_UNUSED = frozenset({"benchmark_compiled_module", "get_args"})
# The module of which the generated C++ asks for an operator that only Python has.
_PYTHON = "torch._inductor"


@dataclass(frozen=True, slots=True)
class Extension:
    """The extension module of a compiled graph. ``library``: the name of its file among those of the product;
    ``written``: positions of the inputs that it changes in place, whose versions are counted."""

    library: str
    written: tuple[int, ...]

    def load(self, files: Mapping[str, bytes]) -> CompiledExtension:
        """Return the compiled graph as a function. Raises KeyError, ImportError or OSError where the library cannot be
        loaded."""
        contents = files[self.library]
        # The name ends with what the module's own initialisation is named after.
        name = f"torchjanus_{hashlib.sha256(contents).hexdigest()}.{_ENTRY}"
        with tempfile.TemporaryDirectory(prefix="torchjanus-") as folder, _AddressInEnvironment():
            path = Path(folder) / "compiled.so"
            path.write_bytes(contents)
            path.chmod(0o700)
            loader = ExtensionFileLoader(name, str(path))
            spec = importlib.util.spec_from_file_location(name, path, loader=loader)
            if spec is None:
                raise ImportError(f"{self.library} is no extension module")
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
        return CompiledExtension(getattr(module, _ENTRY), self.written)


class _AddressInEnvironment:
    """While a module is loaded: the environment names the address of the function that reads a tensor's pointer."""

    def __enter__(self) -> None:
        self._before = os.environ.get(_ADDRESS)
        guards: Any = torch._C._dynamo.guards
        os.environ[_ADDRESS] = str(guards._torchinductor_pyobject_tensor_data_ptr)

    def __exit__(self, *_: object) -> None:
        if self._before is None:
            del os.environ[_ADDRESS]
        else:
            os.environ[_ADDRESS] = self._before


class CompiledExtension:
    """A compiled graph as a function of its inputs, which returns a list of tensors."""

    __slots__ = ("_entry", "_written")

    def __init__(self, entry: Any, written: tuple[int, ...]) -> None:
        self._entry, self._written = entry, written

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        if self._written:
            torch.autograd.graph.increment_version([inputs[position] for position in self._written])
        return self.bare([*inputs])

    def bare(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Run without counting versions. ``inputs`` is empty afterwards."""
        grad = torch.is_grad_enabled()
        if grad:
            torch._C._set_grad_enabled(False)
        try:
            handles = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(inputs)
            inputs.clear()
            made: list[torch.Tensor] = torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs(self._entry(handles))
        finally:
            if grad:
                torch._C._set_grad_enabled(True)
        return made


# ---- in the process that compiles ----


def extension_of(artifact: Any, saved: bytes, folder: Path) -> Extension | None:
    """Return the extension module of an artifact that this process has compiled, ``saved`` in Inductor's binary format;
    None if more than calling it has to be done, or if it is not known. ``folder``: that of Inductor's files."""
    entry = entry_of(saved)
    graph = graph_of(entry)
    if graph is None or not (_needs_nothing(entry) and _is_one_module(graph)):
        return None
    found = {module.__file__ for module in _modules(artifact)}
    if len(found) != 1 or (path := Path(found.pop() or "")).suffix != ".so" or not path.is_relative_to(folder):
        return None
    metadata = entry.runtime_metadata
    kept = entry.sanitized_aot_config.keep_inference_input_mutations
    written = metadata.mutated_graph_handled_indices_seen_by_autograd if kept else ()
    return Extension(str(path.relative_to(folder)), tuple(written))


def _needs_nothing(entry: Any) -> bool:
    """Whether AOTAutograd's wrappers pass on inputs and outputs as they are."""
    metadata = entry.runtime_metadata
    return (
        entry.compiled_bw is None
        and entry.maybe_subclass_meta is None
        and not entry.indices_of_inps_to_detach
        and not metadata.num_outputs_aliased
        and not metadata.num_intermediate_bases
        and not metadata.num_mutated_inp_runtime_indices
        and not metadata.is_rng_op_functionalized
        and not metadata.tokens
        and metadata.num_outputs == metadata.num_forward_returns
    )


def _is_one_module(graph: Any) -> bool:
    """Whether the compiled graph is an extension module for the CPU and nothing else."""
    if {*graph.device_types} != {"cpu"} or graph.constants or graph.inputs_to_check:
        return False
    around: list[ast.stmt] = []
    for node in ast.parse(graph.source_code).body:
        match node:
            case ast.Expr(ast.Constant()) | ast.Import() | ast.ImportFrom():
                pass
            case ast.FunctionDef(name=name) if name in _UNUSED:
                pass
            case ast.If(ast.Compare(ast.Name("__name__"))):
                pass
            case ast.Assign([ast.Name("cpp_wrapper_src")], ast.Constant(str() as text)) if _PYTHON not in text:
                pass
            case ast.Assign([ast.Name("inductor_entry")], ast.Call(keywords=keywords)) if _is_alone(keywords):
                pass
            case _:
                around.append(node)
    return ast.unparse(ast.Module(around, [])) in _AROUND


def _is_alone(keywords: list[ast.keyword]) -> bool:
    """Whether all code is in one library, by the arguments with which Inductor compiles it."""
    given = {one.arg: ast.unparse(one.value) for one in keywords}
    return given.get("kernel_code", "None") == "None" and given.get("extra_flags", "()") == "()"


def _modules(artifact: Any) -> Iterator[Any]:
    """Yield the extension modules that an artifact calls, below all wrappers."""
    reached, seen = [artifact], {id(artifact)}
    while reached:
        outer = reached.pop()
        if getattr(outer, "__name__", "") == _ENTRY and hasattr(outer, "__self__"):
            yield outer.__self__
            continue
        held = [*getattr(outer, "__dict__", {}).values()]
        for cell in getattr(outer, "__closure__", None) or ():
            try:
                held.append(cell.cell_contents)
            except ValueError:  # not filled yet
                continue
        for inner in held:
            if callable(inner) and not isinstance(inner, type) and id(inner) not in seen:
                seen.add(id(inner))
                reached.append(inner)
