"""Staging for users: ``stage``, ``staged`` and ``Rep``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchjanus.core.errors import NotStaged, Refusal, Refused, Unsupported
from torchjanus.core.kinds import isinstance
from torchjanus.core.reasons import reasons
from torchjanus.execute.backends.dynamo import executor_of
from torchjanus.execute.backends.exported import exported, onnx_model, run_exported, run_onnx
from torchjanus.execute.backends.expressions.cpp import compiled
from torchjanus.execute.backends.expressions.interpreter import interpret
from torchjanus.execute.backends.expressions.printing import expressions, held_tensors
from torchjanus.execute.backends.interpreter import interpreted, read_input
from torchjanus.runtime.staged_pieces import PieceReport, Pieces
from torchjanus.semantics.staged.marking import Stage, stage
from torchjanus.semantics.staged.programs import Program, stage_program
from torchjanus.semantics.staged.unknown.values import ListType, NumberType, ObjectType, Rep, TensorSpec
from torchjanus.tracegraph.graph import Graph
from torchjanus.tracegraph.text.printing import print_graph

__all__ = ["Rep", "Stage", "StagedGraph", "stage", "staged"]


def staged(fn: Callable[..., Any], *, backend: str | Callable[..., Any] = "replay") -> Callable[..., StagedGraph]:
    """Return a function that takes what is known of the arguments of ``fn``, and returns its graph.

    An argument that is a tensor stands for any tensor of its dtype and sizes; ``Rep`` says more of what is not known.
    Other arguments are what they are: the graph is made for them. Raises NotStaged where ``fn`` cannot be staged.
    ``backend``: what runs the graph. "replay" calls torch; "expressions" interprets the graph's S-expressions; "cpp"
    compiles these as C++; "export" and "onnx" run what ``exported()`` and ``onnx()`` give, without gradients. Raises
    Unsupported where a back end cannot run the graph. Any back end that ``speculate`` takes runs what is between the
    graph's control flow, once it has agreed with replay: "inductor", a name of ``torch._dynamo.list_backends()``, or a
    function that takes an FX graph and example inputs. Raises Unsupported if there is no such back end.

        >>> def power(x, n):
        ...     return x if n == 1 else x * power(x, n - 1)
        >>> cube = torchjanus.staged(power)(torch.ones(2), 3)
        >>> cube(torch.tensor([2.0, 3.0]), 3)
        tensor([ 8., 27.])
    """

    if backend not in BACKENDS:
        try:
            executor_of(backend)
        except Unsupported as error:
            raise Unsupported(f"{error} Staged functions also have {', '.join(map(repr, BACKENDS))}.") from None

    @functools.wraps(fn)
    def make(*args: Any, **kwargs: Any) -> StagedGraph:
        try:
            return StagedGraph(stage_program(_plain(fn), args, kwargs), backend)
        except Refused as error:
            raise NotStaged(_complete(error.refusal)) from error

    return make


def _complete(refusal: Refusal) -> Refusal:
    """Return a refusal that says why, and what to do: as the table of reasons does, if it does not say more itself."""
    known = reasons()[refusal.reason]
    return replace(refusal, why=refusal.why or known.title, remedy=refusal.remedy or known.remedy)


def _of_expressions(run: Callable[[str, list[torch.Tensor]], Callable[..., Any]]) -> Callable[[Graph], Run]:
    """Return a back end that is given a graph's S-expressions, and the tensors that these name."""

    def make(graph: Graph) -> Run:
        made = run(expressions(graph), held_tensors(graph))
        paths = [given.path for given in graph.inputs if given.path.step == "arg"]
        return lambda args, kwargs: made(*(read_input(path, args, kwargs) for path in paths))

    return make


Run = Callable[[tuple[Any, ...], dict[str, Any]], Any]
BACKENDS: dict[str, Callable[[Graph], Run]] = {
    "replay": interpreted,
    "expressions": _of_expressions(interpret),
    "cpp": _of_expressions(compiled),
    "export": run_exported,
    "onnx": run_onnx,
}


