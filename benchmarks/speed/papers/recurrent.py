"""LSTM and LM (JANUS, table 2): language models with a Python loop over time and a state kept between the steps.

LSTM is the PTB model, with its own loop over two layers. LM is the large model of the billion-word benchmark: one layer
with projection, and a softmax over sampled words. The hidden state of one stretch of text is where the next one starts
from: the step reads it from an attribute, and writes it back. At the beginning of each text it is None.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.speed.papers.base import Batch, Program, program, text

__all__: list[str] = []

State = list[tuple[Tensor, Tensor]]


class Cell(nn.Module):
    """One layer of an LSTM for one word; with a projection if one is given."""

    def __init__(self, inside: int, width: int, projection: int | None = None) -> None:
        super().__init__()
        self.width = width
        self.out = projection or width
        self.gates = nn.Linear(inside + self.out, 4 * width)
        self.project = nn.Linear(width, projection, bias=False) if projection else None

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        h, c = state
        i, f, g, o = self.gates(torch.cat([x, h], 1)).chunk(4, 1)
        c = torch.sigmoid(f + 1.0) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        if self.project is not None:
            h = self.project(h)
        return h, c


class WordLSTM(nn.Module):
    def __init__(self, vocabulary: int, width: int, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.cells = nn.ModuleList(Cell(width, width) for _ in range(layers))
        self.decoder = nn.Linear(width, vocabulary)
        self.state: State | None = None

    def forward(self, words: Tensor) -> Tensor:
        if self.state is None:
            zeros = torch.zeros(words.shape[0], self.cells[0].width)
            self.state = [(zeros, zeros) for _ in self.cells]
        # Truncated backpropagation: what came before is a constant.
        state = [(h.detach(), c.detach()) for h, c in self.state]
        outputs = []
        for place in range(words.shape[1]):
            x = self.embedding(words[:, place])
            for layer, cell in enumerate(self.cells):
                state[layer] = cell(x, state[layer])
                x = state[layer][0]
            outputs.append(x)
        self.state = [(h.detach(), c.detach()) for h, c in state]
        scores: Tensor = self.decoder(torch.stack(outputs, 1))
        return scores


@program(
    "lstm",
    paper="JANUS",
    dynamic="a loop over time, state kept on the model, None at the beginning of a text",
    size="2 layers of 200, vocabulary 10,000, batches of 20 (the paper's) x 20 words",
    period=10,
)
def lstm(seed: int, small: bool = False) -> Program:
    vocabulary, width, rows, length = (30, 4, 2, 5) if small else (10000, 200, 20, 20)
    random = np.random.default_rng(seed)
    model = WordLSTM(vocabulary, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    perplexities: list[float] = []

    def step(words: Tensor, begins: bool) -> float:
        if begins:
            model.state = None
        scores = model(words[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        perplexities.append(math.exp(min(loss.item(), 20.0)))
        return loss.item()

    def batches() -> Iterator[Batch]:
        while True:
            stretch = torch.from_numpy(text(random, rows * (10 * length + 1), vocabulary)).view(rows, -1)
            for turn in range(10):
                yield stretch[:, turn * length : (turn + 1) * length + 1].contiguous(), turn == 0

    return Program(step, batches(), (model, optimizer, perplexities))


class LargeLM(nn.Module):
    """Jozefowicz et al., 2016, with a sampled softmax."""

    def __init__(self, vocabulary: int, width: int, projection: int, samples: int) -> None:
        super().__init__()
        self.vocabulary, self.samples = vocabulary, samples
        self.embedding = nn.Embedding(vocabulary, projection)
        self.cell = Cell(projection, width, projection)
        self.dropout = nn.Dropout(0.1)
        self.weight = nn.Parameter(torch.randn(vocabulary, projection) / projection**0.5)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.hidden: Tensor | None = None
        self.memory: Tensor | None = None

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Each word against words drawn by how common they are, with their probabilities corrected for."""
        drawn = np.random.random(self.samples)
        rivals = torch.from_numpy((np.exp(drawn * np.log(self.vocabulary)) - 1).astype(np.int64))
        right = (outputs * self.weight[targets]).sum(1) + self.bias[targets] - self.log_chance(targets)
        wrong = outputs @ self.weight[rivals].t() + self.bias[rivals] - self.log_chance(rivals)
        wrong = wrong.masked_fill(rivals[None, :] == targets[:, None], -1e9)
        return (torch.logsumexp(torch.cat([right[:, None], wrong], 1), 1) - right).mean()

    def log_chance(self, words: Tensor) -> Tensor:
        number = words.float()
        chance = torch.log((number + 2) / (number + 1)) / math.log(self.vocabulary + 1)
        return torch.log(self.samples * chance)

    def forward(self, words: Tensor) -> Tensor:
        batch, length = words.shape[0], words.shape[1] - 1
        if self.hidden is None or self.memory is None:
            self.hidden = torch.zeros(batch, self.cell.out)
            self.memory = torch.zeros(batch, self.cell.width)
        h, c = self.hidden, self.memory
        outputs = []
        for place in range(length):
            x = self.dropout(self.embedding(words[:, place]))
            h, c = self.cell(x, (h, c))
            outputs.append(self.dropout(h))
        self.hidden, self.memory = h.detach(), c.detach()
        return self.loss(torch.cat(outputs), words[:, 1:].t().flatten())


@program(
    "lm",
    paper="JANUS",
    dynamic="a loop over time, state kept on the model, words sampled by NumPy in the middle of the step",
    size="vocabulary 8,000, 512 units, projection 128, 1,024 samples, batches of 64 x 20 words (the paper: 800,000 "
    "words, 8,192 units, batches of 256)",
    period=10,
)
def lm(seed: int, small: bool = False) -> Program:
    vocabulary, width, projection, samples, rows, length = (
        (40, 6, 4, 8, 3, 5) if small else (8000, 512, 128, 1024, 64, 20)
    )
    random = np.random.default_rng(seed)
    np.random.seed(seed)
    model = LargeLM(vocabulary, width, projection, samples)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1, initial_accumulator_value=1.0)

    def step(words: Tensor) -> float:
        loss = model(words)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.cell.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    def batches() -> Iterator[Batch]:
        while True:
            yield (torch.from_numpy(text(random, rows * (length + 1), vocabulary)).view(rows, -1),)

    return Program(step, batches(), (model, optimizer))
