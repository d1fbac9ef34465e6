"""Runs the corpus as it is and rewritten, and says where the two can be distinguished. Needs no pytest and no torch.

    python tests/rewrite/differ.py [NAME...]        # the names of corpus files, all by default

Every function ``program_*`` of a corpus file is run in a module of its own, so that no run sees what another one left.
"""

from __future__ import annotations

import contextlib
import functools
import io
import re
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "corpus"
Outcome = dict[str, Any]


def corpus_files() -> list[Path]:
    """Return the files that this interpreter can read: ``name.py312`` has syntax of Python 3.12."""
    newer = [path for path in CORPUS.glob("*.py3*") if sys.version_info >= (3, int(path.suffix.removeprefix(".py3")))]
    return sorted([*CORPUS.glob("*.py"), *newer])


@functools.cache
def compiled(path: Path) -> types.CodeType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # some programs are wrong on purpose
        return compile(path.read_text(), str(path), "exec", dont_inherit=True)


def load(path: Path) -> types.ModuleType:
    """The corpus file as a fresh module, known to ``sys.modules`` as pickling asks for."""
    module = types.ModuleType(f"corpus_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    exec(compiled(path), module.__dict__)
    return module


def programs(path: Path) -> list[str]:
    return re.findall(r"^(?:async )?def (program_\w+)\(", path.read_text(), re.MULTILINE)


def described(error: BaseException, skip: int) -> dict[str, Any]:
    """An exception as a user sees it: type, message, the traceback's positions, and what it hangs together with."""
    frames = []
    step = error.__traceback__
    for _ in range(skip):
        assert step is not None
        step = step.tb_next
    while step is not None:
        code = step.tb_frame.f_code
        positions = list(code.co_positions())[step.tb_lasti // 2]
        frames.append((code.co_filename, step.tb_lineno, code.co_qualname, positions))
        step = step.tb_next
    reported: dict[str, Any] = {"type": type(error).__name__, "message": str(error), "frames": frames}
    for name in ("__cause__", "__context__"):
        linked = getattr(error, name)
        if linked is not None:
            reported[name] = described(linked, 0)
    if isinstance(error, BaseExceptionGroup):
        reported["group"] = [described(each, 0) for each in error.exceptions]
    return reported


def shown(value: Any) -> str:
    return re.sub(r"0x[0-9a-f]+", "0x", repr(value))


def outcome(path: Path, name: str, wrap: Callable[[Any], contextlib.AbstractContextManager[Any]]) -> Outcome:
    """What running one program does, as data."""
    module = load(path)
    printed = io.StringIO()
    reported: Outcome = {}
    with wrap(getattr(module, name)) as fn, contextlib.redirect_stdout(printed):
        try:
            reported["result"] = shown(fn())
        except BaseException as error:
            reported["error"] = described(error, 1)
    reported["printed"] = printed.getvalue()
    return reported


@contextlib.contextmanager
def plain(fn: Any) -> Iterator[Any]:
    yield fn


def ways() -> dict[str, Callable[[Any], contextlib.AbstractContextManager[Any]]]:
    """The ways of running rewritten code that cannot be distinguished from the original."""
    from torchjanus.rewrite.hooks import Semantics, hide_frames, rewritten, using
    from torchjanus.semantics.protocols.imperative import Imperative
    from torchjanus.semantics.protocols.protocols import Protocols

    def under(make: Callable[[], Any]) -> Callable[[Any], contextlib.AbstractContextManager[Any]]:
        @contextlib.contextmanager
        def wrap(fn: Any) -> Iterator[Any]:
            semantics = make()
            twin = rewritten(fn)

            def run() -> Any:
                try:
                    with using(semantics):
                        return twin()
                except BaseException as error:
                    hide_frames(error)
                    raise

            yield run

        return wrap

    return {
        "no semantics": under(lambda: None),
        "native semantics": under(Semantics),
        "imperative": under(Imperative),
        "protocols": under(Protocols),
    }


# What shows how deep the stack is, or whose frame is below, holds where calls are made directly.
DIRECT_ONLY = {"introspection.py"}


def ways_for(path: Path) -> list[str]:
    labels = list(ways())
    return ["no semantics", "imperative"] if path.name in DIRECT_ONLY else labels


def normal(reported: Outcome) -> Outcome:
    """Without the frame of the function that wraps the twin."""
    error = reported.get("error")
    if error:
        error["frames"] = [frame for frame in error["frames"] if not frame[0].endswith("differ.py")]
    return reported


def difference(path: Path, name: str, way: Callable[[Any], contextlib.AbstractContextManager[Any]]) -> str:
    """How the rewritten program differs from the original, or nothing."""
    expected, got = normal(outcome(path, name, plain)), normal(outcome(path, name, way))
    if expected == got:
        return ""
    lines = []
    for key in sorted(expected.keys() | got.keys()):
        if expected.get(key) != got.get(key):
            lines += [f"  {key} as it is:   {expected.get(key)}", f"  {key} rewritten:   {got.get(key)}"]
    return "\n".join(lines)


def main(names: list[str]) -> int:
    failures = count = 0
    for path in corpus_files():
        if names and path.stem not in names:
            continue
        for name in programs(path):
            for label in ways_for(path):
                count += 1
                try:
                    reported = difference(path, name, ways()[label])
                except Exception:
                    reported = traceback.format_exc()
                if reported:
                    failures += 1
                    print(f"{path.name}: {name}, {label}:\n{reported}")
    print(f"{sys.version.split()[0]}: {count} runs, {failures} differ")
    return 1 if failures else 0


def without_torch() -> None:
    """Lets the parts that need no torch be imported where there is none: the package's front door asks for it."""
    package = types.ModuleType("torchjanus")
    package.__path__ = [str(HERE.parents[1] / "torchjanus")]
    sys.modules["torchjanus"] = package


if __name__ == "__main__":
    without_torch()
    sys.exit(main(sys.argv[1:]))
