"""One report on all ranks of a job: those that torchrun has started send their summaries to the first one.

Knows nothing of process groups, which the script may have made or not: the ranks meet at torchrun's own store.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
from typing import Any

import torch

from torchjanus.cli.summary import Summary

__all__ = ["with_other_ranks"]

TIMEOUT = datetime.timedelta(seconds=30)  # how long the first rank waits for the report of another one


def with_other_ranks(summary: Summary) -> Summary | None:
    """Return the summary with those of the other ranks; None on the other ranks. The summary itself where torchrun has
    started no other ranks."""
    rank, count = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if count < 2 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return summary
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    key = f"torchjanus/{os.environ.get('TORCHELASTIC_RUN_ID')}/{attempt}"
    try:
        store = _store()
        if rank:
            store.set(f"{key}/{rank}", json.dumps(dataclasses.asdict(summary)))
            return None
    except RuntimeError:  # torchrun is gone: each rank reports for itself
        return summary
    return dataclasses.replace(summary, ranks=tuple(_received(store, f"{key}/{other}") for other in range(1, count)))


def _store() -> Any:
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return torch._C._distributed_c10d.TCPStore(host, port, is_master=False, timeout=TIMEOUT)


def _received(store: Any, key: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(store.get(key))
    except RuntimeError:  # it has crashed, or takes longer
        return None
    return found
