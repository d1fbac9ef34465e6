"""A generative adversarial network in a trainer class: two networks, two optimizers, logs every so often."""

import argparse

import torch
from torch import nn


class Generator(nn.Module):
    def __init__(self, latent, size):
        super().__init__()
        self.main = nn.Sequential(
            nn.Linear(latent, 64), nn.BatchNorm1d(64), nn.LeakyReLU(0.2), nn.Linear(64, size), nn.Tanh()
        )

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(size, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1), nn.Sigmoid())

    def forward(self, x):
        return self.main(x).view(-1)


class Trainer:
    def __init__(self, loader, latent=8, size=16):
        self.loader, self.latent = loader, latent
        self.net_g, self.net_d = Generator(latent, size), Discriminator(size)
        self.criterion = nn.BCELoss()
        self.optimizer_g = torch.optim.Adam(self.net_g.parameters(), lr=2e-4, betas=(0.5, 0.999))
        self.optimizer_d = torch.optim.Adam(self.net_d.parameters(), lr=2e-4, betas=(0.5, 0.999))
        self.losses = {"g": [], "d": []}

    def fit(self, epochs):
        fixed = torch.randn(4, self.latent)
        for epoch in range(epochs):
            for i, (real,) in enumerate(self.loader):
                size = real.size(0)
                label = torch.full((size,), 1.0)
                self.net_d.zero_grad()
                output = self.net_d(real)
                error_real = self.criterion(output, label)
                error_real.backward()
                d_x = output.mean().item()
                fake = self.net_g(torch.randn(size, self.latent))
                label.fill_(0.0)
                error_fake = self.criterion(self.net_d(fake.detach()), label)
                error_fake.backward()
                error_d = error_real + error_fake
                self.optimizer_d.step()
                self.net_g.zero_grad()
                label.fill_(1.0)
                error_g = self.criterion(self.net_d(fake), label)
                error_g.backward()
                self.optimizer_g.step()
                if i % 20 == 0:
                    where = f"[{epoch}/{epochs}][{i}/{len(self.loader)}]"
                    print(f"{where} {error_d.item():.6f} {error_g.item():.6f} {d_x:.4f}")
                self.losses["g"].append(error_g.item())
                self.losses["d"].append(error_d.item())
            with torch.no_grad():
                print("sample", self.net_g(fixed).sum().item())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=80)
    options = parser.parse_args()
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(1600, 16).tanh())
    Trainer(torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)).fit(options.epochs)
