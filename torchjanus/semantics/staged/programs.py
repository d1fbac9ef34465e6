"""Stages a function: its graph, for arguments of which some are not known, and the graph functions that it calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch

from torchjanus.core.errors import Place, Refused, refused
from torchjanus.core.kinds import isinstance
from torchjanus.rewrite.hooks import using
from torchjanus.rewrite.hooks.lifted import lifted_form
from torchjanus.rewrite.syntax.sites import Site
from torchjanus.semantics.protocols.virtualize import underlying
from torchjanus.semantics.staged.builder import Builder
from torchjanus.semantics.staged.loops import Loops
from torchjanus.semantics.staged.merging import same_type
from torchjanus.semantics.staged.semantics import Staged
from torchjanus.semantics.staged.staging import Recording
from torchjanus.semantics.staged.tidying import tidy
from torchjanus.semantics.staged.unknown.journal import changed, contents_of, snapshot
from torchjanus.semantics.staged.unknown.values import (
    Pending,
    Poison,
    Rep,
    StagedList,
    StagedValue,
    is_staged,
    staged_parts,
)
from torchjanus.tracegraph.graph import Const, Graph, Input, Path, Sequence
from torchjanus.tracegraph.verify import Broken, verify

__all__ = ["Given", "GraphFunction", "Program", "stage_program"]

_MOST_TRIED = 4  # times that a recursive function is staged until the type of its result stays


@dataclass
class Given:
    """What the arguments of a staged function are: types of those not known, the others themselves."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass
class Program:
    """A staged function. ``grad``: whether autograd was on; ``asked_grad``: whether it asks what requires gradients."""

    graph: Graph
    given: Given
    grad: bool
    asked_grad: bool


