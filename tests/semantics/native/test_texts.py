"""Texts made of tensors and changing numbers are eager's, letter by letter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.agreement import agree
from tests.programs.harness import Program


@dataclass
class Metric:
    name: str
    value: float


class Own:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"<Own {self.value}>"

    def __format__(self, spec: str) -> str:
        return f"[{self.value:{spec}}]"


def raised(fn: Any) -> str:
    try:
        return fn()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


TEXTS: dict[str, Any] = {
    "f-string": lambda x, n: f"loss {n:.3f} of {x.sum().item():>10.2e}",
    "percent": lambda x, n: "%d %5.1f %s" % (n, n, x.sum().item()),
    "percent by key": lambda x, n: "%(a)s-%(b).2f" % {"a": n, "b": x.mean().item()},
    "percent of one": lambda x, n: "%s" % n,
    "percent without parts": lambda x, n: "100%%" % (),
    "format": lambda x, n: "{0} {k:>5} {0}".format(n, k=x.numel()),
    "str and repr": lambda x, n: str(n) + repr(x.sum().item()) + ascii("é"),
    "tensor": lambda x, n: f"{x} {x * n}",
    "tensor with a history": lambda x, n: str((x.requires_grad_() * 2).sum()),
    "empty tensor": lambda x, n: repr(x[:0]),
    "containers": lambda x, n: str([n, (x.sum().item(),), {n}, []]),
    "dictionary": lambda x, n: str([{"k": n}, (), (n,)]),
    "dataclass": lambda x, n: str(Metric("loss", n)),
    "own methods": lambda x, n: f"{Own(n)} {Own(n)!r} {Own(n):.1f}",
    "own methods in a list": lambda x, n: str([Own(n)]),
    "joined": lambda x, n: ", ".join(str(part) for part in (n, x.sum().item())) + "".join([]),
    "special numbers": lambda x, n: f"{float('nan')} {float('inf') * n if n else 0} {-0.0 * n}",
    "a bad format": lambda x, n: raised(lambda: f"{n:q}"),
    "too few parts": lambda x, n: raised(lambda: "%s %s".__mod__((n,))),
    "exception": lambda x, n: str(ValueError("bad", n)),
}  # fmt: skip
# Texts of sets depend on hashes, those of containers on Python code; the errors tell another number each time.
LEFT_TO_PYTHON = ("containers", "own methods in a list", "a bad format", "too few parts")


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_eagers(name: str) -> None:
    text = TEXTS[name]

    def make() -> Program:
        def step(x: torch.Tensor, n: float) -> Any:
            return x * n, text(x, n)

        return Program(step, [(torch.arange(3.0) + n, n * 0.5) for n in range(9)])

    (speculated,) = agree(make)
    assert (speculated.statistics().speculated >= 4) == (name not in LEFT_TO_PYTHON)


def test_what_is_printed_is_made_once_and_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    def make() -> Program:
        def step(x: torch.Tensor, n: int) -> Any:
            print("first", n)
            y = x * n
            print(f"{y.sum().item():.1f}", end=";")
            return y

        return Program(step, [(torch.ones(2), n) for n in range(8)])

    (speculated,) = agree(make)
    assert speculated.statistics().speculated >= 4
