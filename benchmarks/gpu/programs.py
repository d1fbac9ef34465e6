"""The training steps that are measured on a GPU: imperative PyTorch that needs no other package.

They know no compiler. ``capturable`` is what a capture by hand asks of Adam.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.programs.steps import CharacterLSTM

__all__ = ["PROGRAMS", "Job", "Maker"]

Batch = tuple[Any, ...]


@dataclass(frozen=True)
class Job:
    """``step(*batch)`` trains once; ``networks`` is all that it trains. ``static``: it does the same in each call, so
    it can be captured by hand."""

    step: Callable[..., Any]
    batches: list[Batch]
    networks: list[nn.Module]
    static: bool = True


@dataclass(frozen=True)
class Maker:
    """Where a program is made, and how large."""

    device: str
    short: bool = False
    capturable: bool = False
    seed: int = 0
    _draw: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def adam(self, *networks: nn.Module, rate: float = 1e-3) -> torch.optim.Optimizer:
        parameters = [one for network in networks for one in network.parameters()]
        return torch.optim.Adam(parameters, lr=rate, capturable=self.capturable)

    def sgd(self, network: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)

    def normal(self, *size: int) -> Tensor:
        return torch.randn(size, generator=self._draw).to(self.device)

    def integers(self, end: int, *size: int) -> Tensor:
        return torch.randint(end, size, generator=self._draw).to(self.device)

    @property
    def count(self) -> int:
        """How many batches there are."""
        return 4 if self.short else 16


PROGRAMS: dict[str, Callable[[Maker], Job]] = {}


def program(make: Callable[[Maker], Job]) -> Callable[[Maker], Job]:
    """Enter a program under its name."""

    def seeded(maker: Maker) -> Job:
        torch.manual_seed(maker.seed)
        made = make(maker)
        for network in made.networks:
            network.to(maker.device)
        torch.manual_seed(maker.seed + 1)
        return made

    PROGRAMS[make.__name__] = seeded
    return seeded


Loss = Callable[..., Tensor]


def training(network: nn.Module, optimizer: torch.optim.Optimizer, loss_of: Loss) -> Callable[..., Tensor]:
    """The usual step."""

    def step(*batch: Any) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(network, *batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@program
def lenet(maker: Maker) -> Job:
    network = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    ).to(maker.device)  # fmt: skip
    rows = 8 if maker.short else 64
    data = [(maker.normal(rows, 1, 28, 28), maker.integers(10, rows)) for _ in range(maker.count)]
    step = training(network, maker.sgd(network), lambda net, x, y: F.cross_entropy(net(x), y))
    return Job(step, data, [network])


def next_word(network: nn.Module, text: Tensor) -> Tensor:
    return F.cross_entropy(network(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


@program
def lstm(maker: Maker) -> Job:
    rows, length, width = (4, 5, 16) if maker.short else (20, 35, 256)
    network = CharacterLSTM(0.1, 64, width).to(maker.device)
    data = [(maker.integers(64, rows, length + 1),) for _ in range(maker.count)]
    return Job(training(network, maker.adam(network), next_word), data, [network])


class Layered(nn.Module):
    """A language model on torch's own LSTM, with dropout."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.LSTM(width, width, 2, batch_first=True)
        self.dropout = nn.Dropout(0.3)
        self.decoder = nn.Linear(width, words)

    def forward(self, text: Tensor) -> Tensor:
        made, _ = self.layers(self.dropout(self.embedding(text)))
        return self.decoder(self.dropout(made))