class GraphFunction:
    """A function whose calls stay calls in the graph."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn


@dataclass
class _Definition:
    """One graph function for arguments of some types. ``result``: like what it returns, None while that is not known;
    ``made``: the graph, once it is there."""

    name: str
    result: Any = None
    is_known: bool = False
    made: Graph | None = None
    is_begun: bool = False


def stage_program(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Program:
    """Run ``fn`` on values like these. Raises Refused where it cannot be staged."""
    return _Making(fn).whole(args, kwargs)


class _Making:
    """Stages one function: runs it on staged values, and adds graph functions for calls that stay calls."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.target, self.leading = underlying(fn.forward if isinstance(fn, torch.nn.Module) else fn)
        self.staging = Loops(getattr(self.target, "__name__", "staged"))
        self.definitions: dict[Any, _Definition] = {}
        self.kept: list[Any] = []
        self.pending = 0  # calls whose results were not known

    def whole(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Program:
        """Return the program of the function for arguments like these. Raises Refused where it cannot be staged."""
        staging = self.staging
        given = self._given(args, kwargs)
        values = [self._input(type_, Path("arg", None, Const(n))) for n, type_ in enumerate(given.args)]
        named = {name: self._input(type_, Path("kwarg", None, Const(name))) for name, type_ in given.kwargs.items()}
        cells = tuple(self.target.__closure__ or ())
        roots = (*args, *kwargs.values(), *values, *named.values(), *self.leading, *cells)
        semantics = Staged(staging, roots, self._applied)
        before, dtype = snapshot(roots), torch.get_default_dtype()
        code = self.target.__code__
        try:
            with torch.enable_grad() if staging.grad else torch.no_grad():
                result = self._run(semantics, self.target, (*self.leading, *values), named)
            graph = staging.builder.graph
            graph.result = self._result(result)
            other = changed(before)
            if other is None:
                other = changed(semantics.met)
            if semantics.refused is not None:
                raise semantics.refused
            if other is not None or torch.get_default_dtype() is not dtype:
                raise refused(
                    "staged-mutation", f"a {type(other).__name__} from before the call is changed while it is staged",
                    "Code that is not staged (native code, a property, a class) changes it: once, not in each call.",
                    "Return what changes.",
                )  # fmt: skip
            graph.functions = [one.made for one in self.definitions.values() if one.made is not None]
            return Program(self._checked(graph), given, staging.grad, staging.asked_grad)
        except Refused as error:
            raise error.at(Place(code.co_filename, code.co_firstlineno, 0, code.co_qualname)) from error
        except Exception as error:
            raise self._raised(error) from error

    def _raised(self, error: Exception) -> Refused:
        """Why a function is not staged of which the run has raised an error that no staged value decides on."""
        if isinstance(error, RecursionError):
            return refused(
                "staged-recursion", "a function that calls itself without end, or too deeply", "Each call is staged.",
                "Mark it with torchjanus.stage.", self.staging.place,
            )  # fmt: skip
        return refused(
            "staged-raises", f"{type(error).__name__}: {str(error)[:200]}",
            "The program raises it for any of these arguments, or code that is not staged does because a value is not "
            "known to it.", "Call the function as it is, or do that part outside of it.", self.staging.place,
        )  # fmt: skip

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Given:
        code = self.target.__code__
        try:
            return Given(tuple(map(_type, args)), {name: _type(one) for name, one in kwargs.items()})
        except Refused as error:
            raise error.at(Place(code.co_filename, code.co_firstlineno, 0, code.co_qualname)) from error

    def _run(self, semantics: Staged, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with using(semantics), Recording(self.staging):
            return lifted_form(fn)(*args, **kwargs)

    def _checked(self, graph: Graph) -> Graph:
        """Return the graph, tidied. Raises Refused where a value is used outside of the block that made it."""
        for one in (*graph.functions, graph):
            tidy(one)
        try:
            verify(graph)
        except Broken as error:
            raise refused(
                "staged-mutation", f"a value that leaves an arm or a loop by another way than a variable ({error})",
                "", "Assign it to a variable, or return it.",
            ) from error  # fmt: skip
        return graph

    def _input(self, type_: Any, path: Path) -> Any:
        """Return the value that the program is given for an argument."""
        if isinstance(type_, Rep):
            made = self.staging.fresh(type_.type)
            self.staging.builder.graph.inputs.append(Input(self.staging.ref_of(made).value, path))
            return made
        if type(type_) in (tuple, list):
            return type(type_)(self._input(one, Path("item", path, Const(n))) for n, one in enumerate(type_))
        if type(type_) is dict:
            return {key: self._input(one, Path("item", path, Const(key))) for key, one in type_.items()}
        return type_

    def _result(self, result: Any) -> Any:
        self._check_result(result)
        builder = self.staging.builder
        builder.returns = True
        try:
            return builder.operand(result)
        finally:
            builder.returns = False

    def _check_result(self, result: Any) -> None:
        """Refuse what each call would have to make anew, other than tuples, lists and dictionaries."""
        if isinstance(result, Poison):
            result._raise()
        if is_staged(result):
            return
        if type(result) in (tuple, list) or (isinstance(result, tuple) and hasattr(result, "_fields")):
            for one in result:
                self._check_result(one)
        elif type(result) is dict:
            for one in result.values():
                self._check_result(one)
        elif not isinstance(result, torch.nn.Module | type) and not self.staging.was_there(result):
            held = [contents for _, contents, _ in snapshot([result]).values() if contents is not None]
            parts = [
                one for contents in held for one in (contents.values() if isinstance(contents, dict) else contents)
            ]
            is_made = contents_of(result) is not None and not isinstance(result, FunctionType)
            if is_made or any(is_staged(one) for one in parts if not isinstance(one, torch.nn.Parameter)):
                raise refused("staged-result", f"a {type(result).__name__} is returned that the function makes", "",
                              "Return a tuple or a dictionary.")  # fmt: skip

    # ---- graph functions (the paper's _def_staged and _call_staged) ----

    def _applied(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not isinstance(fn, GraphFunction):
            bound = getattr(fn, "__func__", None)
            if not isinstance(bound, GraphFunction):
                return NotImplemented
            fn, args = bound, (fn.__self__, *args)
        return self._call(fn, args, kwargs)

    def _call(self, function: GraphFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Add a call of a graph function, and return its staged result. Raises Pending where that is not known yet."""
        staging = self.staging
        target, leading = underlying(function.fn)
        arguments = inspect.signature(target).bind(*leading, *args, **kwargs)
        arguments.apply_defaults()
        leaves: list[Any] = []
        key = (id(target), tuple((name, self._key(one, leaves)) for name, one in arguments.arguments.items()))
        definition = self.definitions.get(key)
        if definition is None:
            name = target.__name__ if not self._names(target.__name__) else f"{target.__name__}_{len(self.definitions)}"
            definition = self.definitions[key] = _Definition(name)
        if definition.made is None and not definition.is_begun:
            self._define(definition, target, arguments)
        if not definition.is_known:
            self.pending += 1
            raise Pending
        result = self._like(definition.result)
        outs = tuple(map(staging.ref_of, staged_parts(result)))
        given = Sequence(tuple, tuple(map(staging.operand, leaves)))
        staging.builder.emit("apply", (("function", Const(definition.name)), ("args", given)), outs, staging.place)
        return result

    def _names(self, name: str) -> bool:
        return any(one.name == name for one in self.definitions.values())

    def _key(self, value: Any, leaves: list[Any]) -> Any:
        """Return what two arguments have in common if one graph function takes both; collects what is staged of it."""
        staging = self.staging
        if isinstance(value, torch.Tensor):
            leaves.append(value)
            made = staging.symbols(value)
            with torch._C.DisableTorchFunction():
                return "tensor", str(made.dtype), tuple(map(str, made.shape)), str(made.device), made.requires_grad
        if isinstance(value, StagedValue):
            leaves.append(value)
            if hasattr(value.type, "kind"):
                return "number", value.type.kind
            cls = getattr(value.type, "cls", None)
            return ("object", cls) if cls is not None else ("type", id(value.type))
        if type(value) in (tuple, list):
            return type(value), tuple(self._key(one, leaves) for one in value)
        if type(value) in (int, float, str, bool, type(None)):
            return type(value), value
        self.kept.append(value)
        return "object", id(value)

    def _define(self, definition: _Definition, target: Any, arguments: inspect.BoundArguments) -> None:
        """Stage a function's body in a graph of its own, until the type of what it returns is known and stays. Where it
        calls functions around it whose results are not known yet, only the type is found; the graph is made later."""
        staging = self.staging
        site: Site | None = staging.site
        definition.is_begun = True
        try:
            for _ in range(_MOST_TRIED):
                before, was_known = self.pending, definition.is_known
                graph, stays = self._tried(definition, target, arguments)
                staging.site = site
                if self.pending == before and (stays or not was_known):
                    definition.made = graph
                    return
                if self.pending > before and was_known and stays:
                    return
        finally:
            definition.is_begun = False
        raise refused(
            "staged-recursion", f"what {definition.name}() returns is of ever new types", "A graph function has one "
            "type of result.", "Return a tensor of fixed dtype and number of dimensions.", staging.place,
        )  # fmt: skip

    def _tried(self, definition: _Definition, target: Any, arguments: inspect.BoundArguments) -> tuple[Graph, bool]:
        """Stage the body once: its graph, and whether its result is of the type that was assumed."""
        staging = self.staging
        builder = Builder(definition.name, staging.fakes, lambda: staging.place)
        staging.builders.append(builder)
        trying, staging.trying = staging.trying, 0
        try:
            taken = {name: self._parameter(one) for name, one in arguments.arguments.items()}
            again = inspect.BoundArguments(arguments.signature, taken)
            result = lifted_form(target)(*again.args, **again.kwargs)
            self._result(result)
            known = definition.result
            stays = definition.is_known and self._same(known, result)
            definition.result = self._wider(known, result) if definition.is_known else self._like(result, bind=False)
            definition.is_known = True
            builder.graph.result = Sequence(tuple, tuple(self._returned(definition.result, result)))
        except Pending:
            if any(one.is_begun and one is not definition for one in self.definitions.values()):
                raise
            raise refused(
                "staged-recursion", f"{definition.name}() calls itself in any case", "There is no way through it "
                "of which the result is known.", "Let a staged value decide when the recursion ends.", staging.place,
            ) from None  # fmt: skip
        finally:
            staging.builders.pop()
            staging.trying = trying
        return builder.graph, stays

    def _parameter(self, value: Any) -> Any:
        """Return a parameter for an argument, within the function that is being staged."""
        staging = self.staging
        if is_staged(value):
            made = self._like(value)
            inputs = staging.builder.graph.inputs
            ref = staging.ref_of(made)
            inputs.append(Input(ref.value, Path("parameter", None, Const(len(inputs)))))
            return made
        if type(value) in (tuple, list):
            return type(value)(map(self._parameter, value))
        return value

    def _like(self, value: Any, *, bind: bool = True) -> Any:
        """Return a new value like this one."""
        staging = self.staging
        if isinstance(value, torch.Tensor):
            made = staging.fakes.renewed(staging.symbols(value))
            if bind:
                staging.builder.tensor(made)
            return made
        if isinstance(value, StagedValue):
            return staging.made(value.type)
        if type(value) in (tuple, list):
            return type(value)(self._like(one, bind=bind) for one in value)
        if type(value) is dict:
            return {key: self._like(one, bind=bind) for key, one in value.items()}
        if type(value) in (int, float, bool):
            return staging.made(staging.type_of(value))
        return value

    def _same(self, known: Any, result: Any) -> bool:
        """Whether a result is of the type that was assumed."""
        if isinstance(known, torch.Tensor) and isinstance(result, torch.Tensor):
            return self.staging.fakes.takes(known, self.staging.symbols(result))
        if isinstance(known, StagedList) and isinstance(result, StagedList):
            return self.staging.same_list(known.type, result.type)
        if isinstance(known, StagedValue):
            plain = type(result) in (int, float, bool)
            return (plain or isinstance(result, StagedValue)) and (
                same_type(known.type, self.staging.type_of(result)) or getattr(known.type, "kind", "") == "number"
            )
        if type(known) is type(result) and isinstance(known, tuple | list) and len(known) == len(result):
            return all(map(self._same, known, result))
        return known is result

    def _wider(self, known: Any, result: Any) -> Any:
        """Return what both the assumed and the found result are."""
        if self._same(known, result):
            return known
        joined = self.staging.join(known, result, "what is returned")
        if isinstance(joined, Poison):
            joined._raise()
        return joined

    def _returned(self, known: Any, result: Any) -> Iterator[Any]:
        """Yield what of a result is not known, as operands."""
        if is_staged(known):
            yield self.staging.operand(result)
        elif isinstance(known, tuple | list):
            for one, other in zip(known, result, strict=True):
                yield from self._returned(one, other)
        elif type(known) is dict:
            for key, one in known.items():
                yield from self._returned(one, result[key])


def _type(value: Any) -> Any:
    """Return the type of an argument by an example or by what was said of it; ordinary values are themselves."""
    if isinstance(value, Rep):
        return value
    if isinstance(value, torch.Tensor):
        if value.is_conj() or value.is_neg():
            raise refused("staged-value", "a conjugated or negated view as an argument", "", "Call resolve_conj().")
        return Rep(value)
    if type(value) in (tuple, list):
        return type(value)(map(_type, value))
    if type(value) is dict:
        return {key: _type(one) for key, one in value.items()}
    if type(value).__module__ == "numpy" and hasattr(type(value), "__setitem__"):
        raise refused("staged-value", f"a {type(value).__name__} as an argument", "The graph would be made for what it "
                      "holds now.", "Give a tensor (torch.from_numpy).")  # fmt: skip
    return value
