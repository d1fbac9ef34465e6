"""Recursive networks over ever new trees: eager, torchjanus, torch.compile, and batched by hand.

    python -m benchmarks.speed.trees [--quick] [--record] [--threads 1 2] [--model treelstm ...] [--width 150 ...]

Takes an hour; ten minutes with ``--quick``.

Whole training steps of TreeRNN, binary and child-sum TreeLSTM, 25 trees of 10 to 30 words each (the papers' setting).
No two steps see the same trees. The contenders start from the same parameters and take turns in short blocks on the
same batches; their losses are compared step by step. The floor is the operations of the step's matrix products over the
rate of a large matrix product, which takes its turn in the same run. torch.compile unrolls each batch of trees into a
graph of its own, until it gives up: it runs in a process of its own, for a limited time, and it is reported how far it
got. A tree 5,000 levels deep is trained on, too."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

# Before torch is imported: OpenMP reads it once.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from rich.console import Console
from torch.utils.flop_counter import FlopCounterMode
from tqdm import tqdm

import torchjanus
from benchmarks.programs.batched_trees import BATCHED
from benchmarks.programs.trees import MODELS, Batch, batches, chain, make_step
from benchmarks.record import write
from benchmarks.speed.tree_figures import DEEP_STEPS, DEPTH, Deep, Row, deep_verdict, report, verdicts

__all__ = ["main", "measure"]

CASES = (("treelstm", 64), ("treelstm", 150), ("treernn", 150), ("childsum", 150))
WARM = 15  # steps that are not timed: torchjanus watches, compiles and makes trials in them
BLOCK = 5
PRODUCT = 1024

Step = Callable[..., float]


# -- contenders that take turns ----------------------------------------------------------------------------------------


def product() -> Callable[[], float]:
    """A large matrix product: how many operations a second it runs at."""
    a, b = torch.randn(PRODUCT, PRODUCT), torch.randn(PRODUCT, PRODUCT)

    def rate() -> float:
        begin = time.perf_counter()
        torch.mm(a, b)
        return 2 * PRODUCT**3 / (time.perf_counter() - begin)

    return rate


def operations(model: str, width: int, some: list[Batch]) -> float:
    """Operations of a step's matrix products, forward and backward, on average."""
    step = make_step(BATCHED[model](width))
    with FlopCounterMode(display=False) as counter:
        for batch in some:
            step(*batch)
    return counter.get_total_flops() / len(some)


def steps_of(model: str, width: int, executor: str) -> dict[str, Step]:
    """The contenders, with models of their own and the same parameters."""
    start = MODELS[model](width).state_dict()

    def step(build: Callable[[int], torch.nn.Module]) -> Step:
        made = build(width)
        made.load_state_dict(start)
        return make_step(made)

    return {
        "eager": step(MODELS[model]),
        "batched by hand": step(BATCHED[model]),
        "torchjanus": torchjanus.speculate(step(MODELS[model]), executor=executor),
    }


