"""A language of names: sequences of different lengths, sorted and packed for an LSTM, perplexity, samples drawn with a
temperature, and a learning rate that is divided when the perplexity rises."""

from __future__ import annotations

import math
import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

LETTERS = "_abcdefghijklmnopqrstuvwxyz."


def encode(name: str) -> Tensor:
    return torch.tensor([LETTERS.index(letter) for letter in f"{name.lower()}."])


def collate(names: list[str]) -> tuple[Tensor, Tensor, Tensor]:
    encoded = sorted((encode(name) for name in names), key=len, reverse=True)
    lengths = torch.tensor([len(one) - 1 for one in encoded])
    padded = pad_sequence(encoded, batch_first=True)
    return padded[:, :-1], padded[:, 1:], lengths


class NameModel(nn.Module):
    def __init__(self, width: int = 24, layers: int = 1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(LETTERS), width, padding_idx=0)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.decoder = nn.Linear(width, len(LETTERS))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.embedding(x), lengths, batch_first=True)
        out, _ = self.lstm(packed)
        out, _ = pad_packed_sequence(out, batch_first=True)
        return self.decoder(out)

    @torch.no_grad()
    def sample(self, first: str, temperature: float, longest: int = 6) -> str:
        name, state = first, None
        x = torch.tensor([[LETTERS.index(first)]])
        for _ in range(longest):
            out, state = self.lstm(self.embedding(x), state)
            chances = (self.decoder(out[0, -1]) / temperature).softmax(-1)
            x = torch.multinomial(chances, 1).unsqueeze(0)
            letter = LETTERS[int(x)]
            if letter == ".":
                break
            name += letter
        return name


class Trainer:
    def __init__(self) -> None:
        self.model = NameModel()
        self.lr, self.best = 0.1, math.inf
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.lr, momentum=0.9)
        self.perplexities: list[float] = []
        self.samples: list[str] = []

    def step(self, names: list[str]) -> float:
        self.model.train()
        x, y, lengths = collate(names)
        logits = self.model(x, lengths)
        loss = nn.functional.cross_entropy(logits.transpose(1, 2), y, ignore_index=0)
        self.model.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()
        perplexity = math.exp(loss.item())
        self.perplexities.append(perplexity)
        if len(self.perplexities) % 10 == 0:
            mean = sum(self.perplexities[-10:]) / 10
            if mean > self.best:
                self.lr /= 4.0
                for group in self.optimizer.param_groups:
                    group["lr"] = self.lr
            self.best = min(self.best, mean)
            self.model.eval()
            self.samples.append(self.model.sample(names[0][0].lower(), 0.8))
            print(f"| perplexity {mean:8.2f} | lr {self.lr:.4f} | {self.samples[-1]}")
        return perplexity


def make() -> Any:
    rng = random.Random(7)
    known = ["Anna", "Bela", "Carla", "Dieter", "Eva", "Franz", "Gerda", "Hans", "Ida", "Jakob", "Karl", "Lena"]
    trainer = Trainer()
    calls = [(rng.sample(known, 6),) for _ in range(40)]
    return trainer.step, calls, lambda: (trainer.model, trainer.samples)
