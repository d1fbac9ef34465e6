"""A small transformer on characters: configuration object, blocks, AdamW groups, cosine rate, estimated losses."""

import argparse
import math
import this
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn import functional as F


@dataclass
class Config:
    block: int = 32
    vocab: int = 64
    layers: int = 2
    heads: int = 2
    width: int = 32
    dropout: float = 0.1


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config.width, 3 * config.width)
        self.c_proj = nn.Linear(config.width, config.width)
        self.drop = nn.Dropout(config.dropout)
        self.heads, self.width = config.heads, config.width
        self.register_buffer("mask", torch.tril(torch.ones(config.block, config.block)))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.width, dim=2)
        q, k, v = (t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in (q, k, v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.mask[:T, :T] == 0, float("-inf"))
        y = self.drop(F.softmax(att, dim=-1)) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.attn = Attention(config)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width), nn.GELU(), nn.Linear(4 * config.width, config.width)
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.wte, self.wpe = nn.Embedding(config.vocab, config.width), nn.Embedding(config.block, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.ln_f = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab, bias=False)

    def forward(self, idx, targets=None):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln_f(x))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss


parser = argparse.ArgumentParser()
parser.add_argument("--iters", type=int, default=2500)
options = parser.parse_args()
torch.manual_seed(1337)
text = this.s
chars = sorted(set(text))
data = torch.tensor([chars.index(c) for c in text])
config = Config(vocab=len(chars))
model = GPT(config)
decay = [p for p in model.parameters() if p.dim() >= 2]
other = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.1}, {"params": other, "weight_decay": 0.0}], lr=1e-3, betas=(0.9, 0.95)
)


def get_batch(size=12):
    ix = torch.randint(len(data) - config.block, (size,))
    x = torch.stack([data[i : i + config.block] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + config.block] for i in ix])
    return x, y


def get_lr(it):
    if it < 100:
        return 1e-3 * (it + 1) / 100
    return 1e-4 + 0.5 * (1 + math.cos(math.pi * it / options.iters)) * 9e-4


@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = torch.zeros(10)
    for k in range(10):
        _, loss = model(*get_batch())
        losses[k] = loss.item()
    model.train()
    return losses.mean()


for it in range(options.iters):
    lr = get_lr(it)
    for group in optimizer.param_groups:
        group["lr"] = lr
    if it % 250 == 0:
        print(f"iter {it}: estimated loss {estimate_loss():.6f}")
    x, y = get_batch()
    logits, loss = model(x, y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if it % 50 == 0:
        print(f"iter {it}: loss {loss.item():.6f}, lr {lr:.6f}")
