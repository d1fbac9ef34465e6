"""Known effects of calls of foreign code: what they read, write, draw or print, and how a draw is undone.

In: a function, or a method"s name and its owner. Out: its ``Effects``. A call on no list here may do anything."""

from __future__ import annotations

import functools
import logging
import random
import sys
import time
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch

from torchjanus.core.kinds import getattr, hasattr, is_one_of, isinstance, module_of
from torchjanus.semantics.known.trusted import is_installed
from torchjanus.trace.effects import PURE, WORLD, Effects, Undo

__all__ = [
    "ARRAYS",
    "GENERATOR_FUNCTIONS",
    "OUTPUT",
    "TORCH_GENERATOR",
    "changes_arrays",
    "changes_in_place",
    "draw_places",
    "effects_of",
    "is_draw",
    "is_users_cache",
]


OUTPUT = Effects(writes=frozenset({"output"}))
TORCH_GENERATOR = Effects(reads=frozenset({"torch generator"}), writes=frozenset({"torch generator"}))
GENERATOR_FUNCTIONS: frozenset[Any] = frozenset(
    {
        torch.random.manual_seed,
        torch.manual_seed,
        torch.seed,
        torch.initial_seed,
        torch.get_rng_state,
        torch.set_rng_state,
    }
)
_CLOCK = Effects(reads=frozenset({"clock"}))
_SLEEP = Effects(writes=frozenset({"clock"}))
ARRAYS = Effects(reads=frozenset({"arrays"}))
_CLOCKS = frozenset({
    time.time, time.time_ns, time.perf_counter, time.perf_counter_ns, time.monotonic, time.monotonic_ns,
    time.process_time, time.process_time_ns, time.thread_time
})  # fmt: skip
_RANDOM = Effects(writes=frozenset({"random"}), undo=Undo(random.getstate, random.setstate))
_WRITERS = frozenset(
    """sort fill put partition resize setflags itemset byteswap __setitem__ __delitem__ __iadd__ __isub__ __imul__
    __itruediv__ __ifloordiv__ __imod__ __ipow__ __iand__ __ior__ __ixor__ __ilshift__ __irshift__ __imatmul__ setfield
    shuffle copyto place putmask fill_diagonal put_along_axis save savez savez_compressed savetxt tofile dump load
    loadtxt genfromtxt fromfile memmap open_memmap seterr seterrcall set_printoptions at""".split()
)
_LIBRARIES_OF_VALUES = frozenset(
    "re json struct base64 binascii hashlib string decimal calendar fnmatch posixpath ntpath".split()
)


def changes_arrays(name: str) -> bool:
    """Whether a NumPy function or method of this name writes to its arguments, or draws random numbers."""
    return name in _WRITERS or name == "random"


def _is_numpy(module: str) -> bool:
    return module == "numpy" or module.startswith("numpy.")


def _bits_of(generator: Any) -> Any:
    return generator.bit_generator.state


def _put_bits(generator: Any, state: Any) -> None:
    generator.bit_generator.state = state


def _state_of(generator: Any) -> Any:
    return generator.get_state()


def _put_state(generator: Any, state: Any) -> None:
    generator.set_state(state)


def _generator_effects(owner: Any) -> Effects:
    """Return the effects of drawing from a generator: NumPy's Generator or RandomState, or a random.Random."""
    part = frozenset({f"generator {id(owner)}"})
    if isinstance(owner, random.Random):
        return Effects(writes=part, undo=Undo(random.Random.getstate, random.Random.setstate, owned=True))
    if getattr(owner, "bit_generator", None) is not None:
        return Effects(writes=part, undo=Undo(_bits_of, _put_bits, owned=True))
    if hasattr(owner, "get_state") and hasattr(owner, "set_state"):
        return Effects(writes=part, undo=Undo(_state_of, _put_state, owned=True))
    return WORLD


_USERS = Effects(world=True, user_code=True)