@program
def lm(maker: Maker) -> Job:
    words, rows, length, width = (50, 3, 6, 16) if maker.short else (10_000, 20, 35, 256)
    network = Layered(words, width).to(maker.device)
    optimizer = maker.adam(network)
    data = [(maker.integers(words, rows, length + 1),) for _ in range(maker.count)]

    def step(text: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = next_word(network, text)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return Job(step, data, [network])


class Agent(nn.Module):
    """Policy and value of a small state."""

    def __init__(self, inputs: int, actions: int, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.policy, self.value = nn.Linear(width, actions), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        made = self.body(x)
        return self.policy(made), self.value(made).squeeze(-1)


@program
def a3c(maker: Maker) -> Job:
    """Episodes of different lengths: returns are summed in a loop of Python."""
    network = Agent(8, 4, 16 if maker.short else 64).to(maker.device)
    optimizer = maker.adam(network)
    lengths = [5, 7] if maker.short else [20, 35, 50]

    def episode(number: int) -> Batch:
        length = lengths[number % len(lengths)]
        return maker.normal(length, 8), maker.integers(4, length), maker.normal(length)

    def step(states: Tensor, actions: Tensor, rewards: Tensor) -> Tensor:
        logits, values = network(states)
        total, returns = torch.zeros((), device=rewards.device), []
        for reward in reversed(rewards.unbind()):
            total = reward + 0.99 * total
            returns.append(total)
        advantage = torch.stack(returns[::-1]) - values
        chosen = F.log_softmax(logits, -1).gather(1, actions[:, None]).squeeze(1)
        loss = -(chosen * advantage.detach()).mean() + 0.5 * advantage.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Job(step, [episode(number) for number in range(maker.count)], [network], static=False)


@program
def ppo(maker: Maker) -> Job:
    """Epochs over pieces of a rollout, within one step."""
    rows, pieces, epochs = (16, 2, 2) if maker.short else (512, 4, 4)
    network = Agent(8, 4, 16 if maker.short else 64).to(maker.device)
    optimizer = maker.adam(network)

    def rollout() -> Batch:
        return maker.normal(rows, 8), maker.integers(4, rows), *(maker.normal(rows) for _ in range(3))

    def step(states: Tensor, actions: Tensor, before: Tensor, advantages: Tensor, returns: Tensor) -> Tensor:
        loss = states.new_zeros(())
        for _ in range(epochs):
            order = torch.randperm(rows, device=states.device)
            for piece in order.chunk(pieces):
                logits, values = network(states[piece])
                chosen = F.log_softmax(logits, -1).gather(1, actions[piece][:, None]).squeeze(1)
                ratio = (chosen - before[piece].clamp(-3, 0)).exp()
                gain = torch.minimum(ratio * advantages[piece], ratio.clamp(0.8, 1.2) * advantages[piece]).mean()
                loss = (values - returns[piece]).pow(2).mean() - gain
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return loss.detach()

    return Job(step, [rollout() for _ in range(maker.count)], [network])


def perceptron(inputs: int, width: int, outputs: int, bend: nn.Module, *last: nn.Module) -> nn.Sequential:
    middle = nn.Linear(width, width)
    return nn.Sequential(nn.Linear(inputs, width), bend, middle, bend, nn.Linear(width, outputs), *last)


@program
def sac(maker: Maker) -> Job:
    """Two critics, their slow copies, a policy that draws: three optimizers in one step."""
    width, rows = (16, 8) if maker.short else (256, 256)

    def net(inputs: int, outputs: int) -> nn.Sequential:
        return perceptron(inputs, width, outputs, nn.ReLU())

    actor, critics, slow = net(12, 8), nn.ModuleList([net(16, 1), net(16, 1)]), nn.ModuleList([net(16, 1), net(16, 1)])
    slow.load_state_dict(critics.state_dict())
    networks: list[nn.Module] = [actor.to(maker.device), critics.to(maker.device), slow.to(maker.device)]
    for_actor, for_critics = maker.adam(actor), maker.adam(critics)

    def act(x: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = actor(x).chunk(2, -1)
        spread = spread.clamp(-5, 2).exp()
        raw = mean + spread * torch.randn_like(mean)
        action = torch.tanh(raw)
        likelihood = -0.5 * ((raw - mean) / spread).pow(2) - spread.log() - torch.log(1 - action.pow(2) + 1e-6)
        return action, likelihood.sum(-1, keepdim=True)

    def worth(of: nn.ModuleList, x: Tensor, action: Tensor) -> Tensor:
        both = torch.cat([x, action], -1)
        return torch.minimum(of[0](both), of[1](both))

    def step(x: Tensor, action: Tensor, reward: Tensor, later: Tensor) -> Tensor:
        with torch.no_grad():
            following, likelihood = act(later)
            target = reward + 0.99 * (worth(slow, later, following) - 0.2 * likelihood)
        both = torch.cat([x, action], -1)
        loss = sum((one(both) - target).pow(2).mean() for one in critics)
        for_critics.zero_grad()
        loss.backward()
        for_critics.step()
        own, likelihood = act(x)
        gain = (0.2 * likelihood - worth(critics, x, own)).mean()
        for_actor.zero_grad()
        gain.backward()
        for_actor.step()
        with torch.no_grad():
            for mine, theirs in zip(slow.parameters(), critics.parameters(), strict=True):
                mine.lerp_(theirs, 0.005)
        return gain.detach()

    data = [
        (maker.normal(rows, 12), maker.normal(rows, 4).tanh(), maker.normal(rows, 1), maker.normal(rows, 12))
        for _ in range(maker.count)
    ]
    return Job(step, data, networks)


class Tree(nn.Module):
    """A TreeLSTM by recursion over nested tuples."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.leaf, self.node = nn.Embedding(words, 2 * width), nn.Linear(2 * width, 5 * width)
        self.out = nn.Linear(width, 2)

    def forward(self, tree: Any) -> tuple[Tensor, Tensor]:
        if isinstance(tree, Tensor):
            hidden, cell = self.leaf(tree).chunk(2, -1)
            return torch.tanh(hidden), cell
        (left, one), (right, other) = self(tree[0]), self(tree[1])
        i, f, g, o, u = self.node(torch.cat([left, right], -1)).chunk(5, -1)
        cell = torch.sigmoid(f) * one + torch.sigmoid(g) * other + torch.sigmoid(i) * torch.tanh(u)
        return torch.sigmoid(o) * torch.tanh(cell), cell


@program
def treelstm(maker: Maker) -> Job:
    depth, width = (2, 8) if maker.short else (5, 128)
    network = Tree(100, width).to(maker.device)
    optimizer = maker.adam(network)

    def tree(level: int) -> Any:
        return maker.integers(100, 1) if level == 0 else (tree(level - 1), tree(max(0, level - 1 - level % 2)))

    def step(root: Any, label: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(network.out(network(root)[0]), label)
        loss.backward()
        optimizer.step()
        return loss.detach()

    data = [(tree(depth - number % 2), maker.integers(2, 1)) for number in range(maker.count)]
    return Job(step, data, [network], static=False)


@program
def gan(maker: Maker) -> Job:
    rows, width = (4, 16) if maker.short else (64, 256)
    maps = perceptron(32, width, 784, nn.ReLU(), nn.Tanh()).to(maker.device)
    judge = perceptron(784, width, 1, nn.LeakyReLU(0.2)).to(maker.device)
    first, second = maker.adam(judge, rate=2e-4), maker.adam(maps, rate=2e-4)

    def step(real: Tensor) -> Tensor:
        fake = maps(torch.randn(real.shape[0], 32, device=real.device))
        loss = F.softplus(-judge(real)).mean() + F.softplus(judge(fake.detach())).mean()
        first.zero_grad()
        loss.backward()
        first.step()
        fooled = F.softplus(-judge(fake)).mean()
        second.zero_grad()
        fooled.backward()
        second.step()
        return fooled.detach()

    return Job(step, [(maker.normal(rows, 784).tanh(),) for _ in range(maker.count)], [maps, judge])


class Transformer(nn.Module):
    """Blocks of attention, with a causal mask (GPT-2) or without (BERT)."""

    def __init__(self, words: int, length: int, width: int, heads: int, layers: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "before": nn.LayerNorm(width),
                    "attend": nn.Linear(width, 3 * width),
                    "join": nn.Linear(width, width),
                    "between": nn.LayerNorm(width),
                    "up": nn.Linear(width, 4 * width),
                    "down": nn.Linear(4 * width, width),
                }
            )
            for _ in range(layers)
        )  # fmt: skip
        self.last, self.drop = nn.LayerNorm(width), nn.Dropout(0.1)

    def forward(self, text: Tensor) -> Tensor:
        x = self.drop(self.words(text) + self.places(torch.arange(text.shape[1], device=text.device)))
        for block in self.blocks:
            parts = block["attend"](block["before"](x)).chunk(3, -1)
            q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
            made = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2)
            x = x + self.drop(block["join"](made))
            x = x + self.drop(block["down"](F.gelu(block["up"](block["between"](x)))))
        return self.last(x) @ self.words.weight.T


def transformer(maker: Maker, size: tuple[int, int, int, int], rows: int, causal: bool) -> Job:
    length, width, heads, layers = (8, 16, 2, 1) if maker.short else size
    words = 100 if maker.short else 30_000
    network = Transformer(words, length, width, heads, layers, causal).to(maker.device)
    data = [(maker.integers(words, rows, length + 1),) for _ in range(maker.count)]
    return Job(training(network, maker.adam(network, rate=1e-4), next_word), data, [network])


@program
def bert(maker: Maker) -> Job:
    """As large as BERT-small: 4 layers of 512."""
    return transformer(maker, (128, 512, 8, 4), 2 if maker.short else 16, causal=False)


@program
def gpt2(maker: Maker) -> Job:
    """As large as GPT-2 small: 12 layers of 768."""
    return transformer(maker, (256, 768, 12, 12), 2 if maker.short else 8, causal=True)
