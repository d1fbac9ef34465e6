"""Runs a small imperative program twice, eagerly and speculated, and tells where the two differ.

A file of the corpus (``tests/programs/<topic>/<category>.py``) holds functions marked with ``@program``. Each makes a
Program: a step, the calls of it, and what happens to its state between them. ``make test`` runs one program in
``RUN_ONE_IN`` of each file, which may set that number for itself, but none marked ``@program(slow=True)``, and at least
one of each file; ``make test-all`` runs all.

The file is imported afresh for each side, so that not even its globals are shared. After every call all that a program
could see is compared: what came back, what was raised and where, what was printed, all objects that the step can reach
(with their identities, types, and tensors bit by bit), and the random generators.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import functools
import hashlib
import importlib.util
import io
import itertools
import logging
import random
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.hooks import RemovableHandle

import torchjanus
from torchjanus.core.kinds import module_of

__all__ = [
    "Around",
    "Call",
    "Program",
    "Run",
    "Spec",
    "compare",
    "files",
    "load",
    "load_file",
    "program",
    "programs",
    "programs_in",
    "run",
    "run_in",
    "slow",
]

CORPUS = Path(__file__).parent
RUN_ONE_IN = 8
CALLS = 10
SEED = 20  # of all that programs draw


@dataclass(frozen=True)
class Spec:
    """What is expected of a program: how many calls at least run as a graph, or the words of its refusal; ``reported``
    is what the report says of it in any case. ``close``: how far floating-point numbers may be from eager's,
    relatively, where sums are made in another order. ``slow``: ``make test`` leaves it out."""

    name: str
    make: Callable[..., Program]
    speculated: int
    refused: str = ""
    compiles: int = 2
    reported: str = ""
    close: float = 0.0
    slow: bool = False


@dataclass
class Program:
    """``step(*call)`` for each call; ``before[i]`` runs before call ``i``, outside of the step."""

    step: Callable[..., Any]
    calls: Sequence[Any] = ((),) * CALLS
    before: dict[int, Callable[[], Any]] = field(default_factory=dict)
    state: Any = None
    around: Callable[[int], contextlib.AbstractContextManager[Any]] | None = None
    between: Callable[[Any], Any] | None = None  # after each call, with its result


def program(
    *,
    speculated: int = CALLS - 3,
    refused: str = "",
    compiles: int = 2,
    reported: str = "",
    close: float = 0.0,
    slow: bool = False,
) -> Callable[..., Any]:
    """Marks a function that makes a program. ``speculated`` is the least number of calls that run as a graph."""

    def mark(make: Callable[..., Program]) -> Callable[..., Program]:
        least = 0 if refused else speculated
        make.spec = Spec(make.__name__, make, least, refused, compiles, reported, close, slow)  # type: ignore[attr-defined]
        return make

    return mark


@functools.cache
def files() -> dict[str, Path]:
    """The file of each category, which is named like it; no two topics have files of one name."""
    found = sorted(path for path in CORPUS.glob("*/*.py") if path.stem != "__init__")
    return {path.stem: path for path in found}


def load(category: str) -> types.ModuleType:
    """A corpus file as a module of its own, not shared with any other import of it."""
    return load_file(files()[category])


def load_file(path: Path) -> types.ModuleType:
    """Any file in the form of the corpus, as a module of its own."""
    name = f"programs_{path.stem}_{next(_numbers)}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


_numbers = itertools.count()


def programs() -> tuple[tuple[str, str], ...]:
    """(category, program) for the whole corpus, by topic, category and place in the file."""
    return tuple(_corpus())


@functools.cache
def slow() -> frozenset[tuple[str, str]]:
    """The programs that only ``make test-all`` runs, as (category, program)."""
    return frozenset(program for program, left_out in _corpus().items() if left_out)


@functools.cache
def _corpus() -> dict[tuple[str, str], bool]:
    """Each program of the corpus, and whether it is slow: marked so, or left out by its file's ``RUN_ONE_IN``."""
    found: dict[tuple[str, str], bool] = {}
    for category in files():
        module = load(category)
        specs = [getattr(module, name).spec for name in programs_in(module)]
        quick = [spec.name for spec in specs[:: getattr(module, "RUN_ONE_IN", RUN_ONE_IN)] if not spec.slow]
        quick = quick or [next(spec.name for spec in specs if not spec.slow)]
        found |= {(category, spec.name): spec.name not in quick for spec in specs}
    return found


def programs_in(module: types.ModuleType) -> list[str]:
    """The names of the programs in a module of the corpus."""
    return [value.spec.name for value in vars(module).values() if isinstance(getattr(value, "spec", None), Spec)]


