"""What the whole process does with speculated functions now: as ever, all by Python, or no new graphs. Knows nothing of
calls and graphs."""

from __future__ import annotations

from types import TracebackType
from typing import Literal

from torchjanus.core.errors import Unsupported
from torchjanus.core.settings import STANCE

__all__ = ["STANCES", "Name", "in_force", "stance"]

Name = Literal["default", "force_eager", "eager_on_new_graph", "fail_on_new_graph"]
STANCES = ("default", "force_eager", "eager_on_new_graph", "fail_on_new_graph")


class _InForce:
    """The stance now. ``is_eager``: Python makes all calls; ``learns``: new graphs may be made; ``fails``: a call that
    needs one raises."""

    __slots__ = ("fails", "is_eager", "learns", "name")

    def __init__(self, name: str, given_as: str) -> None:
        self.take(name, given_as)

    def take(self, name: str, given_as: str) -> None:
        if name not in STANCES:
            raise Unsupported(f"{given_as}{name!r}: there are {', '.join(map(repr, STANCES))}.")
        self.name = name
        self.is_eager = name == "force_eager"
        self.learns = name == "default"
        self.fails = name == "fail_on_new_graph"


in_force = _InForce(STANCE.given or "default", f"{STANCE.name}=")


class stance:
    """Say what the process does with speculated functions from now on: a switch, or in a ``with`` statement until its
    end.

    | stance | what a call of a speculated function does |
    |---|---|
    | `"default"` | graphs make it; a call that no graph can make is learnt from |
    | `"force_eager"` | Python makes it; graphs are kept |
    | `"eager_on_new_graph"` | graphs make it; a call that no graph can make is Python's, and nothing is learnt |
    | `"fail_on_new_graph"` | graphs make it; a call that needs a new graph raises NewGraph before any of it has run |

    It holds for all threads. ``TORCHJANUS_STANCE`` names the one that the program begins with. Raises Unsupported for
    another name.

        >>> import torch, torchjanus
        >>> double = torchjanus.speculate(lambda x: x * 2, executor="replay")
        >>> with torchjanus.stance("force_eager"):
        ...     _ = double(torch.ones(2))
        >>> double.statistics().imperative
        1
    """

    def __init__(self, name: Name) -> None:
        self._before = in_force.name
        in_force.take(name, "stance=")

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        in_force.take(self._before, "")
