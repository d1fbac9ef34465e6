"""TabNet's shape on a synthetic table: shared and own gated blocks, attentive steps with a prior, sparsity loss."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def sparsemax(z):
    ordered, _ = torch.sort(z, dim=1, descending=True)
    ks = torch.arange(1, z.size(1) + 1, dtype=z.dtype, device=z.device)
    cumulated = ordered.cumsum(1)
    support = (1 + ks * ordered > cumulated).sum(dim=1, keepdim=True)
    tau = (cumulated.gather(1, support - 1) - 1) / support.to(z.dtype)
    return torch.clamp(z - tau, min=0)


class GhostBatchNorm(nn.Module):
    def __init__(self, width, virtual=128):
        super().__init__()
        self.virtual = virtual
        self.norm = nn.BatchNorm1d(width, momentum=0.02)

    def forward(self, x):
        chunks = x.chunk(max(1, x.size(0) // self.virtual), 0)
        return torch.cat([self.norm(chunk) for chunk in chunks], dim=0)


class GLU(nn.Module):
    def __init__(self, given, width, fc=None):
        super().__init__()
        self.fc = nn.Linear(given, 2 * width, bias=False) if fc is None else fc
        self.norm = GhostBatchNorm(2 * width)
        self.width = width

    def forward(self, x):
        x = self.norm(self.fc(x))
        return x[:, : self.width] * torch.sigmoid(x[:, self.width :])


class FeatureTransformer(nn.Module):
    def __init__(self, given, width, shared):
        super().__init__()
        self.blocks = nn.ModuleList([GLU(given, width, shared[0]), GLU(width, width, shared[1])])
        self.blocks.extend([GLU(width, width), GLU(width, width)])

    def forward(self, x):
        x = self.blocks[0](x)
        for block in self.blocks[1:]:
            x = (x + block(x)) * 0.5**0.5
        return x


class TabNet(nn.Module):
    def __init__(self, features, classes, decision=16, attention=16, steps=3, gamma=1.3):
        super().__init__()
        width = decision + attention
        shared = [nn.Linear(features, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)]
        self.initial = nn.BatchNorm1d(features)
        self.first = FeatureTransformer(features, width, shared)
        self.transformers = nn.ModuleList(FeatureTransformer(features, width, shared) for _ in range(steps))
        self.attentions = nn.ModuleList(nn.Linear(attention, features, bias=False) for _ in range(steps))
        self.norms = nn.ModuleList(GhostBatchNorm(features) for _ in range(steps))
        self.head = nn.Linear(decision, classes)
        self.decision, self.gamma = decision, gamma

    def forward(self, x):
        x = self.initial(x)
        a = self.first(x)[:, self.decision :]
        prior = torch.ones_like(x)
        total, sparsity = 0, 0
        for transformer, attention, norm in zip(self.transformers, self.attentions, self.norms):
            mask = sparsemax(norm(attention(a)) * prior)
            sparsity = sparsity + torch.mean(torch.sum(-mask * torch.log(mask + 1e-10), dim=1))
            prior = prior * (self.gamma - mask)
            out = transformer(mask * x)
            total = total + F.relu(out[:, : self.decision])
            a = out[:, self.decision :]
        return self.head(total), sparsity / len(self.transformers)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rows", type=int, default=16384)
    args = parser.parse_args()
    torch.manual_seed(0)
    x = torch.randn(args.rows + 4096, 24)
    y = ((x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] + x[:, 3] > 0).long()) % 3
    train_loader = DataLoader(
        TensorDataset(x[: args.rows], y[: args.rows]), batch_size=256, shuffle=True, drop_last=True
    )
    valid_loader = DataLoader(TensorDataset(x[args.rows :], y[args.rows :]), batch_size=1024)
    model = TabNet(24, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.9)
    best = 0.0
    for epoch in range(args.epochs):
        model.train()
        losses = []
        for xb, yb in train_loader:
            for param in model.parameters():
                param.grad = None
            out, sparsity = model(xb)
            loss = F.cross_entropy(out, yb) + 1e-3 * sparsity
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        scheduler.step()
        model.eval()
        correct = 0
        with torch.no_grad():
            for xb, yb in valid_loader:
                correct += (model(xb)[0].argmax(1) == yb).sum().item()
        accuracy = correct / (len(x) - args.rows)
        if accuracy > best:
            best = accuracy
        print(f"epoch {epoch:3d} | loss {sum(losses) / len(losses):.6f} | valid {accuracy:.5f} | best {best:.5f}")


if __name__ == "__main__":
    main()
