"""Compiles for Inductor in a process of its own, so that no training step waits and no random state is touched.

(In a thread, compiling slows eager training down sevenfold, and Inductor puts back the global random state that it
found, under the feet of the training.) The parent's side is Compilation; ``python -m`` this module is the child's.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._inductor import CompiledArtifact, standalone_compile  # type: ignore[attr-defined]

from torchjanus.errors import NOWHERE, Refusal, Refused
from torchjanus.graph.shipping import unpack

__all__ = ["Compilation", "Geometry", "Request"]


@dataclass(frozen=True, slots=True)
class Geometry:
    """What an example input is like."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: str

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Geometry:
        """The geometry of a tensor."""
        return cls(tuple(tensor.size()), tuple(tensor.stride()), tensor.dtype, str(tensor.device))

    def make(self) -> torch.Tensor:
        """A tensor of this geometry, of any contents."""
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)


@dataclass(frozen=True, slots=True)
class Request:
    """All that a child needs to compile: the packed graph, what its inputs are like, and the settings to use."""

    graph: bytes
    examples: Sequence[Geometry]
    patches: dict[str, Any]
    threads: int
    default_dtype: torch.dtype


class Compilation:
    """A compilation that goes on in another process. ``result()`` waits for it and loads it."""

    def __init__(self, request: Request) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="torchjanus-")
        self._artifact = Path(self._folder.name, "artifact")
        task = Path(self._folder.name, "request")
        task.write_bytes(pickle.dumps(request))
        # The child must find the very torchjanus and torch that run here.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
        self._log = Path(self._folder.name, "log")
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "torchjanus.execute.worker", str(task), str(self._artifact)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
            )  # fmt: skip

    def ready(self) -> bool:
        """Whether ``result`` would not have to wait."""
        return self._child.poll() is not None

    def result(self, timeout: float | None = None) -> Callable[..., Any]:
        """The compiled function. Raises Refused if the compiler failed, TimeoutExpired after ``timeout`` seconds."""
        code = self._child.wait(timeout)
        if code != 0:
            lines = self._log.read_text(errors="replace").strip().splitlines() or [f"exit status {code}"]
            what = f"Inductor cannot compile the step ({lines[-1][:200]})"
            self._folder.cleanup()
            raise Refused(Refusal(NOWHERE, what, "The fault is Inductor's.", "Replay is used."))
        artifact = CompiledArtifact.load(path=str(self._artifact), format="binary")
        self._folder.cleanup()
        return artifact

    def cancel(self) -> None:
        """Give it up."""
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()
        self._folder.cleanup()


def compile_request(request: Request) -> CompiledArtifact:
    """Compile, in this thread."""
    torch.set_default_dtype(request.default_dtype)
    with torch.no_grad():
        return standalone_compile(
            unpack(request.graph),
            [geometry.make() for geometry in request.examples],
            dynamic_shapes="from_example_inputs",
            options={"config_patches": request.patches},
        )


def main(task: str, target: str) -> None:
    """The child: compile what ``task`` asks for and save it at ``target``."""
    os.nice(5)  # the training goes first
    request = pickle.loads(Path(task).read_bytes())
    torch.set_num_threads(request.threads)  # goes into the generated code
    compile_request(request).save(path=target, format="binary")


if __name__ == "__main__":
    main(*sys.argv[1:])
