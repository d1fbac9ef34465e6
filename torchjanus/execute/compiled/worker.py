"""Compiles with Inductor in a process of its own, so that no training step waits and no random state is changed.

(In a thread, compiling makes eager training seven times slower, and Inductor restores the global random state that it
found, in the middle of the training.) The parent's side is Compilation; ``python -m`` this module is the child's. This
module does not know who waits for it.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from torchjanus.core.errors import refused
from torchjanus.core.lazy import deferred
from torchjanus.core.logs import logger
from torchjanus.execute.compiled.child import Child, begin, bound
from torchjanus.execute.compiled.extension import Extension, extension_of
from torchjanus.execute.compiled.store import Product, fingerprint, put_back
from torchjanus.graph.lowering.for_inductor import Prepared
from torchjanus.graph.lowering.prepared_bytes import (
    Condition,
    Geometry,
    Sizes,
    UnpackedExamples,
    on_device,
    pack,
    text_of,
    unpack,
)
from torchjanus.graph.operators.data_sizes import found_sizes

__all__ = ["Compilation", "Request"]

after_mutation = deferred("torchjanus.execute.compiled.after_mutation")

inductor = deferred("torch._inductor")

log = logger("store")


@dataclass(frozen=True, slots=True)
class Request:
    """All that a child needs to compile: the graph, the geometry of its inputs, and the settings."""

    graph: Prepared | bytes  # packed, on the way to the child
    examples: Sequence[Geometry]
    patches: dict[str, Any]
    threads: int
    default_dtype: torch.dtype
    sizes: Sizes = field(default_factory=Sizes)
    text: str = ""  # of the graph: part of the product's key in the store; without it, the product is not stored

    @classmethod
    def of(
        cls, prepared: Prepared, examples: Sequence[torch.Tensor], patches: dict[str, Any], dtype: torch.dtype
    ) -> Request:
        """Return the request for a graph; ``examples``: its inputs, fake tensors where sizes vary."""
        geometries = tuple(Geometry.of(tensor) for tensor in examples)
        sizes, text = Sizes.of(examples, found_sizes(prepared.graph)), text_of(prepared)
        return cls(prepared, geometries, patches, torch.get_num_threads(), dtype, sizes, text)

    def packed(self) -> Request:
        """Return the request for another process, without metadata of the graph's values."""
        return self if isinstance(self.graph, bytes) else replace(self, graph=pack(self.graph))

    def key(self) -> str:
        """Return a key that is equal for equal products."""
        return fingerprint((self.text, self.examples, self.sizes, self.patches, self.threads, self.default_dtype))


# Libraries by which Inductor has tested the processor: children need not repeat the tests.
_PROBES: dict[str, bytes] = {}


class Compilation:
    """Some graphs that are compiled one after the other in another process. ``result()`` waits for them."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._count = len(requests)
        packed = pickle.dumps(tuple(request.packed() for request in requests))

        def fill(folder: Path) -> dict[str, str]:
            (folder / "requests").write_bytes(packed)
            put_back(_PROBES, folder / "inductor")
            return {
                # In a folder of its own, all files belong to the artifacts.
                "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
                "TORCHINDUCTOR_COMPILE_THREADS": "1",  # training can spare one core
            }

        elsewhere = any(on_device(request.examples) for request in requests)
        self.child = Child("torchjanus.execute.compiled.worker", fill, forked=not elsewhere)

    def ready(self) -> bool:
        """Whether ``result`` would return at once."""
        return self.child.ready()

    def result(self, timeout: float | None = None) -> list[Product]:
        """Return what has been compiled. Raises Refused if the compiler failed, TimeoutExpired after ``timeout``
        seconds."""
        failure = self.child.wait(timeout)
        try:
            if failure:
                what = f"Inductor cannot compile the step ({failure})"
                raise refused("inductor-compile", what, "The fault is Inductor's.", "Replay is used.")
            return [self._load(number) for number in range(self._count)]
        finally:
            self.child.cancel()

    def _load(self, number: int) -> Product:
        folder = self.child.folder
        product: Product = pickle.loads((folder / f"product-{number}").read_bytes())
        _PROBES.update(product.probes)
        return product

    def kill(self) -> None:
        """Kill the child; ``result`` raises then."""
        self.child.kill()

    def cancel(self) -> None:
        """Kill the child, and remove its files."""
        self.child.cancel()


def compile_request(request: Request) -> tuple[Any, tuple[Condition, ...]]:
    """Compile in this thread. Returns the artifact and the conditions on sizes."""
    torch.set_default_dtype(request.default_dtype)
    torch.set_num_threads(request.threads)  # goes into the generated code
    with torch.no_grad(), UnpackedExamples(request.examples, request.sizes) as opened:
        assert isinstance(request.graph, bytes)
        graph = unpack(request.graph)
        artifact = inductor.standalone_compile(
            graph, opened.examples, dynamic_shapes=opened.shapes, options=after_mutation.options(request.patches)
        )
        return artifact, opened.conditions()


def _loaded(libraries: set[Path]) -> set[Path]:
    """Return the libraries that this process has loaded; all, where that is not known."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return libraries
    mapped = {line.split(maxsplit=5)[5] for line in maps.read_text().splitlines() if line.endswith(".so")}
    return {path for path in libraries if str(path.resolve()) in mapped}


