"""The corpus on another device, or with other random numbers: every program as it is and speculated, compared.

    python -m benchmarks.robustness.on_device --device cuda --jobs 12 --seconds 240
    python -m benchmarks.robustness.on_device --jobs 2 --seed 1 loops branches        # these files of the corpus only
    python -m benchmarks.robustness.on_device --executor cudagraph --seconds 600      # captures, recorded on the CPU

Takes an hour for the whole corpus.

Each program runs eagerly twice, since kernels of a GPU may add up in another order each time, and then speculated.
Where eager is not like itself, and where a program was written for a CPU (it raises on the device, or hands tensors to
NumPy), nothing is said about speculation. Files run in processes of their own; one whose device is broken by a failed
kernel (an index that is out of range) is begun again behind that program. With ``--seconds`` no program is begun after
that time: which ones are left out is said. Ends with status 1 where a program differs by more than ``CLOSE``.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from benchmarks.record import RESULTS, ROOT, write
from tests.programs import harness
from torchjanus.execute.cuda_graph.device import substituted
from torchjanus.execute.cuda_graph.recorded import Recorded
from torchjanus.runtime.entries import trial_calls

__all__ = ["main"]

CLOSE = 1e-4  # relative to the largest number of a tensor
BROKEN = 3  # the exit status of a process whose device is of no use any more


def plain(text: str) -> str:
    """Without the folders of this machine."""
    for folder in (f"{ROOT}/", f"{Path(torch.__file__).parents[1]}/"):
        text = text.replace(folder, "")
    return text


def reported(error: BaseException) -> str:
    return plain(f"{type(error).__name__}: {error}".partition("\n")[0])[:300]


def asked(category: str, name: str, device: str, executor: str) -> dict[str, Any]:
    """One program: what became of it, in a word, and what there is to say of that."""
    file = harness.files()[category]
    spec = getattr(harness.load_file(file), name).spec

    def run(with_executor: str | None) -> harness.Run:
        return harness.run_in(harness.load_file(file), name, with_executor)

    try:
        eager = run(None)
    except Exception as error:
        return {"verdict": "not for this device", "why": reported(error)}
    again = harness.compare(eager, run(None))
    try:
        other = run(executor)
    except Exception as error:
        return {"verdict": "raised", "why": reported(error)}
    counts = [step.statistics() for step in other.steps]
    faults = [event.text for step in other.steps for event in step.events if event.kind == "fault"]
    reasons = [event.text for step in other.steps for event in step.events if event.kind == "refused"]
    found: dict[str, Any] = {"speculated": sum(one.speculated for one in counts), "expected": spec.speculated}
    if found["speculated"] < spec.speculated and reasons:
        found["refused"] = plain(reasons[0])[:300]
    if faults:
        return {"verdict": "fault", "why": plain(faults[0])[:600], **found}
    differences = harness.compare(eager, other)
    if not differences:
        return {"verdict": "same", **found}
    if again:
        return {"verdict": "eager is not like itself", **found}
    if far := harness.compare(eager, other, max(CLOSE, spec.close)):
        return {"verdict": "differs", "why": plain(far[0])[:600], **found}
    if not spec.close:
        return {"verdict": "close, not bitwise", "why": plain(differences[0])[:600], **found}
    return {"verdict": "close", **found}


def work(category: str, names: Sequence[str], options: argparse.Namespace) -> int:
    """Ask programs of one file one after the other, a line of JSON for each."""
    device, executor, until = options.device, options.executor, options.until
    torch.set_num_threads(1)
    if device != "cpu":
        torch.set_default_device(device)
    harness.SEED = options.seed
    captures = executor == "cudagraph"
    if captures:
        # What captures give is compared here, as soon as there are some.
        trial_calls._TRIED = trial_calls._TRIED_SIZES = 0
    for name in names:
        if time.time() > until:
            break
        with substituted(Recorded()) if captures and device == "cpu" else nullcontext():
            found = asked(category, name, device, executor)
        print(json.dumps({"program": f"{category}-{name}", **found}), flush=True)
        if device.startswith("cuda"):
            try:
                torch.cuda.synchronize()
            except RuntimeError:
                return BROKEN
    return 0


def file_asked(category: str, names: list[str], options: argparse.Namespace, until: float) -> Iterator[dict[str, Any]]:
    """All programs of a file, in as many processes as it takes."""
    while names and time.time() < until:
        command = [sys.executable, "-m", "benchmarks.robustness.on_device", "--device", options.device, "--executor"]
        command += [options.executor, "--seed", str(options.seed), "--until", str(until), "--only", category, *names]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=until - time.time() + 30)
        except subprocess.TimeoutExpired as late:
            lines = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
            yield from (json.loads(line) for line in lines.splitlines() if line.startswith('{"program"'))
            return
        made = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"program"')]
        yield from made
        names = names[len(made) :]
        if ran.returncode not in (0, BROKEN) and names:
            yield {"program": f"{category}-{names[0]}", "verdict": "crashed", "why": plain(ran.stderr.strip()[-600:])}
            names = names[1:]
        elif ran.returncode == 0:
            return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="files of the corpus, without .py; all by default")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--executor", default="replay")
    parser.add_argument(
        "--seed", type=int, default=harness.SEED, help="of what programs draw; how many calls are served depends on it"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin no program after that time")
    parser.add_argument("--record", action="store_true", help="write results/on_device.json")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        return work(options.only, options.files, options)
    until = time.time() + options.seconds
    files: dict[str, list[str]] = {}
    for category, name in harness.programs():
        if not options.files or category in options.files:
            files.setdefault(category, []).append(name)
    if unknown := set(options.files) - files.keys():
        parser.error(f"not in the corpus: {', '.join(sorted(unknown))}")
    order = random.Random(options.seed).sample(sorted(files), len(files))
    with ThreadPoolExecutor(options.jobs) as pool:
        asking = [pool.submit(lambda c=c: list(file_asked(c, files[c], options, until))) for c in order]
        found = [one for future in asking for one in future.result()]
    counts = Counter(one["verdict"] for one in found)
    served = [one for one in found if one.get("expected")]
    less = [one for one in served if one["speculated"] < one["expected"]]
    for one in found:
        if one["verdict"] in ("differs", "fault", "raised", "crashed", "close, not bitwise"):
            print(f"{one['verdict']}: {one['program']}: {one['why']}")
    for one in less:
        print(f"less: {one['program']}: {one['speculated']} of {one['expected']}: {one.get('refused', '')}")
    asked_for = sum(map(len, files.values()))
    summary = {"programs": asked_for, "asked": len(found), **counts, "speculated": len(served) - len(less)}
    print("\n" + ", ".join(f"{name}: {count}" for name, count in summary.items()))
    if options.record:
        given = [one for one in sys.argv[1:] if one != "--record"]
        content = {"summary": summary, "programs": [one for one in found if one["verdict"] != "same"]}
        print(f"wrote {write('on_device', given, options.device, content, RESULTS)}")
    return 1 if counts["differs"] or counts["fault"] or counts["raised"] or counts["crashed"] else 0


if __name__ == "__main__":
    sys.exit(main())
