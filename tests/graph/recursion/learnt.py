"""What speculated steps learn of recursive functions over small trees, for tests of single modules."""

import torch

import torchjanus
from torchjanus.graph.recursion.variants.variant import Variant


class Node:
    def __init__(self, word, *children):
        self.word, self.children = word, list(children)


class Learnt:
    """What these trees teach of a function: it is speculated in a step that takes a tree."""

    def __init__(self, encode, *trees):
        def step(tree):
            return (encode(tree) * 1.0).detach()

        self._learn(step, trees)

    @classmethod
    def of(cls, step, *trees):
        """What these trees teach of the functions that a step calls."""
        learnt = cls.__new__(cls)
        learnt._learn(step, trees)
        return learnt

    def _learn(self, step, trees):
        self.step = torchjanus.speculate(step, executor="replay")
        for _ in range(3):
            for tree in trees:
                self.step(tree)
        self.variant_table = self.step._learning.recursion.variant_table

    @property
    def variants(self) -> list[Variant]:
        return [variant for own in self.variant_table.variants.values() for variant in own]

    def variant(self, sites: int) -> Variant:
        """The way that makes so many calls."""
        return next(variant for variant in self.variants if len(variant.sites) == sites)

    @property
    def call_group(self):
        (call_group,) = self.entry.plan.call_groups
        return call_group

    @property
    def entry(self):
        return next(entry for entry in self.step._learning.routes.entries if entry.plan.call_groups)

    def walk(self, tree):
        step = [access_path.read((tree,), {}) for access_path in self.call_group.reads]
        return self.call_group.follow(step, [(tree,)])


def chain_of(words):
    def encode(node):
        if not node.children:
            return words[node.word] * 1.0
        below = encode(node.children[0])
        return torch.tanh(below + words[node.word])

    return encode


def sums_of(words):
    def encode(node):
        h = words[node.word] * 1.0
        for child in node.children:
            h = torch.tanh(h + encode(child))
        return h

    return encode
