"""The models of ``benchmarks.programs.trees``, batched by hand over the nodes of all trees, as a good user would.

The nodes are taken by depth, deepest first, so that the children of a level are exactly the level below; and each level
in the order of its parents, so that the two children of a node lie side by side and no gathering of pairs is needed.
What does not depend on children (leaves, words) is computed for all levels at once. Parameters have the same names.
"""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor

from benchmarks.programs.trees import ChildSumTreeLSTM, Node, Tree, TreeLSTM, TreeRNN

__all__ = ["BATCHED", "BatchedChildSum", "BatchedTreeLSTM", "BatchedTreeRNN"]


class Levels:
    """Binary trees by depth: the words of all leaves in that order, and for each level how many inner nodes and leaves
    it has and where each of its nodes is found once the leaves are put behind the inner nodes."""

    def __init__(self, trees: list[Tree]) -> None:
        words: list[int] = []
        orders: list[int] = []
        self.sizes: list[tuple[int, int]] = []
        level = trees
        while level:
            inner = sum(tree.left is not None for tree in level)
            ahead, behind = 0, inner
            below: list[Tree] = []
            for tree in level:
                if tree.left is None:
                    orders.append(behind)
                    behind += 1
                    words.append(tree.word)
                else:
                    orders.append(ahead)
                    ahead += 1
                    below += (tree.left, tree.right)  # type: ignore[arg-type]
            self.sizes.append((inner, len(level) - inner))
            level = below
        self.words = torch.tensor(words)
        self.orders = torch.tensor(orders).split([inner + leaves for inner, leaves in self.sizes])
        self.leaves = [leaves for _, leaves in self.sizes]

    def merged(self, depth: int, inner: Tensor | None, leaves: Tensor) -> Tensor:
        """The states of a level in the order of its nodes."""
        if inner is None:
            return leaves
        return torch.cat([inner, leaves]).index_select(0, self.orders[depth]) if len(leaves) else inner


class BatchedTreeRNN(TreeRNN):
    def forward(self, trees: list[Tree]) -> Tensor:
        levels = Levels(trees)
        leaves = self.embedding(levels.words).split(levels.leaves)
        h = leaves[-1]
        for depth in range(len(levels.sizes) - 2, -1, -1):
            inner = torch.tanh(self.inner(h.view(levels.sizes[depth][0], -1)))
            h = levels.merged(depth, inner, leaves[depth])
        return self.classify(h)


class BatchedTreeLSTM(TreeLSTM):
    def forward(self, trees: list[Tree]) -> Tensor:
        levels = Levels(trees)
        i, o, u = self.leaf(self.embedding(levels.words)).chunk(3, 1)
        c = torch.sigmoid(i) * torch.tanh(u)
        # h and c beside each other: one gathering for both.
        leaves = torch.stack([torch.sigmoid(o) * torch.tanh(c), c], 1).split(levels.leaves)
        state = leaves[-1]
        for depth in range(len(levels.sizes) - 2, -1, -1):
            count = levels.sizes[depth][0]
            h, c = state.unbind(1)
            gates = self.inner(h.reshape(count, -1))
            i, left, right, o = torch.sigmoid(gates[:, : -c.shape[1]]).chunk(4, 1)
            left_c, right_c = c.reshape(count, 2, -1).unbind(1)
            c = left * left_c + right * right_c + i * torch.tanh(gates[:, -c.shape[1] :])
            state = levels.merged(depth, torch.stack([o * torch.tanh(c), c], 1), leaves[depth])
        return self.classify(state[:, 0])


class BatchedChildSum(ChildSumTreeLSTM):
    def forward(self, trees: list[Node]) -> Tensor:
        words: list[int] = []
        parents: list[Tensor] = []  # for each level but the first: which node of the level above each one belongs to
        sizes: list[int] = []
        level = trees
        while level:
            words += [node.word for node in level]
            sizes.append(len(level))
            counts = torch.tensor([len(node.children) for node in level])
            parents.append(torch.arange(len(level)).repeat_interleave(counts))
            level = [child for node in level for child in node.children]
        gates = self.word(self.embedding(torch.tensor(words)))
        h = c = gates.new_zeros(0, self.width)
        for end, size, parent in reversed(list(zip(accumulate(sizes), sizes, parents, strict=True))):
            iou, f = gates[end - size : end].split([3 * self.width, self.width], 1)
            if len(parent):
                # Leaves have nothing below them: no product is wasted on them.
                inner, place = torch.unique_consecutive(parent, return_inverse=True)
                total = gates.new_zeros(len(inner), self.width).index_add(0, place, h)
                iou = iou.index_add(0, inner, self.below(total))
            i, o, u = iou.chunk(3, 1)
            kept = torch.sigmoid(f.index_select(0, parent) + self.forget(h)) * c
            c = (torch.sigmoid(i) * torch.tanh(u)).index_add(0, parent, kept)
            h = torch.sigmoid(o) * torch.tanh(c)
        return self.classify(h)


BATCHED = {"treernn": BatchedTreeRNN, "treelstm": BatchedTreeLSTM, "childsum": BatchedChildSum}
