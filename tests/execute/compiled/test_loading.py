"""A process that runs what another one has compiled has no use for the compiler, and does not import it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from torchjanus.execute.compiled.store import VARIABLE

PROGRAM = """
    import dataclasses, sys, torch, torchjanus
    from torchjanus.execute.compiled import loading
    from torchjanus.execute.compiled.store import Product, store_in_use

    COMPILER = [f"torch._inductor.{name}" for name in ("compile_fx", "graph", "lowering", "select_algorithm")]
    LOADER = ["torch._inductor.codecache", "torch._inductor.output_code", "torch._inductor.debug"]

    def imported(names):
        return [name for name in names if name in sys.modules]

    torch.manual_seed(0)
    net = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    @torchjanus.speculate(executor="auto")
    def step(x):
        optimizer.zero_grad()
        loss = net(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for number in range(4):
        step(torch.ones(5, 4))
    step.wait()
    (entry,) = step.entries
    entry.engine.wait()
    for number in range(100_000):  # on a busy machine trials are deferred
        if any("agreed" in note for note in entry.engine.notes):
            break
        step(torch.ones(5, 4))
    print([note for note in entry.engine.notes if note.startswith(("inductor", "not"))])
    print(imported(COMPILER + LOADER))

    # What is more than one extension module is loaded as torch does, but without the compiler.
    store = store_in_use()
    words = (b"passed", b"leads", b"trails")
    kept = [store.get(key) for key in store._cache if store.read(key) not in words]
    (product,) = [one for one in kept if isinstance(one, Product) and isinstance(one.artifact, bytes)]
    artifact = dataclasses.replace(product, extension=None)
    print(type(artifact.load()).__name__, imported(COMPILER), len(imported(LOADER)))

    # Where torch keeps its artifacts in another way, it loads them itself.
    loading._HEADER = b"another"
    print(callable(artifact.load()), COMPILER[0] in sys.modules)
"""


@pytest.mark.slow
def test_what_has_been_compiled_elsewhere_is_loaded_without_the_compiler(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(PROGRAM))
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o700)
    environment = {
        **os.environ,
        VARIABLE: str(kept),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "PYTHONPATH": os.pathsep.join(part for part in sys.path if part),
    }
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    notes, imported, without, fallback = done.stdout.splitlines()
    assert "agreed with replay on 3 calls" in notes
    assert imported == "[]"
    assert without == "Loaded [] 3"
    assert fallback == "True True"