def measure(
    model: str, width: int, count: int, warm: int = WARM, executor: str = "auto", limit: float = 900
) -> list[Row]:
    """``count`` timed steps of each contender after ``warm`` others; fewer if ``limit`` seconds are over."""
    torch.manual_seed(0)
    entrants = steps_of(model, width, executor)
    janus = entrants["torchjanus"]
    assert isinstance(janus, torchjanus.Speculated)
    rate, rates = product(), []
    losses: dict[str, list[float]] = {name: [] for name in entrants}
    times: dict[str, list[float]] = {name: [] for name in entrants}
    given = batches(model, warm + count, seed=1)
    began = time.perf_counter()
    speculated = 0
    for start in tqdm(range(0, len(given), BLOCK), desc=f"{model} {width}", unit="block", disable=None, leave=False):
        names = list(entrants)
        turn = start // BLOCK % len(names)  # whoever runs after a heavy neighbour finds its caches cold
        for name in names[turn:] + names[:turn]:
            for batch in given[start : start + BLOCK]:
                begin = time.perf_counter()
                loss = entrants[name](*batch)
                times[name].append(time.perf_counter() - begin)
                losses[name].append(loss)
        rates.append(rate())
        if start < warm:
            speculated = janus.statistics().speculated
        if time.perf_counter() - began > limit:
            break
    counts = janus.statistics()
    timed = {name: [1e3 * t for t in taken[warm:]] for name, taken in times.items()}
    steps = len(timed["eager"])
    if steps < 2:
        return [Row(model, width, name, None, note=f"no time left after {len(times[name])} steps") for name in entrants]
    floor = 1e3 * operations(model, width, given[warm : warm + 10]) / statistics.median(rates)
    eager = statistics.median(timed["eager"])
    rows = [
        Row(
            model,
            width,
            "floor",
            floor,
            times_eager=eager / floor,
            times_floor=1.0,
            note=f"{floor * statistics.median(rates) / 1e9:.0f} MFLOP at {statistics.median(rates) / 1e9:.0f} GFLOP/s",
        )
    ]
    for name, taken in timed.items():
        low, median, high = statistics.quantiles(taken, n=4)
        pairs = zip(losses["eager"], losses[name], strict=True)
        ours = name == "torchjanus"
        rows.append(
            Row(
                model,
                width,
                name,
                median,
                low,
                high,
                eager / median,
                median / floor,
                max(abs(one - other) / abs(one) for one, other in pairs),
                counts.compiles if ours else None,
                f"{counts.speculated - speculated} of {steps}" if ours else "",
                sum(times[name][:warm]),
                (janus.given_up or f"{steps} steps") if ours else f"{steps} steps",
            )
        )
    return rows


# -- contenders in processes of their own ------------------------------------------------------------------------------


