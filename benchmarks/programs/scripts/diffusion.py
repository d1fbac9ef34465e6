"""Denoising diffusion on digits: noise of a random step is predicted, an averaged copy of the model draws samples."""

import argparse
import copy
import math

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


class TimeEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.proj = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, t):
        half = self.dim // 2
        freqs = torch.exp(-math.log(10000) * torch.arange(half) / half)
        angles = t[:, None].float() * freqs[None]
        return self.proj(torch.cat([angles.sin(), angles.cos()], dim=-1))


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, dim), nn.GroupNorm(4, dim)
        self.conv1, self.conv2 = nn.Conv2d(dim, dim, 3, padding=1), nn.Conv2d(dim, dim, 3, padding=1)
        self.time = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, emb):
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(F.silu(emb))[:, :, None, None]
        return x + self.conv2(self.dropout(F.silu(self.norm2(h))))


class Denoiser(nn.Module):
    def __init__(self, dim=16, depth=2):
        super().__init__()
        self.embed = TimeEmbedding(dim)
        self.first = nn.Conv2d(1, dim, 3, padding=1)
        self.blocks = nn.ModuleList([Block(dim) for _ in range(depth)])
        self.last = nn.Conv2d(dim, 1, 3, padding=1)

    def forward(self, x, t):
        emb, h = self.embed(t), self.first(x)
        for block in self.blocks:
            h = block(h, emb)
        return self.last(h)


class Diffusion:
    def __init__(self, steps):
        self.steps = steps
        self.betas = torch.linspace(1e-4, 0.02 * 1000 / steps / 10, steps)
        self.alphas_bar = torch.cumprod(1 - self.betas, dim=0)

    def q_sample(self, x0, t, noise):
        a = self.alphas_bar[t][:, None, None, None]
        return a.sqrt() * x0 + (1 - a).sqrt() * noise

    @torch.no_grad()
    def sample(self, model, n):
        x = torch.randn(n, 1, 8, 8)
        for step in reversed(range(self.steps)):
            t = torch.full((n,), step)
            eps = model(x, t)
            beta, bar = self.betas[step], self.alphas_bar[step]
            x = (x - beta / (1 - bar).sqrt() * eps) / (1 - beta).sqrt()
            if step > 0:
                x = x + beta.sqrt() * torch.randn_like(x)
        return x


def update_ema(ema, model, decay=0.995):
    with torch.no_grad():
        for p_ema, p in zip(ema.parameters(), model.parameters()):
            p_ema.lerp_(p, 1 - decay)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--timesteps", type=int, default=100)
    args = parser.parse_args()
    torch.manual_seed(0)
    images = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    loader = torch.utils.data.DataLoader(images, batch_size=32, shuffle=True, drop_last=True)
    model = Denoiser()
    ema = copy.deepcopy(model)
    diffusion = Diffusion(args.timesteps)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(loader))
    for epoch in range(args.epochs):
        running = 0.0
        for x0 in loader:
            t = torch.randint(0, diffusion.steps, (x0.shape[0],))
            noise = torch.randn_like(x0)
            loss = F.mse_loss(model(diffusion.q_sample(x0, t, noise), t), noise)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            update_ema(ema, model)
            running = 0.99 * running + 0.01 * loss.item() if running else loss.item()
        print(f"epoch {epoch} loss {running:.6f} lr {scheduler.get_last_lr()[0]:.2e}")
        if (epoch + 1) % 5 == 0:
            samples = diffusion.sample(ema, 8)
            print(f"samples mean {samples.mean().item():.5f} std {samples.std().item():.5f}")
