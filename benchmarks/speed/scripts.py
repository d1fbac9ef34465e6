"""Whole scripts that never mention torchjanus: what ``torchjanus run`` finds in them, and the time from start to end.

    python -m benchmarks.speed.scripts [--rounds N] [--record] [NAME ...]
    python -m benchmarks.speed.scripts --short      # a few steps of each: results and found steps, no times
    python -m benchmarks.speed.scripts --again --threads 2 [NAME ...]   # a second run, too, which finds what is kept
    python -m benchmarks.speed.scripts --long --compiled [NAME ...]     # minutes of each, and torch.compile

Each script of benchmarks/programs/scripts is run by ``python`` and by ``torchjanus run``, in turn, one thread, with an
empty store. Its standard output must be the same. The table has the steps that were found, the share of their calls
that graphs made as a whole or in part, and the median of the ratios of wall times (above 1: torchjanus is faster).
``--compiled``: the script by ``python`` once more, each model compiled by ``torch.compile`` when the script makes its
optimizer (benchmarks/programs/compiled_models.py), and the same ratio.

Takes 40 minutes; with ``--long --rounds 1``, two hours.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.record import RESULTS, write

FOLDER = Path(__file__).resolve().parents[1] / "programs" / "scripts"
ROOT = Path(__file__).resolve().parents[2]
# The option that says how long a script trains, and the value for a short run.
SHORT = {
    "actor_critic": ("--episodes", "5"),
    "autoencoder": ("--epochs", "1"),
    "bert_classifier": ("--num_epochs", "1"),
    "character_gpt": ("--iters", "20"),
    "character_lstm": ("--epochs", "1"),
    "dcgan": ("--epochs", "1"),
    "deep_q_learning": ("--episodes", "5"),
    "diffusion": ("--epochs", "1"),
    "digits_convnet": ("--epochs", "1"),
    "gan_trainer": ("--epochs", "1"),
    "mnist_convnet": ("--samples", "640"),
    "policy_gradient": ("--episodes", "5"),
    "regression": ("--epochs", "60"),
    "siamese": ("--epochs", "1"),
    "soft_actor_critic": ("--total-timesteps", "600"),
    "super_resolution": ("--nEpochs", "1"),
    "tabnet": ("--rows", "2048"),
    "time_sequence": ("--steps", "3"),
    "vision_transformer": ("--samples", "256"),
    "word_language_model": ("--epochs", "1"),
}
# The same for a run of one to three minutes by Python, on one core of a machine of 2026.
LONG = {
    "actor_critic": ("--episodes", "900"),
    "autoencoder": ("--epochs", "1500"),
    "bert_classifier": ("--num_epochs", "60"),
    "character_gpt": ("--iters", "10000"),
    "character_lstm": ("--epochs", "900"),
    "dcgan": ("--epochs", "70"),
    "deep_q_learning": ("--episodes", "900"),
    "diffusion": ("--epochs", "120"),
    "digits_convnet": ("--epochs", "600"),
    "gan_trainer": ("--epochs", "800"),
    "mnist_convnet": ("--epochs", "24"),
    "policy_gradient": ("--episodes", "1200"),
    "regression": ("--epochs", "120000"),
    "siamese": ("--epochs", "500"),
    "soft_actor_critic": ("--total-timesteps", "40000"),
    "super_resolution": ("--nEpochs", "100"),
    "tabnet": ("--epochs", "80"),
    "time_sequence": ("--steps", "400"),
    "vision_transformer": ("--epochs", "40"),
    "word_language_model": ("--epochs", "60"),
}


@dataclass
class Run:
    """One run of a script: what it printed, how long it took, and the report if torchjanus ran it."""

    output: str
    seconds: float
    report: dict[str, object]


def run(
    name: str,
    options: Sequence[str],
    *,
    speculated: bool,
    compiled: bool = False,
    wanted: Sequence[str] = (),
    threads: int = 1,
    store: str = "",
) -> Run:
    """Run a script by Python, ``speculated`` with the options ``wanted``, or with its models ``compiled`` by
    torch.compile. ``store``: the folder of what is kept; an empty one if not given. Raises RuntimeError if it fails."""
    script = [str(FOLDER / f"{name}.py"), *options]
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = (
            ["-m", "torchjanus", "run", "--no-report", "--json", str(report), *wanted, *script]
            if speculated
            else ["-m", "benchmarks.programs.compiled_models", *script]
            if compiled
            else script
        )
        environment = {**os.environ, "PYTHONPATH": paths, "TORCHJANUS_CACHE": store or folder}
        if compiled:  # nothing is left from another run
            environment["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(folder, "inductor")
        environment["OMP_NUM_THREADS"] = str(threads)
        begun = time.perf_counter()
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment, check=False)
        seconds = time.perf_counter() - begun
        if done.returncode:
            raise RuntimeError(f"{name} ended with {done.returncode}: {done.stderr[-2000:]}")
        return Run(done.stdout, seconds, json.loads(report.read_text()) if speculated else {})


def served(report: dict[str, object]) -> list[tuple[str, int, int, int]]:
    """Each step's name, and its calls: all, by a graph, with graphs of parts."""
    functions = report["functions"]
    assert isinstance(functions, list)
    return [
        (one["name"], counts["calls"], counts["speculated"], counts.get("partly", 0))
        for one in functions
        for counts in [one["statistics"]]
    ]