def apart(kind: str, case: tuple[str, int], threads: int, executor: str, limit: float) -> tuple[list[dict], str]:
    """What a process of its own printed, a JSON object a line, and how it ended."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.speed.trees",
        "--apart",
        kind,
        "--model",
        case[0],
        "--width",
        str(case[1]),
    ]
    command += ["--threads", str(threads), "--executor", executor]
    # A session of its own: compilers' workers are ended with it.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        try:
            out, errors = child.communicate(timeout=limit)
            end = "" if child.returncode == 0 else f"ended with {child.returncode}: {errors.strip()[-200:]}"
        except subprocess.TimeoutExpired:
            end = f"stopped after {limit:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        if end.startswith("stopped"):
            out, _ = child.communicate()
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return lines, end


def tell(**content: object) -> None:
    print(json.dumps(content), flush=True)


def run_compiled(model: str, width: int) -> None:
    """torch.compile's steps, one line each, beside eager's."""
    torch.manual_seed(0)
    start = MODELS[model](width)
    plain, step = make_step(start), torch.compile(make_step(MODELS[model](width)))
    for batch in batches(model, 100, seed=1):
        taken = []
        for one in (plain, step):
            begin = time.perf_counter()
            one(*batch)
            taken.append(time.perf_counter() - begin)
        counters = torch._dynamo.utils.counters
        tell(eager=taken[0], step=taken[1], graphs=counters["stats"]["unique_graphs"])


def compiled(model: str, width: int, threads: int, limit: float) -> Row:
    """torch.compile, for a limited time."""
    lines, end = apart("compile", (model, width), threads, "auto", limit)
    graphs = lines[-1]["graphs"] if lines else 0
    note = f"{len(lines)} steps" + (f", {end}" if end else "")
    reported: dict[str, Any] = {"steps": len(lines), "limit": limit}
    if not lines:
        return Row(model, width, "torch.compile", None, note=f"no step done: {end}", **reported)
    # Steps in which nothing is compiled take tens of milliseconds; a compilation, many seconds.
    settled = [line for line in lines if line["step"] < 10 * line["eager"]][-50:]
    if len(settled) < 5:
        spent = statistics.median(line["step"] for line in lines)
        note = f"{note}; {spent:.0f} s each: compiles"
        return Row(model, width, "torch.compile", None, compiles=graphs, note=note, **reported)
    median = statistics.median(line["step"] for line in settled)
    eager = statistics.median(line["eager"] for line in settled)
    times = eager / median
    return Row(model, width, "torch.compile", 1e3 * median, None, None, times, compiles=graphs, note=note, **reported)


def run_deep(model: str, width: int, executor: str, *, speculate: bool) -> None:
    """Steps on a deep tree, one line each."""
    sys.setrecursionlimit(100 * DEPTH)  # watched calls go through several frames for each of the program's
    torch.manual_seed(0)
    step = make_step(MODELS[model](width))
    janus = torchjanus.speculate(step, executor=executor) if speculate else None
    for seed in range(DEEP_STEPS):
        tree, label = chain(model, DEPTH, seed), torch.tensor([seed % 2])
        begin = time.perf_counter()
        loss = (janus or step)([tree], label)
        taken = time.perf_counter() - begin
        tell(step=taken, loss=loss, served=0 if janus is None else janus.statistics().speculated)


def deep(model: str, width: int, threads: int, executor: str, limit: float) -> list[Deep]:
    rows = []
    for name in ("eager", "torchjanus"):
        lines, end = apart(f"deep-{name}", (model, width), threads, executor, limit)
        median = 1e3 * statistics.median(line["step"] for line in lines[-3:]) if lines else None
        served = lines[-1]["served"] if lines else 0
        rows.append(Deep(model, width, name, median, [line["loss"] for line in lines], served, end))
    return rows


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=list(MODELS), default=[], help="only these")
    parser.add_argument("--width", nargs="+", type=int, default=[], help="these widths; the papers' is 150")
    parser.add_argument("--threads", nargs="+", type=int, default=[1], help="one run for each, recorded apart")
    parser.add_argument("--steps", type=int, default=100, help="timed steps; their losses are compared, too")
    parser.add_argument("--executor", default="auto", help="torchjanus's")
    parser.add_argument("--quick", action="store_true", help="a fifth of the steps, less time for torch.compile")
    parser.add_argument("--only", choices=("speed", "compile", "deep"), default="", help="only this part")
    parser.add_argument("--limit", type=float, default=900, help="seconds for a case; torch.compile has a third")
    parser.add_argument("--record", action="store_true", help="keep the outcome in benchmarks/results")
    parser.add_argument("--apart", default="", help=argparse.SUPPRESS)  # this is a process of its own
    options = parser.parse_args(given)
    arguments = sys.argv[1:] if given is None else given
    return max(run(options, threads, arguments) for threads in options.threads)


def run(options: argparse.Namespace, threads: int, arguments: list[str]) -> int:
    """All that is asked for, with this many threads."""
    torch.set_num_threads(threads)
    cases = [case for case in CASES if not options.model or case[0] in options.model]
    if options.width:
        models = list(dict.fromkeys(options.model or [model for model, _ in CASES]))
        cases = [(model, width) for model in models for width in options.width]
    if options.apart == "compile":
        run_compiled(*cases[0])
        return 0
    if options.apart:
        run_deep(*cases[0], options.executor, speculate=options.apart == "deep-torchjanus")
        return 0
    steps, limit = (options.steps // 5, options.limit / 5) if options.quick else (options.steps, options.limit)
    rows: list[Row] = []
    deeps: list[Deep] = []
    for case in cases:
        if options.only in ("", "speed"):
            rows += measure(*case, steps, executor=options.executor, limit=limit)
        if options.only in ("", "compile"):
            rows.append(compiled(*case, threads, limit / 3))
    if options.only in ("", "deep"):
        deeps = deep(*cases[0], threads, options.executor, limit)
    found = verdicts(rows) if options.only in ("", "speed") else []
    found += [deep_verdict(deeps)] if deeps else []
    report(Console(width=None if sys.stdout.isatty() else 200), rows, deeps, found, threads)
    if options.record:
        content = {"quick": options.quick, "targets": found, "rows": [asdict(row) for row in rows]}
        part = "" if options.only in ("", "speed") else f"_{options.only}"
        name = f"trees{part}{'' if threads == 1 else f'_{threads}_threads'}{'_quick' if options.quick else ''}"
        content["deep"] = [asdict(row) for row in deeps]
        print(write(name, arguments, "cpu", content))
    return 0 if all(verdict["reached"] for verdict in found) else 1


if __name__ == "__main__":
    sys.exit(main())
