"""A small vision transformer on noisy templates: patches, class token, warm-up, label smoothing, clipped gradients."""

import argparse
import math

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class PatchEmbedding(nn.Module):
    def __init__(self, size=32, patch=8, channels=3, width=64):
        super().__init__()
        self.projection = nn.Conv2d(channels, width, kernel_size=patch, stride=patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 1 + (size // patch) ** 2, width))

    def forward(self, x):
        x = self.projection(x).flatten(2).transpose(1, 2)
        return torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions


class Attention(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        attention = self.dropout(((q @ k.transpose(-2, -1)) * self.scale).softmax(dim=-1))
        return self.out((attention @ v).transpose(1, 2).reshape(B, N, C))


class Layer(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, classes=10, width=64, depth=4, heads=4, dropout=0.1):
        super().__init__()
        self.embedding = PatchEmbedding(width=width)
        self.layers = nn.ModuleList([Layer(width, heads, dropout) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x[:, 0]))


def pictures(count, generator):
    templates = torch.randn(10, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(10, (count,), generator=generator)
    return TensorDataset(templates[labels] + 2.0 * torch.randn(count, 3, 32, 32, generator=generator), labels)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    correct = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    return correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--samples", type=int, default=4096)
    args = parser.parse_args()
    torch.manual_seed(42)
    generator = torch.Generator().manual_seed(1)
    train_loader = DataLoader(pictures(args.samples, generator), batch_size=64, shuffle=True, drop_last=True)
    test_loader = DataLoader(pictures(512, generator), batch_size=128)
    model = ViT()
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    total, warm = args.epochs * len(train_loader), len(train_loader)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: s / warm if s < warm else 0.5 * (1 + math.cos(math.pi * (s - warm) / max(1, total - warm)))
    )
    for epoch in range(args.epochs):
        model.train()
        running = 0.0
        for step, (images, labels) in enumerate(train_loader):
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            running += loss.item()
            if (step + 1) % 20 == 0:
                print(f"epoch {epoch} step {step + 1}: loss {running / 20:.6f}")
                running = 0.0
        print(f"epoch {epoch}: accuracy {evaluate(model, test_loader):.4f}")


if __name__ == "__main__":
    main()
