"""Staged graphs for inference elsewhere: as a program of ``torch.export``, and as an ONNX model.

Both are made of the same module (see ``exporting``); ONNX by ``torch.onnx``, whose ``If`` and ``Loop`` are the graph's
switches and loops, also within each other. They compute without gradients.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from torchjanus.core.errors import JanusError, Unsupported
from torchjanus.core.kinds import isinstance
from torchjanus.execute.backends.exporting import Exportable
from torchjanus.execute.backends.interpreter import read_input
from torchjanus.execute.backends.number_tensors import DTYPES
from torchjanus.tracegraph.graph import Const, Dict, Graph, Operand, Ref, Sequence, TensorType, Value

__all__ = ["exported", "onnx_model", "run_exported", "run_onnx"]

Run = Callable[[tuple[Any, ...], dict[str, Any]], Any]
_OPTIONAL = {"onnx": "to make and check models", "onnxscript": "by which torch.onnx writes operators"}


def exported(graph: Graph, *, flat: bool = False) -> Any:
    """Return the graph as a ``torch.export.ExportedProgram``. It takes the arguments that are not known, in their
    order: tensors, and numbers as tensors of no dimensions (int64, float64, bool). ``flat``: it returns a tuple of
    tensors. Raises Unsupported."""
    module = Exportable(graph, flat)
    sizes = _Sizes()
    examples = tuple(sizes.example(one.value) for one in module.given)
    shapes = tuple(sizes.varying(one.value) for one in module.given)
    try:
        with torch.no_grad():
            made = torch.export.export(module, examples, dynamic_shapes=(shapes,) if examples else None, strict=False)
    except JanusError:
        raise
    except Exception as error:  # torch names what it cannot export by errors of many classes
        raise Unsupported(f"torch.export does not take the graph: {type(error).__name__}: {error}") from error
    return made


class _Sizes:
    """Sizes for example inputs: a number of its own for each that is not known."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def example(self, value: Value) -> Tensor:
        type_ = value.type
        if not isinstance(type_, TensorType):
            return torch.zeros((), dtype=DTYPES[type_])
        sizes = [self._number(one) for one in type_.sizes]
        return torch.zeros(sizes, dtype=getattr(torch, type_.dtype), device=type_.device)

    def _number(self, size: int | str) -> int:
        return size if isinstance(size, int) else self.known.setdefault(size, 5 + 2 * len(self.known))

    def varying(self, value: Value) -> dict[int, Any]:
        if not isinstance(value.type, TensorType):
            return {}
        return {dim: torch.export.Dim.DYNAMIC for dim, size in enumerate(value.type.sizes) if not isinstance(size, int)}


def run_exported(graph: Graph) -> Run:
    """Runs the exported program."""
    module = exported(graph, flat=True).module()
    return _around(graph, lambda values: module(*values))


def onnx_model(graph: Graph) -> Any:
    """Return the graph as an ``onnx.ModelProto``, its inputs as ``exported`` has them. Raises Unsupported, also where
    the packages that it takes are not installed."""
    for name, use in _OPTIONAL.items():
        _imported(name, use)
    program = exported(graph, flat=True)
    for module in program.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
                raise Unsupported(f"{node.target} draws random numbers: ONNX draws others than torch")
    exporter = importlib.import_module("torch.onnx")  # takes seconds
    try:
        with warnings.catch_warnings(), _subgraphs_of_one_version():
            warnings.simplefilter("ignore", FutureWarning)  # torch's exporter uses parts of torch that will go
            warnings.simplefilter("ignore", DeprecationWarning)
            return exporter.export(program, dynamo=True, verbose=False).model_proto
    except Exception as error:  # as above
        raise Unsupported(f"torch.onnx does not take the graph: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def _subgraphs_of_one_version() -> Iterator[None]:
    """Let torch 2.13 write switches within loops.

    Its calls of subgraphs have a version in loops and none in switches. It refuses models with both, since they seem to
    have two versions."""
    try:
        passes = importlib.import_module("torch.onnx._internal.exporter._ir_passes")
        imports = passes.add_opset_imports
    except (ImportError, AttributeError):  # of another version of torch
        yield
        return

    def of_one_version(model: Any) -> None:
        iterate = importlib.import_module("onnx_ir.traversal").RecursiveGraphIterator
        for graph in (model.graph, *model.functions.values()):
            for node in iterate(graph):
                if node.domain.startswith("pkg.torch.__subgraph__"):
                    node.version = None
        imports(model)

    vars(passes)["add_opset_imports"] = of_one_version
    try:
        yield
    finally:
        vars(passes)["add_opset_imports"] = imports


def _imported(name: str, use: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Unsupported(f"ONNX takes the package {name}, {use}: pip install 'torchjanus[onnx]'") from error


def run_onnx(graph: Graph) -> Run:
    """Runs the ONNX model: by onnxruntime if that is installed, else by the reference of ONNX."""
    model = onnx_model(graph)
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError:
        session = _imported("onnx.reference", "to run models").ReferenceEvaluator(model)
    else:
        session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [one.name for one in model.graph.input]

    def call(values: list[Tensor]) -> list[Tensor]:
        given = dict(zip(names, (one.detach().cpu().numpy() for one in values), strict=True))
        return list(map(torch.as_tensor, session.run(None, given)))

    return _around(graph, call)


def _around(graph: Graph, call: Callable[[list[Tensor]], list[Any]]) -> Run:
    """Calls with the arguments of the graph, and gives its result: numbers are numbers again."""
    given = [one for one in graph.inputs if one.path.step != "const"]
    result = graph.result or Const(None)

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        values: list[Tensor] = []
        for one in given:
            value = read_input(one.path, args, kwargs)
            if not isinstance(value, Tensor):
                value = torch.full((), value, dtype=DTYPES[str(one.value.type)])
            values.append(value)
        leaves = iter(call(values))
        return _filled(result, leaves)

    return run


def _filled(operand: Operand, leaves: Any) -> Any:
    """Return the result that an operand describes, of tensors in the order of its uses of values."""
    match operand:
        case Ref(value=value):
            found = next(leaves)
            return found if value.is_tensor else found.item()
        case Const(value=value):
            return value
        case Sequence(cls=cls, items=items):
            parts = [_filled(one, leaves) for one in items]
            return cls(*parts) if hasattr(cls, "_fields") else cls(parts)
        case Dict(items=pairs):
            return {_filled(key, leaves): _filled(one, leaves) for key, one in pairs}
    raise AssertionError(operand)