class StagedGraph:
    """A staged function: its graph, which can be called."""

    def __init__(self, program: Program, backend: str | Callable[..., Any] = "replay") -> None:
        self._program, self.backend = program, backend
        self._pieces = Pieces(backend)
        known = BACKENDS.get(backend) if isinstance(backend, str) else None
        self._run = interpreted(program.graph, self._pieces.compile) if known is None else known(program.graph)

    @property
    def graph(self) -> Graph:
        """The graph as a tree of nodes (see ``torchjanus.tracegraph``)."""
        return self._program.graph

    def text(self) -> str:
        """Return the graph's text form (see docs/staging.md)."""
        return print_graph(self.graph)

    def expressions(self) -> str:
        """Return the graph as S-expressions (see docs/staging.md). Raises Unsupported for what they have no words
        for."""
        return expressions(self.graph)

    def exported(self) -> torch.export.ExportedProgram:
        """Return the graph as a program of ``torch.export``, for inference (see docs/staging.md). Raises
        Unsupported."""
        return exported(self.graph)  # type: ignore[no-any-return]

    def onnx(self) -> Any:
        """Return the graph as an ``onnx.ModelProto``, for inference (see docs/staging.md). Raises Unsupported."""
        return onnx_model(self.graph)

    def pieces(self) -> list[PieceReport]:
        """Return what runs the pieces of the graph, where a back end for whole steps was asked for: the runs of
        operations between its control flow that have been met so far, and why one is not run by the back end. The rest
        of the graph is run node by node."""
        return self._pieces.report()

    def wait(self) -> None:
        """Return when nothing is being compiled. The next calls try what has been compiled."""
        self._pieces.wait()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the graph. Raises Unsupported for arguments for which it was not made."""
        given = self._program.given
        if len(args) != len(given.args) or kwargs.keys() != given.kwargs.keys():
            raise Unsupported(f"the graph was made for {len(given.args)} arguments and {sorted(given.kwargs)}")
        if torch.is_grad_enabled() is not self._program.grad:
            raise Unsupported("the graph was made in another grad mode: stage the function in the mode it is called in")
        sizes: dict[str, int] = {}
        for number, (type_, value) in enumerate(zip(given.args, args, strict=True)):
            _check(type_, value, f"argument {number}", sizes)
        for name, type_ in given.kwargs.items():
            _check(type_, kwargs[name], f"argument {name}", sizes)
        if self._program.asked_grad:
            _check_gradients((given.args, given.kwargs), (args, kwargs))
        return self._run(args, kwargs)


def _plain(fn: Any) -> Any:
    return fn if not isinstance(fn, Stage) else functools.partial(fn)


def _check(type_: Any, value: Any, what: str, sizes: dict[str, int]) -> None:
    """Raise Unsupported unless a value is of the type that an argument was staged for."""
    if isinstance(type_, Rep):
        _check_type(type_.type, value, what, sizes)
    elif type(type_) in (tuple, list):
        if type(value) is not type(type_) or len(value) != len(type_):
            raise Unsupported(f"{what} is {value!r}, not a {type(type_).__name__} of {len(type_)}")
        for number, (one, other) in enumerate(zip(type_, value, strict=True)):
            _check(one, other, f"{what}[{number}]", sizes)
    elif type(type_) is dict:
        if type(value) is not dict or value.keys() != type_.keys():
            raise Unsupported(f"{what} has not the keys {list(type_)}")
        for key, one in type_.items():
            _check(one, value[key], f"{what}[{key!r}]", sizes)
    elif type_ is not value and (type(type_) is not type(value) or not _equal(type_, value)):
        raise Unsupported(f"{what} is {value!r}; the graph was made for {type_!r}. Use Rep for what may differ.")


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # objects may answer as they like: of tensors, for each element
        return False


def _check_gradients(types: Any, values: Any) -> None:
    """Raise Unsupported unless the same tensors require gradients: the program has asked."""
    for type_, value in zip(pytree.tree_leaves(types), pytree.tree_leaves(values), strict=True):
        spec = type_.type if isinstance(type_, Rep) else None
        if isinstance(spec, TensorSpec) and value.requires_grad is not spec.requires_grad:
            raise Unsupported("the program asks which tensors require gradients: stage it with tensors like these")


def _check_type(type_: Any, value: Any, what: str, sizes: dict[str, int]) -> None:
    """Raise Unsupported unless an argument is of the type that the function was staged for. ``what`` names it;
    ``sizes``: the sizes with names that arguments before it have, which are added to."""
    match type_:
        case TensorSpec():
            fits = isinstance(value, torch.Tensor) and value.dtype is type_.dtype and value.ndim == len(type_.sizes)
            if not fits or str(value.device) != type_.device or value.is_conj() or value.is_neg():
                raise Unsupported(
                    f"{what} is no tensor {type_.dtype} of {len(type_.sizes)} dimensions on {type_.device}"
                )
            for wanted, size in zip(type_.sizes, value.shape, strict=True):
                known = sizes.setdefault(wanted, size) if isinstance(wanted, str) else wanted
                if known is not None and known != size:
                    raise Unsupported(f"{what} has a size {size} where the graph was made for {known}")
        case NumberType(kind):
            if type(value).__name__ != kind and not (kind == "number" and type(value) in (int, float, bool)):
                raise Unsupported(f"{what} is {value!r}, not a {kind}")
        case ObjectType():
            if not (value is None and type_.optional) and type_.cls is not type(value):
                raise Unsupported(f"{what} is a {type(value).__name__}, not a {type_.cls}")
        case ListType():
            if type(value) is not list:
                raise Unsupported(f"{what} is no list")
