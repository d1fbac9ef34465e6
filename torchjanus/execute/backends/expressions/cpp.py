"""S-expressions as C++ (as Lantern had it): ``runtime.hpp`` has the operators and the tape for reverse mode; here are
the generator, the compiler's call, and the way of values there and back.

Tensors are float32 on the processor. What has no operator there raises Unsupported when the program is generated.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from torchjanus.core.errors import Unsupported
from torchjanus.core.kinds import isinstance
from torchjanus.tracegraph.text.reading import Symbol, read

__all__ = ["compiled", "generate"]

_RUNTIME = Path(__file__).with_name("runtime.hpp")
# Operators by name, with how many operands they take.
_OPERATORS = {
    "+": ("op_add", 2), "-": ("op_sub", 2), "*": ("op_mul", 2), "/": ("op_div", 2), "//": ("op_floordiv", 2),
    "%": ("op_mod", 2), "=": ("op_eq", 2), "!=": ("op_ne", 2), "<": ("op_lt", 2), "<=": ("op_le", 2),
    ">": ("op_gt", 2), ">=": ("op_ge", 2), "not": ("op_not", 1), "bool": ("op_bool", 1), "and": ("op_and", 2),
    "or": ("op_or", 2), "is": ("op_is", 2), "is-not": ("op_is_not", 2), "neg": ("op_neg", 1), "tanh": ("op_tanh", 1),
    "sigmoid": ("op_sigmoid", 1), "relu": ("op_relu", 1), "exp": ("op_exp", 1), "log": ("op_log", 1),
    "sum": ("op_sum", 1), "linear": ("op_linear", 3), "item": ("op_item", 2), "select": ("op_select", 3),
    "chunk": ("op_chunk", 2), "cat": ("op_cat", 1), "zeros": ("op_zeros", 1), "ones": ("op_ones", 1),
    "len": ("op_len", 1), "int": ("op_int", 1), "float": ("op_float", 1), "item-of": ("op_item_of", 1),
}  # fmt: skip
_SEVERAL = frozenset({"chunk"})


def generate(text: str) -> tuple[str, list[str]]:
    """Return the C++ of a program, and the attributes of objects that it asks for, by their numbers."""
    return _Generating(read(text)).whole()


class _Generating:
    def __init__(self, program: Any) -> None:
        _, (_, *self.tensors), *self.definitions = program
        self.functions = {one[1]: len(one[2]) for one in self.definitions}
        self.fields: list[str] = []
        self.count = 0

    def whole(self) -> tuple[str, list[str]]:
        lines = ['#include "runtime.hpp"', "namespace {", *(f"Value {name};" for name in self.tensors)]
        lines += [f"Values f_{name}({self.params(one[2])});" for one in self.definitions for name in (one[1],)]
        for _, name, params, (_, body) in self.definitions:
            lines += [f"Values f_{name}({self.params(params)}) {{", *self.body(body, "return {};"), "}"]
        name, params = self.definitions[-1][1:3]
        given = ", ".join(f"*static_cast<Value *>(args[{n}])" for n in range(len(params)))
        lines += ["}", 'extern "C" int janus_run(void **args, void **tensors) {', "    try {", "        janus_clear();"]
        lines += [f"        {one} = *static_cast<Value *>(tensors[{n}]);" for n, one in enumerate(self.tensors)]
        lines += [f"        result = f_{name}({given});", "        return 1;", "    } catch (std::exception &error) {"]
        lines += ["        message = error.what();", "        return 0;", "    }", "}", ""]
        return "\n".join(lines), self.fields

    def params(self, names: list[str]) -> str:
        return ", ".join(f"const Value {name}" for name in names)

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}_{self.count}"

    def body(self, said: Any, end: str) -> Iterator[str]:
        """Yield the statements of a body; ``end`` takes its values."""
        while True:
            match said:
                case ["let", names, expression, rest]:
                    yield from self.let(names, expression)
                    said = rest
                case ["values", *atoms]:
                    yield end.format(f"Values{{{', '.join(map(self.atom, atoms))}}}")
                    return
                case ["tuple", *atoms]:
                    yield end.format(f"Values{{{', '.join(map(self.atom, atoms))}}}")
                    return
                case _:
                    yield end.format(f"Values{{{self.atom(said)}}}")
                    return

    def let(self, names: Any, expression: Any) -> Iterator[str]:
        several = isinstance(names, list)
        held = self.fresh("v")
        match expression:
            case ["if", test, ["begin", then], ["begin", orelse]]:
                yield f"Values {held};"
                yield f"if (bool({self.atom(test)})) {{"
                yield from self.body(then, f"{held} = {{}};")
                yield "} else {"
                yield from self.body(orelse, f"{held} = {{}};")
                yield "}"
            case ["loop", params, first, ["begin", test], ["begin", body]]:
                asked = self.fresh("c")
                yield f"Values {held} = Values{{{', '.join(map(self.atom, first))}}};"
                yield "while (true) {"
                yield from (f"const Value {name} = {held}[{n}];" for n, name in enumerate(params))
                yield f"Values {asked};"
                yield "{"
                yield from self.body(test, f"{asked} = {{}};")
                yield "}"
                yield f"if (!bool({asked}[0])) break;"
                yield from self.body(body, f"{held} = {{}};")
                yield "}"
            case [Symbol() as head, *args] if head in self.functions:
                yield f"Values {held} = f_{head}({', '.join(map(self.atom, args))});"
            case [Symbol() as head, *args] if head in _SEVERAL:
                yield f"Values {held} = {self.call(head, args)};"
            case _:
                if several or names == "_":
                    raise Unsupported(f"C++ has no {expression[0]} of several values, or for its effect")
                yield f"const Value {names} = {self.atom(expression)};"
                return
        for n, name in enumerate(names if several else [names]):
            if name != "_":
                yield f"const Value {name} = {held}.at({n});"

    def call(self, head: str, args: list[Any]) -> str:
        match head, args:
            case "get", [owner, str() as field]:
                if field not in self.fields:
                    self.fields.append(field)
                return f"op_get({self.atom(owner)}, {self.fields.index(field)})"
            case "size", [owner, int() as dim]:
                return f"op_size({self.atom(owner)}, {dim})"
        name, count = _OPERATORS.get(head, ("", -1))
        if any(isinstance(one, Symbol) and one[0] == ":" for one in args) or len(args) != count:
            raise Unsupported(f"C++ has no {head} with these operands")
        return f"{name}({', '.join(map(self.atom, args))})"

    def atom(self, said: Any) -> str:
        match said:
            case Symbol():
                return str(said)
            case None:
                return "Value()"
            case bool():
                return f"Value({str(said).lower()})"
            case int():
                return f"Value(int64_t({said}))"
            case float():
                return f"Value({said!r})"
            case ["list" | "tuple", *items]:
                return f"list_of(Values{{{', '.join(map(self.atom, items))}}})"
            case ["const", "torchjanus.semantics.staged.unknown.values:Unbound"]:
                return "Value()"
            case [Symbol() as head, *args]:
                return self.call(head, args)
        raise Unsupported(f"C++ has no {said!r}")


def _library(source: str) -> ctypes.CDLL:
    """Return the program, compiled; once for each source and runtime."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise Unsupported("there is no C++ compiler: install one, or name it by CXX")
    key = hashlib.sha256((source + _RUNTIME.read_text()).encode()).hexdigest()[:24]
    folder = Path(tempfile.mkdtemp(prefix="torchjanus-"))  # a library is loaded once for each program: it has state
    file, library = folder / "program.cpp", folder / f"{key}.so"
    file.write_text(source)
    flags = [
        "-O2",
        "-ftree-vectorize",
        "-march=native",
        "-fopenmp-simd",
        "-fno-math-errno",
        "-std=c++17",
        "-shared",
        "-fPIC",
    ]
    done = subprocess.run(
        [compiler, *flags, "-fPIC", f"-I{_RUNTIME.parent}", "-o", str(library), str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Unsupported(f"{compiler} does not compile the program: {done.stderr[:500]}")
    loaded = ctypes.CDLL(str(library))
    shutil.rmtree(folder, ignore_errors=True)
    pointer = ctypes.c_void_p
    for name, kind in {
        "janus_tensor": pointer, "janus_number": pointer, "janus_object": pointer, "janus_list": pointer,
        "janus_message": ctypes.c_char_p, "janus_result_number": ctypes.c_double,
        "janus_result_sizes": ctypes.POINTER(ctypes.c_int64), "janus_result_data": pointer, "janus_gradient": pointer,
    }.items():  # fmt: skip
        getattr(loaded, name).restype = kind
    return loaded


class _Host:
    """The arguments of one call, on the other side."""

    def __init__(self, library: Any, fields: list[str]) -> None:
        self.library, self.fields = library, fields
        self.values: list[Any] = []
        self.tensors: dict[int, tuple[torch.Tensor, Any]] = {}
        self.objects: dict[int, Any] = {}
        self.kept: list[Any] = []

    def give(self, value: Any) -> Any:
        made = self._made(value)
        self.values.append(made)
        return made

    def _made(self, value: Any) -> Any:
        library = self.library
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if value is None or type(value) in (bool, int, float):
            kind = {type(None): 0, bool: 1, int: 2, float: 3}[type(value)]
            return library.janus_number(kind, ctypes.c_double(0.0 if value is None else float(value)))
        if type(value) in (list, tuple):
            made = library.janus_list()
            for one in value:
                library.janus_append(ctypes.c_void_p(made), ctypes.c_void_p(self.give(one)))
            return made
        known = self.objects.get(id(value))
        if known is None:
            known = self.objects[id(value)] = library.janus_object()
            self.kept.append(value)
            for number, name in enumerate(self.fields):
                if hasattr(value, name):
                    held = ctypes.c_void_p(self.give(getattr(value, name)))
                    library.janus_field(ctypes.c_void_p(known), number, held)
        return known

    def _tensor(self, tensor: torch.Tensor) -> Any:
        known = self.tensors.get(id(tensor))
        if known is not None:
            return known[1]
        if tensor.dtype is not torch.float32 or tensor.device.type != "cpu":
            raise Unsupported(f"C++ takes float32 tensors on the processor, not {tensor.dtype} on {tensor.device}")
        flat = tensor.detach().contiguous()
        self.kept.append(flat)
        sizes = (ctypes.c_int64 * flat.ndim)(*flat.shape)
        wants = tensor.requires_grad and torch.is_grad_enabled()
        made = self.library.janus_tensor(ctypes.c_void_p(flat.data_ptr()), flat.ndim, sizes, int(wants))
        self.tensors[id(tensor)] = tensor, made
        return made

    def gradient(self, tensor: torch.Tensor) -> torch.Tensor | None:
        at = self.library.janus_gradient(ctypes.c_void_p(self.tensors[id(tensor)][1]))
        return None if at is None else _copied(at, tuple(tensor.shape))

    def free(self) -> None:
        for value in {*self.values}:
            self.library.janus_free(ctypes.c_void_p(value))


def _copied(at: int, sizes: tuple[int, ...]) -> torch.Tensor:
    made = torch.empty(sizes)
    ctypes.memmove(made.data_ptr(), at, made.numel() * 4)
    return made


def compiled(text: str, tensors: Sequence[torch.Tensor] = ()) -> Callable[..., Any]:
    """Return the last function of a program, compiled; autograd goes through it. Raises Unsupported."""
    source, fields = generate(text)
    library, held = _library(source), tuple(tensors)
    is_tuple = _returns_tuple(read(text)[-1][3][1])

    def run(*args: Any) -> Any:
        found = _leaves(args, fields, held)
        wanted = [one for one in found if one.requires_grad] if torch.is_grad_enabled() else []
        if not wanted:
            results, _ = _forward(library, fields, held, args, (), None)
        else:
            results = list(_Call.apply((library, fields, held, args, wanted), *wanted))  # type: ignore[no-untyped-call]
        return tuple(results) if is_tuple else results[0]

    return run


def _returns_tuple(body: Any) -> bool:
    while body[0] == "let" if isinstance(body, list) else False:
        body = body[3]
    return isinstance(body, list) and body[0] == "tuple"


def _leaves(args: Any, fields: list[str], held: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return all tensors that a call can reach."""
    found: dict[int, torch.Tensor] = {id(one): one for one in held}
    seen: set[int] = set()
    waiting = list(args)
    while waiting:
        one = waiting.pop()
        if isinstance(one, torch.Tensor):
            found.setdefault(id(one), one)
        elif type(one) in (list, tuple):
            waiting += one
        elif one is not None and type(one) not in (bool, int, float) and id(one) not in seen:
            seen.add(id(one))
            waiting += [getattr(one, name) for name in fields if hasattr(one, name)]
    return list(found.values())


def _forward(
    library: Any, fields: list[str], held: Sequence[torch.Tensor], args: Any, wanted: Sequence[torch.Tensor],
    seeds: Sequence[torch.Tensor | None] | None,
) -> tuple[list[Any], list[torch.Tensor | None]]:  # fmt: skip
    """Run the program, and back if there are seeds: the results, and the gradients of what is wanted."""
    host = _Host(library, fields)
    try:
        given = (ctypes.c_void_p * max(1, len(args)))(*map(host.give, args))
        weights = (ctypes.c_void_p * max(1, len(held)))(*map(host.give, held))
        if not library.janus_run(given, weights):
            raise RuntimeError(library.janus_message().decode())
        results = _results(library)
        grads: list[torch.Tensor | None] = []
        if seeds is not None:
            for number, seed in enumerate(seeds):
                if seed is not None:
                    flat = seed.contiguous()
                    library.janus_seed(number, ctypes.c_void_p(flat.data_ptr()))
            library.janus_backward()
            grads = [host.gradient(one) if id(one) in host.tensors else None for one in wanted]
        return results, grads
    finally:
        library.janus_clear()
        host.free()


def _results(library: Any) -> list[Any]:
    found: list[Any] = []
    while (kind := library.janus_kind(len(found))) >= 0:
        number = len(found)
        match kind:
            case 0:
                found.append(None)
            case 1 | 2 | 3:
                found.append((bool, int, float)[kind - 1](library.janus_result_number(number)))
            case 4:
                sizes = tuple(library.janus_result_sizes(number)[: library.janus_result_dims(number)])
                made = _copied(library.janus_result_data(number), sizes)
                found.append(made.bool() if library.janus_result_truth(number) else made)
            case _:
                raise Unsupported("C++ returns tensors and numbers")
    return found


class _Call(torch.autograd.Function):
    """One run of a program. A single number's gradient is computed at once; else backward runs the program again."""

    @staticmethod
    def forward(ctx: Any, given: Any, *wanted: torch.Tensor) -> Any:
        library, fields, held, args, leaves = given
        with torch.enable_grad():
            results, grads = _forward(library, fields, held, args, leaves, [torch.ones(())])
        tensors = [one for one in results if isinstance(one, torch.Tensor)]
        single = len(results) == len(tensors) == 1 and tensors[0].numel() == 1 and tensors[0].dtype is torch.float32
        ctx.save_for_backward(*wanted)  # so that autograd sees whether they are changed before backward
        ctx.given, ctx.grads = given, grads if single else None
        ctx.mark_non_differentiable(*(one for one in tensors if one.dtype is torch.bool))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *seeds: Any) -> Any:
        _ = ctx.saved_tensors
        if ctx.grads is not None:
            return None, *(None if one is None else one * seeds[0] for one in ctx.grads)
        library, fields, held, args, leaves = ctx.given
        with torch.enable_grad():
            _, grads = _forward(library, fields, held, args, leaves, seeds)
        return None, *grads
