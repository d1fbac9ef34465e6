"""The loggers of torchjanus, one for each topic, below ``logging.getLogger("torchjanus")``. They give warnings; what
else they know has to be asked for, by their own level and not by that of the root logger. Knows nothing of what is
logged."""

from __future__ import annotations

import logging

from torchjanus.core.errors import Unsupported
from torchjanus.core.settings import LOGS

__all__ = ["TOPICS", "configure", "logger", "topic_of"]

# Each topic, what it is about, and the kinds of events that belong to it.
TOPICS: dict[str, tuple[str, tuple[str, ...]]] = {
    "calls": (
        "calls that no graph could make: misses, violations, errors",
        ("miss", "violation", "raised", "extern", "verify", "new graph"),
    ),
    "graphs": (
        "graphs that are made, relaxed, split or dropped",
        ("relax", "split", "branch", "evicted", "dropped", "lowering", "hosted", "recursion", "unrolled"),
    ),
    "refusals": ("what cannot be speculated on, with the line and the way out", ("refused",)),
    "executors": ("which executor runs a graph, and by which measure", ("executor",)),
    "learning": (
        "when calls are watched, and when learning ends or begins again",
        ("budget", "closed", "imperative", "again", "cut", "differs", "reset"),
    ),
    "store": ("what is kept on disk, and saved step files", ()),
    "passes": ("passes that cannot be printed or written", ()),
    "faults": ("faults of torchjanus itself", ("fault",)),
}
# A program that sets the root logger to INFO asks for its own messages: with ours it would print others than in eager.
if logging.getLogger("torchjanus").level == logging.NOTSET:  # the program may have asked before it imports torchjanus
    logging.getLogger("torchjanus").setLevel(logging.WARNING)

_TOPIC_OF = {kind: topic for topic, (_, kinds) in TOPICS.items() for kind in kinds}


def logger(topic: str) -> logging.Logger:
    """Return the logger of a topic."""
    assert topic in TOPICS, topic
    return logging.getLogger(f"torchjanus.{topic}")


def topic_of(kind: str) -> str:
    """Return the topic of a kind of event."""
    return _TOPIC_OF.get(kind, "learning")


def configure(wanted: str) -> None:
    """Print the messages of these topics (names with commas between them, or "all"; a "+" before a name: details too)
    to standard error. Raises Unsupported for a name that is no topic."""
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    for name in names:
        topic = name.removeprefix("+")
        if topic not in (*TOPICS, "all"):
            raise Unsupported(f"{LOGS.name}={wanted!r}: there is no topic {topic!r}: there are {', '.join(TOPICS)}.")
    if not names:
        return
    top = logging.getLogger("torchjanus")
    if not top.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        top.addHandler(handler)
        top.propagate = False  # or a program that configures logging prints each message twice
    for name in names:
        topic = name.removeprefix("+")
        chosen = top if topic == "all" else logger(topic)
        chosen.setLevel(logging.DEBUG if name.startswith("+") else logging.INFO)
