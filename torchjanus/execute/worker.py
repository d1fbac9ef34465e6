"""Compiles for Inductor in a process of its own, so that no training step waits and no random state is touched.

(In a thread, compiling slows eager training down sevenfold, and Inductor puts back the global random state that it
found, under the feet of the training.) The parent's side is Compilation; ``python -m`` this module is the child's.
The child is niced and bounded in memory, writes nowhere but into its folder and Inductor's cache, and ends with the
parent, whatever ends that: then it removes the folder itself. Knows nothing of who waits for it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch._inductor import CompiledArtifact, config, cpu_vec_isa, standalone_compile  # type: ignore[attr-defined]

try:
    import resource
except ImportError:  # not on Windows: there a child's memory has no bound
    resource = None  # type: ignore[assignment]

from torchjanus.errors import NOWHERE, Refusal, Refused
from torchjanus.execute.store import Product, fingerprint, put_back
from torchjanus.graph.for_inductor import Prepared
from torchjanus.graph.shipping import Condition, Geometry, Opened, Sizes, pack, unpack

__all__ = ["Compilation", "Request", "ready_to_load"]

MEMORY = 8 << 30  # bytes, besides the example inputs; no more than half of what the machine has
NICENESS = 10
_WATCH = 0.25  # seconds between two looks at whether the parent lives


@dataclass(frozen=True, slots=True)
class Request:
    """All that a child needs to compile: the graph, what its inputs are like, and the settings to use."""

    graph: Prepared | bytes  # packed, on the way to the child
    examples: Sequence[Geometry]
    patches: dict[str, Any]
    threads: int
    default_dtype: torch.dtype
    sizes: Sizes = field(default_factory=Sizes)
    text: str = ""  # of the graph: by it the product is found again in another run; without it, it is not kept

    def packed(self) -> Request:
        """For another process. What is known of the graph's values is gone, then."""
        return self if isinstance(self.graph, bytes) else replace(self, graph=pack(self.graph))

    def key(self) -> str:
        """Equal keys, equal products."""
        return fingerprint((self.text, self.examples, self.sizes, self.patches, self.threads, self.default_dtype))


# By which Inductor has found out what the processor can do: it need not do so in each child.
_PROBES: dict[str, bytes] = {}


