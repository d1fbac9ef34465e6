"""A language model of characters on the text of Python's standard library: an LSTM with a Python loop over time."""

from __future__ import annotations

import math
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.speed.convergence.base import Jit, Training, training

__all__ = ["sources"]

LETTERS = "\n" + "".join(map(chr, range(32, 127)))


def sources(length: int) -> Tensor:
    """As many characters of the library's modules, in one row, as numbers; characters beyond ASCII are left out."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    random.Random(0).shuffle(files)
    numbers = {letter: number for number, letter in enumerate(LETTERS)}
    found: list[int] = []
    for file in files:
        found += [numbers[letter] for letter in file.read_text(encoding="utf-8", errors="replace") if letter in numbers]
        if len(found) >= length:
            break
    return torch.tensor(found[:length])


class CharacterLSTM(nn.Module):
    """One layer, written out; the state of one stretch is where the next one begins."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(LETTERS), width)
        self.gates = nn.Linear(2 * width, 4 * width)
        self.dropout = nn.Dropout(0.1)
        self.decoder = nn.Linear(width, len(LETTERS))
        self.width = width

    def forward(self, letters: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h, c = state
        inputs = self.embedding(letters)
        outputs = []
        for place in range(letters.shape[1]):
            i, f, g, o = self.gates(torch.cat([inputs[:, place], h], 1)).chunk(4, 1)
            c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outputs.append(h)
        return self.decoder(self.dropout(torch.stack(outputs, 1))), (h, c)

    def begin(self, rows: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(rows, self.width), torch.zeros(rows, self.width)


@training(
    "charlm",
    about="one LSTM layer of 64 written out in Python, 16 rows of text, 50 characters a step, gradients clipped",
    metric="bits per character",
    target=3.0,
    steps=3000,
    every=25,
    higher=False,
)
def charlm(jit: Jit, seed: int, small: bool = False) -> Training:
    rows, length, width, size = (2, 20, 8, 2_000) if small else (16, 50, 64, 1_024_000)
    # Each row reads a part of the text of its own; what stands at the parts' ends is held out.
    parts = sources(size).view(rows, -1)
    parts, held = parts[:, :-300], parts[:, -300:]
    model = CharacterLSTM(width)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    progress: dict[str, float] = {"letters": 0, "bits": math.log2(len(LETTERS)), "clipped": 0}
    state = model.begin(rows)

    @jit
    def step(letters: Tensor) -> float:
        nonlocal state
        scores, state = model(letters[:, :-1], (state[0].detach(), state[1].detach()))
        loss = F.cross_entropy(scores.flatten(0, 1), letters[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        progress["letters"] += letters.numel()
        progress["bits"] += 0.02 * (loss.item() / math.log(2) - progress["bits"])
        progress["clipped"] = max(progress["clipped"], norm.item())
        return loss.item()

    def losses() -> Iterator[float]:
        nonlocal state
        while True:
            for begin in range(0, parts.shape[1] - length - 1, length):
                yield step(parts[:, begin : begin + length + 1])
            state = model.begin(rows)  # the text from its beginning

    def bits() -> float:
        model.eval()
        with torch.no_grad():
            scores, _ = model(held[:, :-1], model.begin(rows))
            loss = F.cross_entropy(scores.flatten(0, 1), held[:, 1:].flatten())
        model.train()
        return loss.item() / math.log(2)

    return Training(losses(), bits, (model, optimizer, progress))
