"""The operators that represent an iteration of a switched loop: one of several arms forward, and the same arm backward.

Like those of loops (see ``loop_op``) they refer to the arms by a key and describe their results in a text.
"""

from __future__ import annotations

from typing import Any

import torch

from torchjanus.graph.operators.loop_op import TAGS, define, runners_of, shapes_of

__all__ = ["REACHED", "SWITCH", "SWITCH_BACKWARD", "SWITCH_RANDOM", "UNKNOWN"]

UNKNOWN = -1  # the number of an arm that is not known


def _switch(key: int, gives: str, given: Any) -> list[torch.Tensor]:
    runner: Any = runners_of(key)
    return runner.forward(given)  # type: ignore[no-any-return]


def _switch_backward(
    key: int, gives: str, present: str, arm: torch.Tensor, tangents: Any, kept: Any
) -> list[torch.Tensor]:
    runner: Any = runners_of(key)
    return runner.backward(present, int(arm), tangents, kept)  # type: ignore[no-any-return]


def _reached(key: int, count: int, arms: torch.Tensor) -> torch.Tensor:
    reaching: Any = runners_of(key)
    return torch.tensor(reaching.reached(arms.tolist()), dtype=torch.bool)


def _switch_shapes(key: int, gives: str, given: Any) -> list[torch.Tensor]:
    return shapes_of(gives, 1)


def _switch_backward_shapes(
    key: int, gives: str, present: str, arm: Any, tangents: Any, kept: Any
) -> list[torch.Tensor]:
    return shapes_of(gives, 1)


def _reached_shapes(key: int, count: int, arms: torch.Tensor) -> torch.Tensor:
    return torch.empty((count,), dtype=torch.bool, device=arms.device)


_SWITCH = "(int key, str gives, Tensor[] given) -> Tensor[]"
_BACKWARD = "(int key, str gives, str present, Tensor way, Tensor[] tangents, Tensor[] kept) -> Tensor[]"

SWITCH = define("switch", _SWITCH, _switch, _switch_shapes, TAGS)
SWITCH_RANDOM = define("switch_random", _SWITCH, _switch, _switch_shapes, (*TAGS, torch.Tag.nondeterministic_seeded))
SWITCH_BACKWARD = define("switch_backward", _BACKWARD, _switch_backward, _switch_backward_shapes, TAGS)
REACHED = define("reached", "(int key, int count, Tensor arms) -> Tensor", _reached, _reached_shapes, TAGS)
