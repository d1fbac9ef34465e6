"""Starts the processes of the ranks, and gives what they measured."""

from __future__ import annotations

import logging
import os
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.speed.data_parallel.measure import Options, Row, measure, measure_compiled
from benchmarks.speed.link import register

__all__ = ["rows"]


def _begin(rank: int, ranks: int, store: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    register()


def _run_compiled(rank: int, ranks: int, folder: str, name: str, options: Options) -> None:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder) / f"cache{rank}")
    logging.disable(logging.WARNING)  # torch.compile's, of what it recompiles
    _begin(rank, ranks, str(Path(folder) / "store"))
    found = measure_compiled(name, options, (Path(folder) / f"at{rank}").write_text)
    if rank == 0:
        torch.save(found, Path(folder) / "found")
    dist.destroy_process_group()


def compiled_beside(name: str, ranks: int, options: Options, seconds: float) -> tuple[float, float, str]:
    """Return what ``measure_compiled`` does, measured by processes of their own, and why there is nothing, if so. They
    are ended after so many seconds."""
    nothing, end = float("nan"), time.monotonic() + seconds
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        given = (ranks, folder, name, options)
        job = torch.multiprocessing.start_processes(_run_compiled, given, ranks, join=False)
        try:
            while not job.join(max(0.1, min(1.0, end - time.monotonic()))):
                if time.monotonic() > end:
                    reached = [Path(folder) / f"at{rank}" for rank in range(ranks)]
                    said = [path.read_text() if path.exists() else "before its first call" for path in reached]
                    return nothing, nothing, f"not done after {seconds:.0f} s: the ranks are in {', '.join(said)}"
        except (torch.multiprocessing.ProcessRaisedException, torch.multiprocessing.ProcessExitedException) as error:
            return nothing, nothing, str(error).strip().splitlines()[-1]
        finally:
            for process in job.processes:
                process.kill()
                process.join()
        return *torch.load(Path(folder) / "found", weights_only=False), ""


def _run(rank: int, ranks: int, store: str, name: str, options: Options, results: str) -> None:
    _begin(rank, ranks, store)
    row = measure(name, options)
    if rank == 0:
        torch.save(asdict(row), results)
    dist.destroy_process_group()


def rows(names: Sequence[str], ranks: int, options: Options, seconds: float | None) -> Iterator[Row]:
    """Measure programs, each in processes of its own. ``seconds``: in which torch.compile is, too."""
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            store, results = str(Path(folder) / "store"), str(Path(folder) / "results")
            torch.multiprocessing.spawn(_run, (ranks, store, name, options, results), nprocs=ranks, join=True)
            row = Row(**torch.load(results, weights_only=False))
        if seconds is not None:
            compiled, beside, note = compiled_beside(name, ranks, options, seconds)
            row = replace(row, compiled=compiled, beside=beside, compiled_note=note)
        yield row