class Compilation:
    """Some graphs that are compiled one after the other in another process. ``result()`` waits for them."""

    def __init__(self, requests: Sequence[Request]) -> None:
        folder = tempfile.mkdtemp(prefix="torchjanus-")
        self._end: weakref.finalize[..., Any] = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._folder = Path(folder)
        self._count = len(requests)
        (self._folder / "requests").write_bytes(pickle.dumps(tuple(request.packed() for request in requests)))
        put_back(_PROBES, self._folder / "inductor")
        environment = {
            **os.environ,
            # The child must find the very torchjanus and torch that run here.
            "PYTHONPATH": os.pathsep.join(part for part in sys.path if part),
            # What a C++ compiler leaves behind when it is killed goes with the folder.
            "TMPDIR": folder,
            # What lies in a folder of its own is all that belongs to the artifacts.
            "TORCHINDUCTOR_CACHE_DIR": str(self._folder / "inductor"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",  # one core is what training can spare
        }
        self._log = self._folder / "log"
        with self._log.open("wb") as log:
            # A session of its own: an interrupt of the training is not for it, and all of it can be killed at once.
            self._child = subprocess.Popen(
                [sys.executable, "-m", "torchjanus.execute.worker", folder, str(os.getpid())],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True,
            )  # fmt: skip
        self._end.detach()
        # At the latest when nobody knows of it any more, or at the end of the program.
        self._end = weakref.finalize(self, _end, self._child, folder, os.getpid())

    def ready(self) -> bool:
        """Whether ``result`` would not have to wait."""
        return self._child.poll() is not None

    def result(self, timeout: float | None = None) -> list[Product]:
        """What has been compiled. Raises Refused if the compiler failed, TimeoutExpired after ``timeout`` seconds."""
        code = self._child.wait(timeout)
        try:
            if code != 0:
                what = f"Inductor cannot compile the step ({self._last_words(code)})"
                raise Refused(Refusal(NOWHERE, what, "The fault is Inductor's.", "Replay is used."))
            return [self._load(number) for number in range(self._count)]
        finally:
            self._end()

    def _load(self, number: int) -> Product:
        conditions, files, probes, proven = pickle.loads((self._folder / f"beside-{number}").read_bytes())
        _PROBES.update(probes)
        return Product((self._folder / f"artifact-{number}").read_bytes(), conditions, files, probes, proven)

    def _last_words(self, code: int) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines() if self._log.exists() else []
        said = lines[-1][:200] if lines else ""
        if code < 0:
            ended = f"its process was ended by {signal.Signals(-code).name}"
            return f"{ended}; the last that it said: {said}" if said else ended
        return said or f"exit status {code}"

    def kill(self) -> None:
        """Give it up: whoever waits for the result is told so."""
        _kill(self._child)

    def cancel(self) -> None:
        """Give it up, and leave nothing behind."""
        self._end()


def ready_to_load() -> None:
    """Import what loading an artifact would: that stops all threads for 0.3 s at a time, so it is done where a call
    takes long anyway."""
    for name in ("torch._inductor.compile_fx", "torch._functorch._aot_autograd.autograd_cache"):
        importlib.import_module(name)


def _kill(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(child.pid, signal.SIGKILL)  # a C++ compiler that it has started, too
        child.kill()


def _end(child: subprocess.Popen[bytes], folder: str, parent: int) -> None:
    if os.getpid() != parent:
        return  # a fork of the parent has no say
    _kill(child)
    child.wait()
    shutil.rmtree(folder, ignore_errors=True)


def compile_request(request: Request) -> tuple[CompiledArtifact, tuple[Condition, ...]]:
    """Compile, in this thread. Returns also what must hold of the sizes."""
    torch.set_default_dtype(request.default_dtype)
    torch.set_num_threads(request.threads)  # goes into the generated code
    with torch.no_grad(), Opened(request.examples, request.sizes) as opened:
        options = {"config_patches": request.patches}
        assert isinstance(request.graph, bytes)
        graph = unpack(request.graph)
        artifact = standalone_compile(graph, opened.examples, dynamic_shapes=opened.shapes, options=options)
        return artifact, opened.conditions()


def _watch(parent: int, folder: Path) -> None:
    """End with the parent, however that ends."""
    while os.getppid() == parent:
        time.sleep(_WATCH)
    shutil.rmtree(folder, ignore_errors=True)
    if hasattr(os, "killpg") and os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _loaded(libraries: set[Path]) -> set[Path]:
    """Those that this process runs; all, where that cannot be told."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return libraries
    mapped = {line.split(maxsplit=5)[5] for line in maps.read_text().splitlines() if line.endswith(".so")}
    return {path for path in libraries if str(path.resolve()) in mapped}


def _proven() -> bool:
    """Whether all the sets of instructions that the processor is said to have were found to work."""
    found = cpu_vec_isa.valid_vec_isa_list()
    with config.patch({"cpp.vec_isa_ok": True}):
        said = cpu_vec_isa.valid_vec_isa_list.__wrapped__()
    return [*map(str, found)] == [*map(str, said)]


def _contents(folder: Path, paths: set[Path]) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(paths)}


def _bound(requests: Sequence[Request]) -> None:
    """Bound the memory of this process and of those that it starts, each."""
    if resource is None or not hasattr(resource, "RLIMIT_DATA"):
        return
    limit = min(MEMORY, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
    limit += max((sum(example.bytes for example in request.examples) for request in requests), default=0)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def main(folder: Path, parent: int) -> None:
    """The child: compile what is asked for in the folder, and save it there."""
    threading.Thread(target=_watch, args=(parent, folder), daemon=True).start()
    os.nice(NICENESS)  # the training goes first
    requests: tuple[Request, ...] = pickle.loads((folder / "requests").read_bytes())
    _bound(requests)
    cache = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    used: set[Path] = set()
    for number, request in enumerate(requests):
        artifact, conditions = compile_request(request)
        libraries = {path for path in cache.rglob("*.so") if path not in used}
        loaded = libraries & _loaded(libraries)
        used |= loaded
        beside = (conditions, _contents(cache, loaded), _contents(cache, libraries - loaded), _proven())
        (folder / f"beside-{number}").write_bytes(pickle.dumps(beside))
        artifact.save(path=str(folder / f"artifact-{number}"), format="binary")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
