"""Semi-supervised learning on a graph with a sparse, normalised adjacency matrix: masks for training and validation,
dropout on features, and the best validation accuracy with patience."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import networkx as nx
import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn import functional as F


def normalised(adjacency: sp.spmatrix) -> sp.coo_matrix:
    adjacency = sp.coo_matrix(adjacency + sp.eye(adjacency.shape[0]))
    degrees = np.array(adjacency.sum(1)).flatten()
    inverse = sp.diags(np.power(degrees, -0.5))
    return inverse.dot(adjacency).dot(inverse).tocoo()


def to_sparse_tensor(matrix: sp.coo_matrix) -> Tensor:
    indices = torch.from_numpy(np.vstack((matrix.row, matrix.col)).astype(np.int64))
    return torch.sparse_coo_tensor(indices, torch.from_numpy(matrix.data.astype(np.float32)), matrix.shape).coalesce()


class GraphConvolution(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        return torch.spmm(adjacency, torch.mm(x, self.weight)) + self.bias


class GCN(nn.Module):
    def __init__(self, features: int, hidden: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.gc1, self.gc2 = GraphConvolution(features, hidden), GraphConvolution(hidden, classes)
        self.dropout = dropout

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        x = F.relu(self.gc1(x, adjacency))
        x = F.dropout(x, self.dropout, self.training)
        return F.log_softmax(self.gc2(x, adjacency), dim=1)


def accuracy(output: Tensor, labels: Tensor) -> float:
    right = output.max(1)[1].type_as(labels).eq(labels).double()
    return float(right.sum().item() / len(labels))


class Trainer:
    def __init__(self, args: Namespace, graph: nx.Graph, labels: list[int]) -> None:
        self.args = args
        self.adjacency = to_sparse_tensor(normalised(nx.adjacency_matrix(graph)))
        self.features = torch.eye(len(graph))
        self.labels = torch.tensor(labels)
        order = np.random.default_rng(args.seed).permutation(len(graph))
        self.idx_train, self.idx_val = torch.from_numpy(order[:12].copy()), torch.from_numpy(order[12:24].copy())
        self.model = GCN(len(graph), args.hidden, max(labels) + 1, args.dropout)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=args.lr, weight_decay=5e-4)
        self.best, self.waited = 0.0, 0

    def train(self, epoch: int) -> dict[str, float]:
        self.model.train()
        self.optimizer.zero_grad()
        output = self.model(self.features, self.adjacency)
        loss_train = F.nll_loss(output[self.idx_train], self.labels[self.idx_train])
        acc_train = accuracy(output[self.idx_train], self.labels[self.idx_train])
        loss_train.backward()
        self.optimizer.step()
        self.model.eval()
        with torch.no_grad():
            output = self.model(self.features, self.adjacency)
        acc_val = accuracy(output[self.idx_val], self.labels[self.idx_val])
        if acc_val > self.best:
            self.best, self.waited = acc_val, 0
        else:
            self.waited += 1
        print(f"Epoch: {epoch + 1:04d} loss_train: {loss_train.item():.4f} acc_val: {acc_val:.4f}")
        return {"loss": loss_train.item(), "train": acc_train, "val": acc_val}


def make() -> Any:
    graph = nx.karate_club_graph()
    labels = [int(graph.nodes[n]["club"] == "Officer") for n in graph]
    trainer = Trainer(Namespace(seed=1, hidden=8, dropout=0.5, lr=0.01), graph, labels)
    return trainer.train, [(epoch,) for epoch in range(40)], lambda: (trainer.model, trainer.best, trainer.waited)
