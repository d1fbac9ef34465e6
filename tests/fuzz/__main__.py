"""``python -m tests.fuzz --count 20000 --seed 1``: run many made-up programs, in batches, and sum them up.

Each batch runs in an interpreter of its own, so that memory stays bounded and a crash of the interpreter costs (and
names) one batch. ``python -m tests.fuzz FILE ...`` runs saved programs again.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

# Before torch is imported: OpenMP reads it once.
os.environ["OMP_NUM_THREADS"] = "1"

import torch
from tqdm import tqdm

from tests.fuzz.campaign import TOPICS, Summary, campaign, place_of, reduce_failure
from tests.fuzz.running import Outcome, check_file

BATCH = 250


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="saved programs to run again")
    parser.add_argument("--count", type=int, default=1000, help="how many programs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--topic", choices=TOPICS, default="training", help="what the programs are about")
    parser.add_argument("--jobs", type=int, default=1, help="batches at a time")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"), help="where finds and the summary go")
    parser.add_argument("--no-reduce", action="store_true", help="keep finds as they are")
    parser.add_argument("--batch", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("torchjanus").setLevel(logging.CRITICAL)
    if given.files:
        return replay(given.files)
    if given.batch:
        batch(given.count, given.seed, given.out, not given.no_reduce, given.topic)
        return 0
    return whole(given)


def replay(files: list[Path]) -> int:
    """Run saved programs; say where they differ."""
    bad = 0
    for path in files:
        outcome = check_file(path.resolve())
        bad += bool(outcome.found)
        state = f"{outcome.speculated} of {outcome.calls} calls speculated, {len(outcome.raised)} raised"
        print(f"{path}: {state}", *outcome.found, *(f"refused: {what}" for what in outcome.refusals), sep="\n  ")
    return 1 if bad else 0


def batch(count: int, seed: int, out: Path, reduce: bool, topic: str) -> None:
    """One batch in this interpreter. Tells the parent of its progress, and of the sum at last, on standard output."""

    def found(source: str, outcome: Outcome) -> None:
        path = out / f"found_{seed}_{summary_so_far[0]}.py"
        place = place_of(outcome)
        text = reduce_failure(source, outcome) if reduce and place not in places else source
        places.add(place)
        path.write_text("".join(f"# {line}\n" for line in "\n".join(outcome.found).split("\n")) + text)
        if text != source:
            path.with_suffix(".whole.py").write_text(source)
        files.append(str(path))

    def after(summary: Summary) -> None:
        summary_so_far[0] = summary.programs
        print(json.dumps({"programs": summary.programs}), flush=True)

    summary_so_far = [0]
    files: list[str] = []
    places: set[str] = set()
    summary = campaign(count, seed, found, after, topic)
    summary.found = files
    print(json.dumps({"summary": asdict(summary)}), flush=True)


def whole(given: argparse.Namespace) -> int:
    given.out.mkdir(parents=True, exist_ok=True)
    sizes = [min(BATCH, given.count - start) for start in range(0, given.count, BATCH)]
    waiting = [(size, given.seed * 100_000 + number) for number, size in enumerate(sizes)]
    total = Summary()
    crashed: list[str] = []
    began = time.perf_counter()
    with tqdm(total=given.count, unit=" programs", dynamic_ncols=True) as bar:
        running: list[tuple[subprocess.Popen[str], int]] = []
        while waiting or running:
            while waiting and len(running) < max(1, given.jobs):
                size, seed = waiting.pop(0)
                command = [sys.executable, "-m", "tests.fuzz", "--batch", f"--count={size}", f"--seed={seed}"]
                command += [f"--topic={given.topic}"]
                command += [f"--out={given.out}", *(["--no-reduce"] if given.no_reduce else [])]
                log = (given.out / f"batch_{seed}.log").open("w")
                running.append((subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True), seed))
                log.close()
            child, seed = running.pop(0)
            assert child.stdout is not None
            reported = None
            # With several jobs the others fill their pipes meanwhile: 250 short lines fit.
            for line in child.stdout:
                message = json.loads(line)
                reported = message.get("summary")
                bar.update("programs" in message)
            if child.wait() or reported is None:
                crashed.append(f"batch {seed} ended with {child.returncode}: see {given.out}/batch_{seed}.log")
                bar.write(crashed[-1])
            else:
                (given.out / f"batch_{seed}.log").unlink()
                total.merge(Summary(**reported))
                share = total.late_speculated / max(total.late, 1)
                bar.set_postfix(mismatches=total.mismatches, speculated=f"{share:.0%}", refused=total.refused)
    content = {
        "seed": given.seed,
        "topic": given.topic,
        "seconds": round(time.perf_counter() - began, 1),
        **total.reported(),
        "crashed_batches": crashed,
    }
    (given.out / "summary.json").write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(content, indent=1))
    return 1 if total.mismatches or crashed else 0


if __name__ == "__main__":
    sys.exit(main())
