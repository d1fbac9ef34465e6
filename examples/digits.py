"""Train a LeNet-style convnet on scikit-learn's handwritten digits: 8x8 grey pictures, ten classes.

A plain PyTorch script. torchjanus comes in at one line, in ``main``; with ``--eager`` not even there.

    torchjanus run examples/digits.py
    python examples/digits.py --eager
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

import torchjanus

BATCH = 32


class LeNet(nn.Module):
    """Two convolutions with pooling, dropout, two linear layers."""

    def __init__(self, dropout: float = 0.25) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, kernel_size=3, padding=1)
        self.dropout = nn.Dropout(dropout)
        self.fc1 = nn.Linear(32 * 2 * 2, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = torch.max_pool2d(torch.relu(self.conv1(images)), 2)
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        x = self.dropout(torch.flatten(x, 1))
        return self.fc2(torch.relu(self.fc1(x)))


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One training step; the loss, and how many of the batch were right."""
    optimizer.zero_grad()
    logits = model(images)
    loss = nn.functional.cross_entropy(logits, labels)
    loss.backward()
    optimizer.step()
    return loss.detach(), (logits.argmax(dim=1) == labels).sum()


def load(seed: int) -> tuple[DataLoader[tuple[torch.Tensor, ...]], torch.Tensor, torch.Tensor]:
    """The shuffled training batches (the last one is partial), the test pictures and their labels."""
    digits = load_digits()
    train_x, test_x, train_y, test_y = train_test_split(
        digits.images, digits.target, test_size=0.2, stratify=digits.target, random_state=seed
    )

    def pictures(array: object) -> torch.Tensor:
        return torch.tensor(array, dtype=torch.float32).unsqueeze(1) / 16.0

    training = TensorDataset(pictures(train_x), torch.tensor(train_y))
    return DataLoader(training, batch_size=BATCH, shuffle=True), pictures(test_x), torch.tensor(test_y)


def build(steps: int) -> tuple[LeNet, torch.optim.SGD, torch.optim.lr_scheduler.OneCycleLR]:
    """A fresh model, its optimizer, and a schedule of ``steps`` steps: the rate rises, then falls to almost zero."""
    model = LeNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=steps)
    return model, optimizer, schedule


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    model.eval()
    with torch.no_grad():
        right = (model(images).argmax(dim=1) == labels).sum().item()
    model.train()
    return right / len(labels)


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--eager", action="store_true", help="run without torchjanus")
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--losses", type=Path, metavar="FILE", help="write the loss of every step as a JSON list")
    options = parser.parse_args(arguments)

    torch.manual_seed(options.seed)
    batches, test_images, test_labels = load(options.seed)
    model, optimizer, schedule = build(options.epochs * len(batches))

    step = train_step if options.eager else torchjanus.speculate(train_step)

    losses: list[float] = []
    begin = time.perf_counter()
    # Without a terminal there is no bar, only the lines.
    bar = tqdm(total=options.epochs * len(batches), unit="step", disable=None)
    for epoch in range(1, options.epochs + 1):
        seen = right = 0
        for images, labels in batches:
            loss, hits = step(model, optimizer, images, labels)
            schedule.step()
            losses.append(loss.item())
            seen += len(labels)
            right += int(hits)
            bar.update()
            bar.set_postfix(epoch=epoch, loss=f"{losses[-1]:.4f}", rate=f"{schedule.get_last_lr()[0]:.4f}")
        if epoch % 25 == 0 or epoch in (1, options.epochs):
            mean = sum(losses[-len(batches) :]) / len(batches)
            test = accuracy(model, test_images, test_labels)
            bar.write(f"epoch {epoch:3d}  loss {mean:.4f}  training {right / seen:.2%}  test {test:.2%}")
    bar.close()

    final = accuracy(model, test_images, test_labels)
    print(f"test accuracy {final:.2%} after {len(losses)} steps in {time.perf_counter() - begin:.1f} s")
    if options.losses:
        options.losses.write_text(json.dumps(losses) + "\n")
    return final


if __name__ == "__main__":
    main()
