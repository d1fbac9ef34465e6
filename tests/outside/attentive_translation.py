"""Sequence to sequence with attention: padded batches packed for the encoder, teacher forcing by chance in each
position, and every tenth step a beam search."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

PAD, BOS, EOS, WORDS = 0, 1, 2, 14


class Encoder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width, padding_idx=PAD)
        self.rnn = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.join = nn.Linear(2 * width, width)

    def forward(self, source: Tensor, lengths: list[int]) -> tuple[Tensor, Tensor]:
        packed = pack_padded_sequence(self.words(source), lengths, batch_first=True, enforce_sorted=False)
        states, last = self.rnn(packed)
        states, _ = pad_packed_sequence(states, batch_first=True)
        return self.join(states), torch.tanh(self.join(torch.cat([last[0], last[1]], 1)))


class Decoder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.cell = nn.GRUCell(2 * width, width)
        self.out = nn.Linear(2 * width, WORDS)

    def forward(self, word: Tensor, h: Tensor, states: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        scores = torch.einsum("bsw,bw->bs", states, h).masked_fill(~mask, float("-inf"))
        context = torch.einsum("bs,bsw->bw", scores.softmax(1), states)
        h = self.cell(torch.cat([self.words(word), context], 1), h)
        return self.out(torch.cat([h, context], 1)).log_softmax(1), h


class Translator(nn.Module):
    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(width), Decoder(width)

    def forward(self, source: Tensor, lengths: list[int], target: Tensor, forcing: float) -> Tensor:
        states, h = self.encoder(source, lengths)
        mask = source[:, : states.size(1)] != PAD
        word, losses = torch.full((len(source),), BOS), []
        for position in range(target.size(1)):
            log_probs, h = self.decoder(word, h, states, mask)
            losses.append(F.nll_loss(log_probs, target[:, position], ignore_index=PAD, reduction="sum"))
            word = target[:, position] if random.random() < forcing else log_probs.argmax(1)
        return torch.stack(losses).sum() / (target != PAD).sum()

    @torch.no_grad()
    def beam(self, source: Tensor, width: int = 3, most: int = 8) -> list[int]:
        states, h = self.encoder(source[None], [len(source)])
        mask = torch.ones(1, len(source), dtype=torch.bool)
        beams: list[tuple[float, list[int], Tensor]] = [(0.0, [BOS], h)]
        for _ in range(most):
            grown = []
            for score, words, state in beams:
                if words[-1] == EOS:
                    grown.append((score, words, state))
                    continue
                log_probs, after = self.decoder(torch.tensor([words[-1]]), state, states, mask)
                best, index = log_probs[0].topk(width)
                grown += [
                    (score + value, [*words, word], after)
                    for value, word in zip(best.tolist(), index.tolist(), strict=True)
                ]
            beams = sorted(grown, key=lambda one: one[0] / len(one[1]), reverse=True)[:width]
            if all(words[-1] == EOS for _, words, _ in beams):
                break
        return beams[0][1]


class Trainer:
    def __init__(self) -> None:
        self.model = Translator()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=5e-3)
        self.shown: list[list[int]] = []
        self.number = 0

    def step(self, sentences: list[Tensor]) -> float:
        lengths = [len(one) for one in sentences]
        source = pad_sequence(sentences, batch_first=True, padding_value=PAD)
        turned = [torch.cat([one.flip(0), torch.tensor([EOS])]) for one in sentences]
        target = pad_sequence(turned, batch_first=True, padding_value=PAD)
        loss = self.model(source, lengths, target, max(0.3, 1 - self.number / 40))
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        if self.number % 10 == 9:
            self.model.eval()
            self.shown.append(self.model.beam(sentences[0]))
            self.model.train()
            print(f"{self.number}: {loss.item():.4f}", *self.shown[-1])
        self.number += 1
        return loss.item()


def make() -> Any:
    trainer = Trainer()
    calls = [([torch.randint(3, WORDS, (random.randint(2, 6),)) for _ in range(4)],) for _ in range(40)]
    return trainer.step, calls, lambda: (trainer.model, trainer.shown)
