"""A siamese network on pairs of digits: one network called twice, a contrastive loss, meters in a class."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    def __init__(self, seed, count):
        images, labels = load_digits(return_X_y=True)
        self.images = torch.tensor(images, dtype=torch.float32) / 16
        labels = torch.tensor(labels)
        drawn = torch.randint(len(images), (count, 2), generator=torch.Generator().manual_seed(seed))
        self.pairs, self.same = drawn, (labels[drawn[:, 0]] == labels[drawn[:, 1]]).float()

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        first, second = self.pairs[index]
        return self.images[first], self.images[second], self.same[index]


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 16))

    def forward(self, first, second):
        return self.trunk(first), self.trunk(second)


class ContrastiveLoss(nn.Module):
    def __init__(self, margin=1.0):
        super().__init__()
        self.margin = margin

    def forward(self, first, second, same):
        distance = F.pairwise_distance(first, second)
        return (same * distance.pow(2) + (1 - same) * F.relu(self.margin - distance).pow(2)).mean()


class AverageMeter:
    def __init__(self):
        self.sum = self.count = 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(1, self.count)


def train_one_epoch(model, criterion, optimizer, loader):
    meter = AverageMeter()
    model.train()
    for first, second, same in loader:
        optimizer.zero_grad()
        loss = criterion(*model(first, second), same)
        loss.backward()
        optimizer.step()
        meter.update(loss.item(), first.size(0))
    return meter.avg


@torch.inference_mode()
def accuracy(model, loader):
    model.eval()
    right = total = 0
    for first, second, same in loader:
        a, b = model(first, second)
        right += ((F.pairwise_distance(a, b) < 0.5) == (same > 0)).sum().item()
        total += len(same)
    return right / total


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=80)
    options = parser.parse_args()
    torch.manual_seed(0)
    loader, held_out = DataLoader(Pairs(0, 3200), batch_size=64, shuffle=True), DataLoader(Pairs(1, 640), batch_size=64)
    model, criterion = Siamese(), ContrastiveLoss()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for epoch in range(options.epochs):
        loss = train_one_epoch(model, criterion, optimizer, loader)
        print(f"epoch {epoch}: loss {loss:.6f}, accuracy {accuracy(model, held_out):.4f}")
