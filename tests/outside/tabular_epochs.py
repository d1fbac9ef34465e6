"""A network on a table with categories: a data set and a loader with shuffling, an epoch as the step, a validation with
an area under the curve by scikit-learn, early stopping, and a checkpoint of the best epoch."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import LabelEncoder, StandardScaler
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class TableDataset(Dataset[tuple[Tensor, Tensor, Tensor]]):
    def __init__(self, categories: np.ndarray, numbers: np.ndarray, labels: np.ndarray) -> None:
        self.categories = torch.as_tensor(categories, dtype=torch.long)
        self.numbers = torch.as_tensor(numbers, dtype=torch.float32)
        self.labels = torch.as_tensor(labels, dtype=torch.float32)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        return self.categories[index], self.numbers[index], self.labels[index]


class TabularModel(nn.Module):
    def __init__(self, sizes: list[int], numbers: int, hidden: tuple[int, ...] = (32, 16), drop: float = 0.1) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList([nn.Embedding(size, min(8, (size + 1) // 2)) for size in sizes])
        width = sum(e.embedding_dim for e in self.embeddings) + numbers
        self.norm = nn.BatchNorm1d(numbers)
        layers: list[nn.Module] = []
        for size in hidden:
            layers += [nn.Linear(width, size), nn.ReLU(), nn.BatchNorm1d(size), nn.Dropout(drop)]
            width = size
        self.layers = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        embedded = [embed(categories[:, k]) for k, embed in enumerate(self.embeddings)]
        return self.layers(torch.cat([*embedded, self.norm(numbers)], 1)).squeeze(1)


@dataclass
class EarlyStopping:
    patience: int = 5
    best: float = float("-inf")
    waited: int = 0
    weights: dict[str, Any] = field(default_factory=dict)

    def __call__(self, score: float, model: nn.Module) -> bool:
        if score > self.best:
            self.best, self.waited = score, 0
            self.weights = copy.deepcopy(model.state_dict())
        else:
            self.waited += 1
        return self.waited >= self.patience


class AverageMeter:
    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.val = self.avg = self.sum = self.count = 0.0

    def update(self, val: float, n: int = 1) -> None:
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


class Trainer:
    def __init__(self, train: TableDataset, valid: TableDataset, sizes: list[int]) -> None:
        self.loader = DataLoader(train, batch_size=16, shuffle=True, drop_last=True)
        self.held_out = DataLoader(valid, batch_size=32)
        self.model = TabularModel(sizes, train.numbers.shape[1])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3, weight_decay=1e-2)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=30)
        self.criterion = nn.BCEWithLogitsLoss()
        self.stopping, self.losses, self.restarts = EarlyStopping(), AverageMeter(), 0

    def evaluate(self) -> float:
        self.model.eval()
        scores, labels = [], []
        with torch.no_grad():
            for categories, numbers, label in self.held_out:
                scores.append(torch.sigmoid(self.model(categories, numbers)).numpy())
                labels.append(label.numpy())
        return float(roc_auc_score(np.concatenate(labels), np.concatenate(scores)))

    def epoch(self) -> tuple[float, float, float]:
        self.model.train()
        self.losses.reset()
        for categories, numbers, label in self.loader:
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.criterion(self.model(categories, numbers), label)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=1.0)
            self.optimizer.step()
            self.losses.update(loss.item(), label.size(0))
        self.scheduler.step()
        score = self.evaluate()
        if self.stopping(score, self.model):
            self.model.load_state_dict(self.stopping.weights)
            self.stopping.waited = 0
            self.restarts += 1
        return self.losses.avg, score, self.scheduler.get_last_lr()[0]


def make() -> Any:
    rng = np.random.default_rng(4)
    names = rng.choice(["red", "green", "blue", "white"], 96), rng.choice(["x", "y", "z"], 96)
    encoders = [LabelEncoder().fit(one) for one in names]
    categories = np.stack([e.transform(one) for e, one in zip(encoders, names, strict=True)], 1)
    numbers = StandardScaler().fit_transform(rng.normal(size=(96, 4)))
    labels = (numbers[:, 0] + (categories[:, 0] == 1) + 0.5 * rng.normal(size=96) > 0.3).astype(np.float32)
    sets = [TableDataset(categories[s], numbers[s], labels[s]) for s in (slice(0, 64), slice(64, 96))]
    trainer = Trainer(*sets, [len(e.classes_) for e in encoders])
    return trainer.epoch, [()] * 30, lambda: (trainer.model, trainer.stopping.best, trainer.restarts)