_UNTESTED = {"cpp.vec_isa_ok": True}  # Inductor believes in the instruction sets that the processor reports


def _reported() -> list[Any]:
    """Return the instruction sets that the processor reports, the best one first."""
    with inductor.config.patch(_UNTESTED):
        return [*inductor.cpu_vec_isa.valid_vec_isa_list.__wrapped__()]


def _proven() -> bool:
    """Whether all instruction sets that the processor reports were found to work."""
    return [*map(str, inductor.cpu_vec_isa.valid_vec_isa_list())] == [*map(str, _reported())]


def _is_used_by_aten() -> bool:
    """Whether ATen's own kernels use the best instruction set that the processor reports. Then Inductor's test of it
    need not be made: it compiles a program, which takes seconds."""
    best = next(iter(_reported()), None)
    return best is not None and best.build_macro()[:1] == [f"CPU_CAPABILITY_{torch.backends.cpu.get_cpu_capability()}"]


def _compiled(request: Request) -> tuple[Any, tuple[Condition, ...], bool]:
    """Compile. Returns the artifact, the conditions on sizes, and whether all reported instruction sets work."""
    if _is_used_by_aten():
        try:
            with inductor.config.patch(_UNTESTED):
                return (*compile_request(request), True)
        except Exception as error:  # the C++ compiler may not know them: Inductor tests that
            log.debug("compiled once more, after Inductor's tests: %s: %s", type(error).__name__, error)
            inductor.cpu_vec_isa.valid_vec_isa_list.cache_clear()
    return (*compile_request(request), _proven())


def _contents(folder: Path, paths: set[Path]) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(paths)}


def main(folder: Path, parent: int) -> None:
    """The child: compile what is requested in the folder, and save it there."""
    begin(folder, parent)
    requests: tuple[Request, ...] = pickle.loads((folder / "requests").read_bytes())
    if not any(on_device(request.examples) for request in requests):  # CUDA reserves addresses without end
        bound(max((sum(example.bytes for example in request.examples) for request in requests), default=0))
    cache = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    used: set[Path] = set()
    for number, request in enumerate(requests):
        artifact, conditions, proven = _compiled(request)
        libraries = {path for path in cache.rglob("*.so") if path not in used}
        loaded = libraries & _loaded(libraries)
        used |= loaded
        saved = folder / "artifact"
        artifact.save(path=str(saved), format="binary")
        product = Product(
            saved.read_bytes(),
            conditions,
            _contents(cache, loaded),
            _contents(cache, libraries - loaded),
            proven,
            _extension_of(artifact, saved.read_bytes(), cache),
        )
        (folder / f"product-{number}").write_bytes(pickle.dumps(product))


def _extension_of(artifact: Any, saved: bytes, cache: Path) -> Extension | None:
    try:
        return extension_of(artifact, saved, cache)
    except Exception as error:  # another version of torch: its own loading is slower, but right
        log.debug("what is compiled has to be loaded with Inductor: %s: %s", type(error).__name__, error)
        return None


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
