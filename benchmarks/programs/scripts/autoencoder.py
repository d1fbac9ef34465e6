"""A variational autoencoder on digits: reparametrisation with random numbers, a loss of two terms."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 48)
        self.mean = nn.Linear(48, 8)
        self.logvar = nn.Linear(48, 8)
        self.fc3 = nn.Linear(8, 48)
        self.fc4 = nn.Linear(48, 64)

    def encode(self, x):
        h = F.relu(self.fc1(x))
        return self.mean(h), self.logvar(h)

    def reparameterize(self, mean, logvar):
        std = torch.exp(0.5 * logvar)
        return mean + torch.randn_like(std) * std

    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x):
        mean, logvar = self.encode(x.view(-1, 64))
        return self.decode(self.reparameterize(mean, logvar)), mean, logvar


def loss_function(rebuilt, x, mean, logvar):
    bce = F.binary_cross_entropy(rebuilt, x.view(-1, 64), reduction="sum")
    return bce - 0.5 * torch.sum(1 + logvar - mean.pow(2) - logvar.exp())


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=120)
options = parser.parse_args()
torch.manual_seed(0)
images = torch.tensor(load_digits().images, dtype=torch.float32) / 16
train_loader = torch.utils.data.DataLoader(images[:1440], batch_size=32, shuffle=True)
test_loader = torch.utils.data.DataLoader(images[1440:], batch_size=51)
model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def train(epoch):
    model.train()
    train_loss = 0
    for batch_idx, data in enumerate(train_loader):
        optimizer.zero_grad()
        rebuilt, mean, logvar = model(data)
        loss = loss_function(rebuilt, data, mean, logvar)
        loss.backward()
        train_loss += loss.item()
        optimizer.step()
        if batch_idx % 20 == 0:
            print(f"epoch {epoch} batch {batch_idx}: {loss.item() / len(data):.6f}")
    print(f"====> epoch {epoch}: average {train_loss / len(train_loader.dataset):.6f}")


def test(epoch):
    model.eval()
    test_loss = 0
    with torch.no_grad():
        for data in test_loader:
            rebuilt, mean, logvar = model(data)
            test_loss += loss_function(rebuilt, data, mean, logvar).item()
    print(f"====> test {epoch}: {test_loss / len(test_loader.dataset):.6f}")


if __name__ == "__main__":
    for epoch in range(1, options.epochs + 1):
        train(epoch)
        test(epoch)
        with torch.no_grad():
            print("sample", model.decode(torch.randn(4, 8)).sum().item())