# -- one side -----------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """What one side did: one snapshot a call, and one of everything at the end."""

    observed: list[dict[str, Any]]
    steps: list[Any]


Around = Callable[[int, Sequence[Any]], contextlib.AbstractContextManager[Any]]


def run(category: str, name: str, executor: str | None, around: Around | None = None) -> Run:
    """Run a program, eagerly if no executor is named."""
    return run_in(load(category), name, executor, around)


def run_in(
    module: types.ModuleType, name: str, executor: str | None, around: Around | None = None, repeated: int = 1
) -> Run:
    """Run a program of a module just loaded. Each call is made within ``around(number, speculated functions)``.
    ``repeated``: how often the calls are made, one after the other."""
    steps: list[Any] = []

    def jit(fn: Any = None, **options: Any) -> Any:
        if fn is None:
            return functools.partial(jit, **options)
        if executor is None:
            return fn
        made = torchjanus.speculate(fn, **{"executor": executor, **options})
        steps.append(made)
        return made

    _seed()
    make = getattr(module, name)
    takes_jit = "jit" in make.__code__.co_varnames[: make.__code__.co_argcount]
    made: Program = make(jit) if takes_jit else make()
    step = made.step if takes_jit else jit(made.step)
    observed: list[dict[str, Any]] = []
    history: list[Any] = []
    # Calls may be made one by one, from what the earlier ones have left.
    for number, call in enumerate(itertools.chain.from_iterable(itertools.repeat(made.calls, repeated))):
        if number in made.before:
            made.before[number]()
        args, kwargs = call if isinstance(call, Call) else (call if isinstance(call, tuple) else (call,), {})
        with contextlib.nullcontext() if around is None else around(number, steps):
            seen, result = _observe(made, step, args, kwargs, number, module.__file__)
        if made.between is not None:
            made.between(result)
        history.append((args, result))
        observed.append(seen)
    observed.append({"history": snapshot((history, _roots(made)))})
    return Run(observed, steps)


class Call(tuple[Any, ...]):
    """(args, kwargs) of one call."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Call:
        return tuple.__new__(cls, (args, kwargs))


def _observe(
    made: Program, step: Any, args: Any, kwargs: Any, number: int, file: str | None
) -> tuple[dict[str, Any], Any]:
    out, err = io.StringIO(), io.StringIO()
    lines: list[str] = []
    result: Any = None
    raised: Any = None
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("program")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    with warnings.catch_warnings(record=True) as warned, contextlib.ExitStack() as stack:
        warnings.simplefilter("always")
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        try:
            if made.around is None:
                result = step(*args, **kwargs)
            else:
                with made.around(number):
                    result = step(*args, **kwargs)
        except Exception as error:
            frames = [(f.name, f.lineno) for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
            raised = (type(error).__name__, str(error), [f for f in frames if f[0] not in ("<lambda>",)])
    logger.removeHandler(handler)
    seen = {
        "raised": raised,
        "printed": out.getvalue(),
        "logged": lines,
        "warned": [(str(w.message), w.lineno) for w in warned if w.filename == file],
        "random": (*map(_digest, _generators()), random.getstate(), _numpy_state()),
        "result and state": snapshot((result, args, kwargs, _roots(made))),
    }
    return seen, result


def _generators() -> list[torch.Tensor]:
    """The states of torch's generators."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else ())]


def _numpy_state() -> tuple[Any, ...]:
    """The state of NumPy's generator. Its text, of all numbers, would take a fifth of the time of the tests."""
    name, numbers, *others = np.random.get_state()
    return (name, np.asarray(numbers).tobytes(), *others)


def _seed() -> None:
    torch.manual_seed(SEED)
    random.seed(SEED)
    np.random.seed(SEED)
    RemovableHandle.next_id = 0


def _roots(made: Program) -> Any:
    return (made.step, made.state, made.between)


# -- what can be seen ------------------------------------------------------------------------------------------------

# Their place can be read without taking from them.
_ITERATORS = (type(iter([])), type(iter(())), type(iter(range(0))), itertools.count)
_ATOMS = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.layout, range)


def _digest(tensor: torch.Tensor) -> Any:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if plain.dtype.is_floating_point:
        # Which of its operands' payloads a NaN keeps depends on where in a vector register an element lies.
        plain = torch.where(plain.isnan(), torch.nan, plain)
    else:
        plain = plain.clone()  # memory that numpy() is asked for counts as shared from then on
    return bytes(plain.view(torch.uint8).cpu().numpy()) if plain.numel() else b""


