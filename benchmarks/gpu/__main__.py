"""Check and measure on a GPU, within a budget of seconds, the most important first.

    python -m benchmarks.gpu --budget 540 --out FOLDER
    python -m benchmarks.gpu --device cpu --short --budget 120      # the script itself, on a CPU

Each item runs in a process of its own, so that a fault of the device ends one item only. The record (``gpu.json`` in
``--out``, else in benchmarks/results) is written after each item: a stop loses nothing. Where there is no CUDA it says
so, and ends with status 2. Ends with status 1 where results differ.

Takes as long as ``--budget`` says.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.contenders import (
    CONTENDERS,
    NotHere,
    contender,
    equality,
    interleaved,
    observed,
    on_device,
    warm,
)
from benchmarks.record import RESULTS, ROOT, revision

__all__ = ["main"]

# In this order. "corpus" is a share of the corpus under the executor.
ITEMS = (
    "equal lenet", "lenet", "equal lstm", "lstm", "corpus", "sac", "ppo", "a3c", "gpt2", "bert", "lm", "gan",
    "treelstm",
)  # fmt: skip
SHARES = {
    "corpus": 0.2,
    "equal lenet": 0.1,
    "equal lstm": 0.1,
}  # of the budget, at most; others share alike what is left
CLOSE = 1e-4


def measured(program: str, options: argparse.Namespace) -> dict[str, Any]:
    """One program by all contenders, as far as the time goes; each finding is printed when it is known."""
    began, device, short = time.monotonic(), options.device, options.short
    until = began + options.seconds
    entrants, found = [], dict[str, Any]()
    for name in CONTENDERS:
        # What compiles for long comes last, and only if there is time for it.
        if entrants and time.monotonic() > began + 0.7 * options.seconds:
            found[name] = {"skipped": "no time"}
            continue
        try:
            one = contender(name, program, device, short)
            start = time.monotonic()
            calls = warm(one, device, start + options.seconds / 4, 16 if short else 40)
            found[name] = {"warm_s": time.monotonic() - start, "warm_calls": calls}
        except NotHere as why:
            found[name] = {"skipped": str(why)}
        except Exception as error:
            found[name] = {"raised": f"{type(error).__name__}: {error}"[:500]}
        else:
            entrants.append(one)
    blocks = interleaved(entrants, device, 3 if short else 20, 2 if short else 9, until)
    for one in entrants:
        found[one.name] |= blocks[one.name] | one.notes()
        try:
            found[one.name] |= observed(one, device)
        except Exception as error:
            found[one.name]["not_observed"] = f"{type(error).__name__}: {error}"[:300]
    reference = found["eager"].get("median_us")
    for one in entrants:
        found[one.name]["times_eager"] = reference / found[one.name]["median_us"]
    return found


def corpus(options: argparse.Namespace) -> dict[str, Any]:
    """A share of the corpus, in processes of their own (see benchmarks.robustness.on_device)."""
    if options.device == "cpu":
        return {"skipped": "tests/execute/cuda_graph does this on the CPU"}
    out = Path(options.out or RESULTS) / "corpus.json"
    command = [sys.executable, "-m", "benchmarks.robustness.on_device", "--device", options.device]
    command += ["--executor", "cudagraph", "--jobs", "12", "--seconds", str(int(options.seconds)), "--record"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=options.seconds + 60)
    written = RESULTS / "on_device.json"
    if written.exists() and written != out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(written.read_text())
    return {"status": ran.returncode, "said": ran.stdout.strip()[-3000:], "errors": ran.stderr.strip()[-500:]}


def item(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Do one item in this process."""
    if name == "corpus":
        return corpus(options)
    with on_device(options.device):
        if name.startswith("equal "):
            return equality(name.partition(" ")[2], options.device, options.short, "cudagraph", 12)
        found = measured(name, options)
        if time.monotonic() < options.begun + 0.9 * options.seconds:
            found["equality"] = equality(name, options.device, options.short, "cudagraph", 12)
        return found


def machine(device: str) -> dict[str, Any]:
    """What the record is about. Packages may be missing there."""
    versions = {}
    for name in ("torch", "triton", "numpy"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    cuda = device.startswith("cuda")
    return {
        "python": platform.python_version(),
        "versions": versions,
        "revision": revision() if (ROOT / ".git").exists() else None,
        "device": torch.cuda.get_device_name(device) if cuda else device,
        "cuda": torch.version.cuda if cuda else None,
        "cores": os.cpu_count(),
    }


def run_item(name: str, options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Do one item in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--item", name, "--device", options.device]
    command += ["--seconds", str(seconds), *(["--short"] if options.short else [])]
    command += ["--out", options.out] if options.out else []
    environment = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", **os.environ, "PYTHONPATH": str(ROOT)}
    began = time.monotonic()
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=seconds + 45, env=environment, cwd=ROOT
        )
    except subprocess.TimeoutExpired:
        return {"item": name, "ended": "by its time limit", "took_s": time.monotonic() - began}
    lines = [line for line in ran.stdout.splitlines() if line.startswith('{"item"')]
    found = json.loads(lines[-1]) if lines else {"item": name, "ended": ran.returncode, "said": ran.stderr[-1500:]}
    return {**found, "took_s": time.monotonic() - began}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("items", nargs="*", help=f"of {', '.join(ITEMS)}; all by default")
    parser.add_argument("--budget", type=float, default=540.0, help="seconds, for all of it")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--short", action="store_true", help="small programs and few calls")
    parser.add_argument("--out", help="the folder of the record")
    parser.add_argument("--item", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=60.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.begun = time.monotonic()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("There is no CUDA device here: nothing is measured. (--device cpu --short tries the script itself.)")
        return 2
    if options.item is not None:
        print(json.dumps({"item": options.item, **item(options.item, options)}), flush=True)
        return 0
    path = Path(options.out or RESULTS) / "gpu.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {"machine": machine(options.device), "budget_s": options.budget, "items": []}
    names = list(options.items or ITEMS)
    for place, name in enumerate(names):
        left = options.budget - (time.monotonic() - options.begun)
        if left < 15:
            record["left_out"] = names[place:]
            break
        share = SHARES.get(name, 1 / max(1, len(names) - place)) * (options.budget if name in SHARES else 1.5 * left)
        found = run_item(name, options, max(10.0, min(share, left - 10)))
        record["items"].append(found)
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(summary(found), flush=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"written: {path.name}")
    return int(any(map(differs, record["items"])))


def differs(found: dict[str, Any]) -> bool:
    """Whether results are not eager's, as far as eager's are its own."""
    equal = found.get("equality", found)
    if "bitwise" not in equal or equal["bitwise"] or not equal["eager_is_like_itself"]:
        return False
    return bool(equal["largest_difference"] > CLOSE)


def summary(found: dict[str, Any]) -> str:
    """One line for people."""
    parts = [f"{found['item']:14} {found['took_s']:6.1f} s"]
    if "ended" in found:
        parts.append(f"ended {found['ended']}: {found.get('said', '').strip()[-200:]}")
    for name in CONTENDERS:
        one = found.get(name, {})
        if "times_eager" in one:
            waits = f" waits {one['waits']:.1f}" if "waits" in one else ""
            parts.append(f"{name} {one['median_us']:.0f} us ({one['times_eager']:.2f}){waits}")
    equal = found.get("equality", found)
    if "bitwise" in equal:
        parts.append("bitwise" if equal["bitwise"] else f"differs by {equal['largest_difference']:.1e}")
    return "; ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
