"""``python -m tests.programs.staged [--every N] [--at K] [--show CODE] [CATEGORY...]``: stages the programs of the
corpus. ``--show``: the refusals by this reason code are printed, too.

A program counts as staged if its step can be staged for the arguments of each of its first ten calls (again for each
new set of sizes and ordinary arguments). Its graphs are then run on these arguments and compared with eager: results,
errors, and what is written in place, exactly. The rest is counted by reason code. Programs whose state changes between
the calls are left out: a graph is made once.
"""

from __future__ import annotations

import contextlib
import io
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

import torchjanus
from tests.programs import harness

__all__ = ["outcome_of", "stage_all"]

SECONDS = 20


class _TooLong(BaseException):
    """A program took more than its time."""


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def stop(*args: Any) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _made(category: str, name: str) -> harness.Program:
    harness._seed()
    make = getattr(harness.load(category), name)
    takes_jit = "jit" in make.__code__.co_varnames[: make.__code__.co_argcount]

    def plain(fn: Any = None, **options: Any) -> Any:
        return (lambda inner: inner) if fn is None else fn

    made: harness.Program = make(plain) if takes_jit else make()
    return made


def _arguments(call: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(call, harness.Call):
        args, kwargs = call
        return tuple(args), dict(kwargs)
    return (call if isinstance(call, tuple) else (call,)), {}


def _key(args: Any) -> Any:
    """Equal for arguments that one graph takes."""
    leaves, spec = pytree.tree_flatten(args)
    return str(spec), tuple(
        (str(one.dtype), tuple(one.shape)) if isinstance(one, torch.Tensor) else (type(one), repr(one))
        for one in leaves
    )


def _result(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    harness._seed()
    try:
        return "result", fn(*args, **kwargs)
    except torchjanus.JanusError:
        raise
    except Exception as error:
        return "error", (type(error), str(error))


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        same = (one.dtype, one.shape, one.requires_grad) == (other.dtype, other.shape, other.requires_grad)
        return same and torch.equal(torch.nan_to_num(one.detach()), torch.nan_to_num(other.detach()))
    if isinstance(one, tuple | list) and type(one).__name__ == type(other).__name__:
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(_alike(one[key], other[key]) for key in one)
    if type(one).__qualname__ != type(other).__qualname__:  # the two sides have modules of their own
        return False
    held, also = getattr(one, "__dict__", None), getattr(other, "__dict__", None)
    if isinstance(held, dict) and isinstance(also, dict) and not isinstance(one, type) and not callable(one):
        return _alike(held, also)
    return one is other or repr(one) == repr(other) or held is not None or not isinstance(one, int | float | str)


def outcome_of(category: str, name: str) -> str:
    """``agrees``, ``differs``, ``changes`` (its state, between calls), or the code of the refusal."""
    eager, mine = _made(category, name), _made(category, name)
    if eager.before or eager.between or eager.around:
        return "changes"
    graphs: dict[Any, Any] = {}
    for call, own in zip(list(eager.calls)[:10], list(mine.calls)[:10], strict=True):
        (args, kwargs), (others, named) = _arguments(call), _arguments(own)
        key = _key((others, named))
        if key not in graphs:
            graphs[key] = torchjanus.staged(mine.step)(*others, **named)
        expected = _result(eager.step, args, kwargs)
        try:
            found = _result(graphs[key], others, named)
        except torchjanus.Unsupported:  # not for these: they look alike, but are other objects, or lie differently
            graphs[key] = torchjanus.staged(mine.step)(*others, **named)
            found = _result(graphs[key], others, named)
        if not _alike(found, expected) or not _alike(others, args):
            return "differs"
    return "agrees"


def stage_all(chosen: list[tuple[str, str]], shown: str = "") -> Counter[str]:
    """How many programs have each outcome; those that differ or fail are printed, and so are refusals by ``shown``."""
    found: Counter[str] = Counter()
    for category, name in chosen:
        try:
            with _limited():
                outcome = outcome_of(category, name)
        except torchjanus.NotStaged as error:
            outcome = error.refusal.reason
            if outcome == shown:
                print(f"{category}-{name}: {error}", flush=True)
        except _TooLong:
            outcome = "too long"
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            outcome = "fault"
            print(f"{category}-{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        if outcome in ("differs", "too long"):
            print(f"{category}-{name}: {outcome}", flush=True)
        found[outcome] += 1
    return found


def main() -> None:
    """See the module."""
    words = sys.argv[1:]
    options = {words[n]: words[n + 1] for n in range(len(words)) if words[n] in ("--every", "--at", "--show")}
    categories = [one for n, one in enumerate(words) if one[0] != "-" and (n == 0 or words[n - 1] not in options)]
    chosen = [(category, name) for category, name in harness.programs() if not categories or category in categories]
    found = stage_all(chosen[int(options.get("--at", 0)) :: int(options.get("--every", 1))], options.get("--show", ""))
    print(f"{found['agrees']} of {found.total()} programs are staged and agree with eager")
    for outcome, count in found.most_common():
        print(f"{count:6d} {outcome}")


if __name__ == "__main__":
    main()