class Contents:
    """What a tensor holds. Equal to another when all bits are."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.digest = hashlib.sha1(_digest(tensor)).hexdigest()
        self.values = tensor.detach().clone() if tensor.is_floating_point() else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Contents) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        shown = "" if self.values is None else f"{self.values.flatten()[:4].tolist()} "
        return f"{shown}{self.digest[:8]}"


def _alike(a: Any, b: Any, close: float) -> bool:
    """Whether two observations are equal, or differ in floating-point numbers by no more than ``close``, relative to
    the largest there is in a tensor."""
    if a == b or not close:
        return bool(a == b)
    if isinstance(a, Contents) and isinstance(b, Contents) and a.values is not None and b.values is not None:
        if a.values.shape != b.values.shape:
            return False
        bound = close * float(a.values.abs().max()) if a.values.numel() else 0.0
        return torch.allclose(a.values, b.values, rtol=close, atol=bound, equal_nan=True)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        if len(a) == 2 and a[0] == b[0] == "float":
            return abs(float(a[1]) - float(b[1])) <= close * max(abs(float(a[1])), 1e-3)
        return all(_alike(x, y, close) for x, y in zip(a, b, strict=True))
    return False


def snapshot(root: Any) -> list[Any]:
    """All that can be reached from ``root``: one line for each object, in the order in which they are met."""
    lines: list[Any] = []
    numbers: dict[int, int] = {}
    storages: dict[int, int] = {}
    alive: list[Any] = []

    def visit(value: Any, path: str) -> Any:
        kind = type(value)
        if isinstance(value, enum.Enum):
            return str(value)
        if isinstance(value, _ATOMS) and not hasattr(value, "__dict__"):
            return (kind.__name__, repr(value))
        if isinstance(value, torchjanus.Speculated):
            return visit(value.fn, path)
        if isinstance(value, types.ModuleType | types.CodeType | types.BuiltinFunctionType):
            return f"<{getattr(value, '__name__', kind.__name__)}>"
        if isinstance(value, functools._lru_cache_wrapper):
            return ("cached", value.cache_info().currsize, visit(value.__wrapped__, f"{path}.__wrapped__"))
        if kind.__module__ in ("inspect", "contextlib", "logging", "weakref", "_weakrefset", "_thread", "typing"):
            return f"<{kind.__name__}>"
        if isinstance(value, io.StringIO):
            return ("StringIO", value.getvalue(), value.tell())
        if isinstance(value, np.ndarray) and value.dtype == object:
            return (kind.__name__, value.shape, visit(value.ravel().tolist(), path))
        if isinstance(value, np.ndarray | np.generic):
            return (kind.__name__, str(value.dtype), value.shape, value.tobytes())
        if isinstance(value, np.random.Generator | np.random.RandomState):
            return (
                kind.__name__,
                repr(value.bit_generator.state if kind is np.random.Generator else value.get_state()),
            )
        if isinstance(value, random.Random):
            return (kind.__name__, value.getstate())
        if kind in _ITERATORS:
            return (kind.__name__, visit(value.__reduce__()[1:], path))
        if isinstance(value, types.GeneratorType):
            frame = value.gi_frame
            # What a generator expression goes through is in a variable without a name that a program could use.
            names = {k: v for k, v in frame.f_locals.items() if k.isidentifier()} if frame else {}
            return ("generator", frame and (frame.f_lineno, visit(names, path)))
        if isinstance(value, tuple | frozenset) and not hasattr(value, "__dict__"):
            # Which of several equal tuples it is can be seen by 'is' only, and Python promises nothing there.
            return (kind.__qualname__, *parts(value, path))
        if id(value) in numbers:
            return ("seen", numbers[id(value)])
        number = numbers[id(value)] = len(numbers)
        alive.append(value)
        if isinstance(value, torch.Tensor):
            with torch._C.DisableTorchFunction():
                about = [*tensor(value)]
                grad = value.grad if value.is_leaf else None
            lines.append((path, kind.__name__, *about))
            if grad is not None:
                visit(grad, f"{path}.grad")
            return ("object", number)
        line = [path, kind.__qualname__]
        lines.append(line)
        line.extend(parts(value, path))
        return ("object", number)

    def tensor(value: torch.Tensor) -> Iterator[Any]:
        if value.layout != torch.strided:
            yield str(value.layout)
            value = value.to_dense()
        storage = value.untyped_storage()
        alive.append(storage)
        size, strides = torch.Tensor.size(value), torch.Tensor.stride(value)  # a class may have its own
        yield from (str(value.dtype), tuple(size), strides, value.storage_offset())
        yield f"storage {storages.setdefault(storage.data_ptr(), len(storages))}" if storage.nbytes() else "empty"
        yield ("requires_grad", value.requires_grad, "is_leaf", value.is_leaf, "inference", value.is_inference())
        yield ("has grad", value.is_leaf and value.grad is not None)
        if value.is_conj() or value.is_neg():
            yield ("conjugated", value.is_conj(), "negated", value.is_neg())
        yield Contents(value)

    def parts(value: Any, path: str) -> Iterator[Any]:
        if isinstance(value, dict):
            for key, part in dict.items(value):
                name = f"{path}[{key!r}]" if isinstance(key, str | int) else f"{path}[...]"
                yield visit(key, f"key of {path}"), visit(part, name)
        elif isinstance(value, list | tuple | collections.deque):
            if isinstance(value, collections.deque):
                yield value.maxlen
            for index, part in enumerate(list(value)):
                yield visit(part, f"{path}[{index}]")
        elif isinstance(value, set | frozenset):
            yield sorted(repr(v) for v in value)
        elif isinstance(value, types.FunctionType):
            for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                try:
                    content = cell.cell_contents
                except ValueError:
                    content = "<empty>"
                yield name, visit(content, f"{path}<{name}>")
            if (value.__module__ or "").startswith("programs_"):
                for name in value.__code__.co_names:
                    if name.startswith("__"):
                        continue
                    part = value.__globals__.get(name)
                    if part is not None and not isinstance(part, types.ModuleType):
                        yield name, visit(part, f"global {name}")
                yield visit(value.__defaults__, f"{path}.__defaults__")
                yield visit(value.__kwdefaults__, f"{path}.__kwdefaults__")
        elif isinstance(value, types.MethodType):
            yield visit(value.__self__, f"{path}.__self__")
            yield visit(value.__func__, f"{path}.__func__")
        elif isinstance(value, functools.partial):
            yield visit((value.func, value.args, value.keywords), path)
        elif isinstance(value, types.CellType):
            yield visit(value.cell_contents, path)
        if isinstance(value, type):
            if module_of(value).startswith("programs_"):
                for name, part in vars(value).items():
                    if not name.startswith("__"):
                        yield name, visit(part, f"{path}.{name}")
            return
        if isinstance(value, property | staticmethod | classmethod):
            return
        for cls in type(value).__mro__:
            if type(value).__module__.startswith("programs_"):
                for name in cls.__dict__.get("__slots__", ()):
                    if isinstance(name, str) and name not in ("__dict__", "__weakref__"):
                        yield name, visit(getattr(value, name, "<unset>"), f"{path}.{name}")
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict) and not isinstance(value, types.FunctionType):
            for name, part in attributes.items():
                if name != "__module__":  # another one on each side
                    yield name, visit(part, f"{path}.{name}")
        if type(value).__module__.startswith("programs_"):
            visit(type(value), f"type({path})")

    lines.append(visit(root, ""))
    return lines


# -- the difference ------------------------------------------------------------------------------------------------


def compare(eager: Run, other: Run, close: float = 0.0) -> list[str]:
    """Where the other run's observations differ from eager's, most significant first; empty if nowhere. ``close``: how
    far floating-point numbers may be apart, relatively."""
    found: list[str] = []
    for number, (left, right) in enumerate(zip(eager.observed, other.observed, strict=True)):
        for what in left:
            if not _alike(left[what], right[what], close):
                found.extend(f"call {number}, {what}: {text}" for text in _difference(left[what], right[what], close))
        if len(found) > 6:
            break
    return found


def _difference(left: Any, right: Any, close: float) -> Iterator[str]:
    if not isinstance(left, list) or not isinstance(right, list):
        yield f"eager {_short(left)}, speculated {_short(right)}"
        return
    shown = 0
    for a, b in itertools.zip_longest(left, right):
        if _alike(a, b, close):
            continue
        if isinstance(a, list | tuple) and isinstance(b, list | tuple):
            where = a[0] if a else ""
            pieces = [(p, q) for p, q in itertools.zip_longest(a, b) if not _alike(p, q, close)]
            yield f"{where}: " + "; ".join(f"eager {_short(p)}, speculated {_short(q)}" for p, q in pieces[:3])
        else:
            yield f"eager {_short(a)}, speculated {_short(b)}"
        shown += 1
        if shown == 4:
            return


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 160 else text[:160] + "..."
