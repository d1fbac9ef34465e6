"""What a measurement is kept as: a JSON file that says what was run, on what, and with which versions."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

__all__ = ["RESULTS", "ROOT", "machine", "write"]

ROOT = Path(__file__).resolve().parents[1]  # from which ``python -m benchmarks...`` is run
RESULTS = ROOT / "benchmarks" / "results"


def processor() -> str:
    """The model name of the CPU; platform's answer where the kernel does not say."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def revision() -> str | None:
    """The commit that is measured, with a plus sign where files differ from it; None outside of a checkout."""
    asked = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=RESULTS.parent, capture_output=True, text=True, check=False
    )
    if asked.returncode != 0:
        return None
    # The results themselves are rewritten by every run.
    changed = subprocess.run(
        ["git", "status", "--porcelain", "--untracked-files=no", ":/", ":(exclude)results"],
        cwd=RESULTS.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    return asked.stdout.strip() + ("+" if changed.stdout else "")


def machine(device: str) -> dict[str, Any]:
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "numpy")}
    return {
        "python": platform.python_version(),
        "versions": versions,
        "revision": revision(),
        "system": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def write(name: str, arguments: Sequence[str], device: str, content: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write ``folder/name.json``: the command line, the machine, and ``content``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    spec = getattr(sys.modules["__main__"], "__spec__", None)  # of what ``python -m`` runs
    module = spec.name.removesuffix(".__main__") if spec else Path(sys.argv[0]).stem
    # Where an interpreter lies on this machine is nobody's business.
    given = (Path(argument).name if os.path.isabs(argument) else argument for argument in arguments)
    record = {"command": ["python", "-m", module, *given], "machine": machine(device), **content}
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path
