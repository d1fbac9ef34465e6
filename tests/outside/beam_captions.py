"""Captions of picture features by a recurrent decoder with attention: teacher forcing, a cross-entropy that ignores
padding, and now and then a beam search whose captions are scored by overlaps of word pairs."""

from __future__ import annotations

import argparse
from collections import Counter
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

PAD, BEGIN, END = 0, 1, 2


class Vocabulary:
    def __init__(self, sentences: list[str]) -> None:
        counts = Counter(word for sentence in sentences for word in sentence.split())
        self.words = ["<pad>", "<begin>", "<end>", *sorted(counts)]
        self.ids = {word: number for number, word in enumerate(self.words)}

    def encode(self, sentence: str) -> list[int]:
        return [BEGIN, *(self.ids[word] for word in sentence.split()), END]

    def decode(self, ids: list[int]) -> str:
        return " ".join(self.words[i] for i in ids if i not in (PAD, BEGIN, END))


class Decoder(nn.Module):
    def __init__(self, words: int, features: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width, padding_idx=PAD)
        self.keys, self.query = nn.Linear(features, width), nn.Linear(width, width)
        self.energy = nn.Linear(width, 1)
        self.cell = nn.GRUCell(width + features, width)
        self.begin, self.out = nn.Linear(features, width), nn.Linear(width, words)

    def start(self, regions: Tensor) -> Tensor:
        return torch.tanh(self.begin(regions.mean(1)))

    def forward(self, word: Tensor, hidden: Tensor, regions: Tensor) -> tuple[Tensor, Tensor]:
        energy = self.energy(torch.tanh(self.keys(regions) + self.query(hidden).unsqueeze(1)))
        context = (energy.softmax(1) * regions).sum(1)
        hidden = self.cell(torch.cat([self.embed(word), context], 1), hidden)
        return self.out(hidden), hidden


def bigrams(guess: str, wanted: str) -> float:
    def pairs(text: str) -> Counter[tuple[str, str]]:
        words = text.split()
        return Counter(pairwise(words))

    found = pairs(guess)
    return sum((found & pairs(wanted)).values()) / max(sum(found.values()), 1)


class Captioner:
    def __init__(self, args: argparse.Namespace, vocabulary: Vocabulary) -> None:
        self.args, self.vocabulary = args, vocabulary
        self.decoder = Decoder(len(vocabulary.words), args.features, args.width)
        self.optimizer = torch.optim.Adam(self.decoder.parameters(), lr=args.lr)
        self.criterion = nn.CrossEntropyLoss(ignore_index=PAD)
        self.steps, self.scores = 0, []  # type: ignore[var-annotated]

    def train_batch(self, regions: Tensor, captions: list[str]) -> float:
        target = pad_sequence([torch.tensor(self.vocabulary.encode(c)) for c in captions], batch_first=True)
        self.decoder.train()
        hidden, logits = self.decoder.start(regions), []
        for t in range(target.size(1) - 1):
            out, hidden = self.decoder(target[:, t], hidden, regions)
            logits.append(out)
        loss = self.criterion(torch.stack(logits, 1).flatten(0, 1), target[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.decoder.parameters(), self.args.clip)
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def search(self, regions: Tensor) -> str:
        self.decoder.eval()
        beams = [(0.0, [BEGIN], self.decoder.start(regions))]
        finished: list[tuple[float, list[int]]] = []
        for _ in range(self.args.longest):
            grown = []
            for score, words, hidden in beams:
                logits, after = self.decoder(torch.tensor([words[-1]]), hidden, regions)
                best = logits.log_softmax(-1).squeeze(0).topk(self.args.beams)
                for value, index in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                    grown.append((score + value, [*words, index], after))
            grown.sort(key=lambda beam: beam[0] / len(beam[1]), reverse=True)
            beams = []
            for beam in grown[: self.args.beams]:
                (finished if beam[1][-1] == END else beams).append(beam)  # type: ignore[arg-type]
            if not beams:
                break
        best_one = max(finished or beams, key=lambda beam: beam[0] / len(beam[1]))  # type: ignore[type-var]
        return self.vocabulary.decode(best_one[1])

    def step(self, regions: Tensor, captions: list[str]) -> float:
        loss = self.train_batch(regions, captions)
        self.steps += 1
        if self.steps % self.args.every == 0:
            self.scores.append(bigrams(self.search(regions[:1]), captions[0]))
            print(f"step {self.steps}: loss {loss:.4f}, overlap {self.scores[-1]:.3f}")
        return loss


def make() -> Any:
    args = argparse.Namespace(features=6, width=16, lr=5e-3, clip=1.0, beams=3, longest=7, every=8)
    sentences = ["a dog runs", "a cat sleeps here", "two dogs run fast", "the cat runs"]
    captioner = Captioner(args, Vocabulary(sentences))
    calls = [(torch.randn(4, 5, 6), [sentences[(k + j) % 4] for j in range(4)]) for k in range(48)]
    return captioner.step, calls, lambda: (captioner.decoder, captioner.scores)