def effects_of(fn: Callable[..., Any], name: str, owner: Any, keywords: Any = ()) -> Effects:
    """Return the known effects of a call of ``fn``, or of ``owner``'s method ``name``."""
    if owner is not None and not isinstance(owner, types.ModuleType | type):
        return _method_effects(name, owner, keywords)
    module = getattr(fn, "__module__", None) or ""
    try:
        hash(fn)
    except TypeError:  # ctypes functions are unhashable
        return WORLD
    if fn is print or is_one_of(fn, _LOGGING) or module.startswith(("logging", "tqdm")):
        return OUTPUT
    if is_one_of(getattr(fn, "__wrapped__", fn), GENERATOR_FUNCTIONS):  # Dynamo wraps one when it is imported
        return TORCH_GENERATOR
    if is_one_of(fn, _CLOCKS):
        return _CLOCK
    if fn is time.sleep:
        return _SLEEP
    if module == "random":
        return _RANDOM
    if _calls_for_each(fn) or module.startswith("torch.utils.data"):
        return _USERS
    if _is_numpy(module) or isinstance(fn, _numpy_types()):
        return WORLD if name in _WRITERS or "out" in keywords or ".random" in module else ARRAYS
    if module in _LIBRARIES_OF_VALUES or module.startswith(("sklearn.metrics", "scipy.stats", "scipy.special")):
        return ARRAYS
    if is_users_cache(fn):
        return PURE  # caching promises that only the arguments matter
    return _USERS if isinstance(fn, types.FunctionType) and _is_users(fn.__module__) else WORLD


def is_users_cache(fn: Any) -> bool:
    """Whether it is a user's function whose results ``functools`` caches: the same objects each time."""
    return isinstance(fn, functools._lru_cache_wrapper) and _is_users(getattr(fn, "__module__", None))


def _method_effects(name: str, owner: Any, keywords: Any) -> Effects:
    cls = type(owner)
    module = module_of(cls)
    if isinstance(owner, torch.Generator):
        return TORCH_GENERATOR
    if isinstance(owner, random.Random):
        return _RANDOM if owner is random._inst else _generator_effects(owner)
    if module.startswith("numpy.random"):
        return WORLD if name == "shuffle" else _generator_effects(owner)
    if _calls_for_each(owner):
        return _USERS
    if _is_numpy(module):
        return WORLD if name in _WRITERS or "out" in keywords else ARRAYS
    if module in ("datetime", "re", "decimal", "_decimal", "_hashlib", "uuid"):
        return ARRAYS if name not in ("update",) else WORLD
    if module.startswith(("logging", "tqdm")):
        return OUTPUT
    if isinstance(owner, types.GeneratorType | types.CoroutineType) or module.startswith("torch.utils.data"):
        return _USERS
    return _USERS if _is_users(module) else WORLD


@functools.cache
def _is_users(module: str | None) -> bool:
    """Whether a module is the user's own. Its functions may read whatever the step has changed."""
    if module is None or module.partition(".")[0] in sys.stdlib_module_names - {"__main__"}:
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is None or not is_installed(file)


def _calls_for_each(fn: Any) -> bool:
    """Whether NumPy calls a Python function for each element: ``np.vectorize``, ``np.frompyfunc``."""
    if type(fn).__name__ == "vectorize" and module_of(type(fn)) == "numpy":
        return True
    return isinstance(fn, _numpy_types()) and getattr(fn, "__name__", "").endswith(" (vectorized)")


@functools.cache
def _numpy_types() -> tuple[type, ...]:
    numpy = sys.modules.get("numpy")
    return () if numpy is None else (numpy.ufunc,)


_LOGGING = frozenset(
    {
        warnings.warn,
        warnings.warn_explicit,
        *(getattr(logging, name) for name in "debug info warning error critical exception log".split()),
        *(getattr(logging.Logger, name) for name in "debug info warning error critical exception log".split()),
    }
)


def is_draw(fn: Any) -> bool:
    """Whether this draws elements by Python's generator, without reading them."""
    drawing = (random.Random.choice, random.Random.choices, random.Random.sample)
    return any(getattr(fn, "__func__", fn) is draw for draw in drawing)


def draw_places(generator: random.Random, name: str, count: int, /, *args: Any, **kwargs: Any) -> Any:
    """Return the indices that ``choice``, ``choices`` or ``sample`` draws of ``count`` elements."""
    return getattr(generator, name)(range(count), *args, **kwargs)


def changes_in_place(fn: Any) -> bool:
    """Whether a function exists to change the container that it is given, which may already be as wanted."""
    module, name = getattr(fn, "__module__", None), str(getattr(fn, "__name__", None) or getattr(fn, "name", ""))
    return name == "shuffle" or module == "_heapq" or (module == "_bisect" and name.startswith("insort"))