def part(given: tuple[str, str], share: float) -> tuple[str, str]:
    """Return the option of a long run for a ``share`` of its steps."""
    return given[0], str(max(round(int(given[1]) * share), 1))


def ratio_of(plain: Sequence[Run], made: Sequence[Run]) -> float | None:
    """Return the median of the ratios of times, rounded; None if there are none."""
    found = [one.seconds / other.seconds for one, other in zip(plain, made, strict=False)]
    return round(statistics.median(found), 2) if found else None


def keep(rows: Sequence[dict[str, object]], threads: int) -> None:
    """Write the record. Scripts that were not run now stay in it as they are."""
    name = f"scripts_{threads}_threads"
    path = RESULTS / f"{name}.json"
    before = json.loads(path.read_text())["rows"] if path.exists() else []
    found = {row["script"]: row for row in (*before, *rows)}
    write(name, sys.argv[1:], "cpu", {"rows": [found[script] for script in sorted(found)]})


def main() -> int:
    """Run the scripts, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="run each script a second time with what the first kept")
    parser.add_argument("--long", action="store_true", help="run each script for minutes")
    parser.add_argument("--share", type=float, default=1.0, help="of the steps of a long run, for a slow machine")
    parser.add_argument("--compiled", action="store_true", help="compare with torch.compile, too")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    rows = []
    for name in options.names or sorted(SHORT):
        given = SHORT[name] if options.short else part(LONG[name], options.share) if options.long else ()
        wanted = ("--after", "0", "--executor", "replay") if options.short else ()
        plain: list[Run] = []
        made: list[Run] = []
        later: list[Run] = []
        compiled: list[Run] = []
        for _ in range(1 if options.short else options.rounds):
            plain.append(run(name, given, speculated=False, threads=options.threads))
            if options.compiled:
                compiled.append(run(name, given, speculated=False, compiled=True, threads=options.threads))
            with tempfile.TemporaryDirectory() as store:
                for runs in (made, later)[: 1 + options.again]:
                    more = {"threads": options.threads, "store": store}
                    runs.append(run(name, given, speculated=True, wanted=wanted, **more))
        equal = all(one.output == plain[0].output for one in (*plain, *made, *later))
        ratio, again = ratio_of(plain, made), ratio_of(plain, later)
        steps = served((later or made)[-1].report)
        rows.append({
            "script": name, "given": " ".join(given), "equal": equal,
            "plain seconds": round(statistics.median(one.seconds for one in plain), 1),
            "ratio": ratio, "second run": again, "torch.compile": ratio_of(plain, compiled), "steps": steps,
            "left": made[-1].report["left"],
        })  # fmt: skip
        calls = ", ".join(f"{step} {graphs}+{parts} of {all_}" for step, all_, graphs, parts in steps) or "none"
        timed = "" if options.short else f"  plain {rows[-1]['plain seconds']:6.1f} s  ratio {ratio:5.2f}"
        timed += f"  second run {again:5.2f}" if again else ""
        timed += f"  torch.compile {rows[-1]['torch.compile']:5.2f}" if compiled else ""
        print(f"{name:16} {'equal ' if equal else 'DIFFERS'}{timed}  {calls}", flush=True)
        if options.record:
            keep(rows, options.threads)
    return 0 if all(row["equal"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
