"""Exception groups, and exceptions whose classes read what they are made of: ``except*``, ``split``, error numbers."""

from collections.abc import Sequence
from typing import Any

import torch

from tests.programs.harness import Program, program

X = torch.tensor([0.5, -1.0, 2.0])
KINDS: tuple[tuple[type[Exception], ...], ...] = (
    (ArithmeticError,),
    (ArithmeticError, ArithmeticError),
    (KeyError,),
    (KeyError, ArithmeticError),
)
ORDER = (0, 0, 0, 0, *(1, 2, 3, 1, 0, 2) * 4)


def _lists() -> list[list[Exception]]:
    return [[kind(number) for number, kind in enumerate(kinds)] for kinds in KINDS]


def _groups() -> list[ExceptionGroup[Exception]]:
    return [ExceptionGroup("several", errors) for errors in _lists()]


@program(speculated=3, compiles=5)
def raised_from_a_list():
    seen: list[int] = []
    lists = _lists()

    def step(errors: Sequence[Exception], x: torch.Tensor) -> torch.Tensor:
        try:
            raise ExceptionGroup("several", errors)
        except* ArithmeticError as group:
            seen.append(len(group.exceptions))
            x = x / (1 + len(group.exceptions))
        except* KeyError:
            seen.append(0)
            x = -x
        return x

    return Program(step, [(lists[k], X) for k in ORDER], state=seen)


@program(speculated=3, compiles=5)
def group_from_before_the_call():
    seen: list[int] = []
    groups = _groups()

    def step(group: ExceptionGroup[Exception], x: torch.Tensor) -> torch.Tensor:
        try:
            raise group
        except* ArithmeticError as part:
            seen.append(len(part.exceptions))
            x = x / (1 + len(part.exceptions))
        except* KeyError:
            x = -x
        return x

    return Program(step, [(groups[k], X) for k in ORDER], state=seen)


@program(speculated=3, compiles=5)
def group_within_a_group():
    groups = _groups()

    def step(group: ExceptionGroup[Exception], x: torch.Tensor) -> torch.Tensor:
        try:
            raise ExceptionGroup("outer", [group])
        except* ArithmeticError:
            x = x * 2
        except* KeyError:
            x = -x
        return x

    return Program(step, [(groups[k], X) for k in ORDER])


@program(speculated=3, compiles=5)
def split_and_shown():
    groups = _groups()

    def step(group: ExceptionGroup[Exception], x: torch.Tensor) -> Any:
        matched, rest = group.split(ArithmeticError)
        return x if rest is None else -x, matched is None, len(group.exceptions), str(group), repr(group)

    return Program(step, [(groups[k], X) for k in ORDER])


@program(speculated=3, compiles=5)
def class_picked_by_a_number():
    seen: list[Any] = []

    def step(number: int, x: torch.Tensor) -> torch.Tensor:
        try:
            raise OSError(number, "text")
        except FileNotFoundError:
            x = -x
        except OSError as error:
            x = x * 2
            seen.append((type(error).__name__, error.errno))
        return x

    return Program(step, [((5, 2, 13, 7)[k], X) for k in ORDER], state=seen)
