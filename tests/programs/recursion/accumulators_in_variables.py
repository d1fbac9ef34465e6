"""Sums and counters in variables, lists and dictionaries of a step, updated by functions that are defined in it."""

import random

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.harness import Program, program
from tests.programs.recursion.enclosing_variables import Model
from tests.programs.recursion.recursion import CLOSE, WIDTH, binary, bushy, forests, single

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

CLASSES = 3
CALLS = 14


def labelled(leaves=None):
    def label(tree):
        tree.label, tree.weight = random.randrange(CLASSES), random.random()
        if tree.left is not None:
            label(tree.left)
            label(tree.right)
        return tree

    return label(binary(leaves or random.randint(2, 5)))


class Labelling(Model):
    """A loss at each node."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(WIDTH, CLASSES)
        self.opt = torch.optim.SGD(self.parameters(), lr=0.01)

    def loss_at(self, h, node):
        return F.cross_entropy(self.out(h)[None], torch.tensor([node.label]))

    def encode(self, node, walk):
        return self.word(node) if node.left is None else self.join(walk(node.left), walk(node.right))


def batches(least=3, most=4, calls=CALLS):
    return forests(labelled, least, most, calls)


def singles(calls=CALLS):
    return single(labelled, calls)


# -- served -------------------------------------------------------------------------------------------------------


@program(speculated=7, close=CLOSE)
def the_mean_loss_of_a_tree():
    class Mean(Labelling):
        def forward(self, tree):
            count, total = 0, 0.0

            def walk(node):
                nonlocal count, total
                h = self.encode(node, walk)
                count += 1
                total = total + self.loss_at(h, node)
                return h

            walk(tree)
            return total / count

    model = Mean()

    def step(tree):
        return model.update(model(tree))

    return Program(step, singles(), state=model)


@program(speculated=9, close=CLOSE)
def the_mean_loss_of_all_trees():
    model = Labelling()

    def step(trees):
        count, total = 0, 0.0

        def walk(node):
            nonlocal count, total
            h = model.encode(node, walk)
            count += 1
            total += model.loss_at(h, node)
            return h

        for tree in trees:
            walk(tree)
        return model.update(total / count), count

    return Program(step, batches(), state=model)


@program(speculated=8, close=CLOSE)
def sums_in_a_list():
    model = Labelling()

    def step(trees):
        found = [0, 0.0]

        def walk(node):
            h = model.encode(node, walk)
            found[0] += 1
            found[1] = found[1] + model.loss_at(h, node)
            return h

        for tree in trees:
            walk(tree)
        return model.update(found[1] / found[0]), found[0]

    return Program(step, batches(), state=model)


@program(speculated=8, close=CLOSE)
def sums_in_a_dictionary():
    model = Labelling()

    def step(trees):
        stats = {"nodes": 0, "weight": 0.0, "loss": torch.zeros(())}

        def walk(node):
            h = model.encode(node, walk)
            stats["nodes"] += 1
            stats["weight"] = max(stats["weight"], node.weight)
            stats["loss"] += model.loss_at(h, node)
            return h

        for tree in trees:
            walk(tree)
        return model.update(stats["loss"] / stats["nodes"]), stats

    return Program(step, batches(), state=model)


@program(speculated=6, close=CLOSE)
def counts_by_label():
    model = Labelling()

    def step(tree):
        seen = [0] * CLASSES

        def walk(node):
            seen[node.label] += 1
            return model.encode(node, walk)

        return model.update(walk(tree).pow(2).sum()), seen

    return Program(step, singles(20), state=model)


@program(speculated=8, close=CLOSE)
def losses_and_a_count():
    model = Labelling()

    def step(trees):
        losses, count = [], 0

        def walk(node):
            nonlocal count
            h = model.encode(node, walk)
            losses.append(model.loss_at(h, node))
            count += 2
            return h

        for tree in trees:
            walk(tree)
        return model.update(torch.stack(losses).sum() / count), len(losses)

    return Program(step, batches(), state=model)


@program(speculated=8, close=CLOSE)
def two_functions_that_count_together():
    model = Labelling()

    def step(tree):
        count, total = 0, torch.zeros(())

        def note(h, node):
            nonlocal count, total
            count += 1
            total = total + model.loss_at(h, node)
            return h

        def inner(node):
            nonlocal count
            count += 10
            return note(model.join(walk(node.left), walk(node.right)), node)

        def walk(node):
            return note(model.word(node), node) if node.left is None else inner(node)

        h = walk(tree)
        return model.update(total + h.sum()), count

    return Program(step, singles(16), state=model)


@program(speculated=6, close=CLOSE)
def set_anew_for_another_tree():
    model = Labelling()

    def step(tree, other):
        count, total = 0, 0.0

        def walk(node):
            nonlocal count, total
            h = model.encode(node, walk)
            count += 1
            total = total + model.loss_at(h, node)
            return h

        walk(tree)
        first, nodes = total, count
        count, total = 100, 0.0
        walk(other)
        return model.update(first / nodes + total / count), nodes, count

    return Program(step, [(labelled(), labelled()) for _ in range(CALLS)], state=model)


@program(speculated=6, close=CLOSE)
def a_sum_used_between_trees():
    model = Labelling()

    def step(tree, other):
        total = torch.zeros(())

        def walk(node):
            nonlocal total
            h = model.encode(node, walk)
            total = total + model.loss_at(h, node)
            return h

        walk(tree)
        first = total * 2
        walk(other)
        return model.update(first + total)

    return Program(step, [(labelled(), labelled()) for _ in range(CALLS)], state=model)


@program(speculated=6, close=CLOSE)
def a_count_that_decides_afterwards():
    model = Labelling()

    def step(tree):
        count = 0

        def walk(node):
            nonlocal count
            count += 1
            return model.encode(node, walk)

        loss = walk(tree).pow(2).sum()
        if count > 4:
            loss = loss * 2
        return model.update(loss / count), f"{count} nodes"

    return Program(step, singles(20), state=model)


@program(speculated=6, close=CLOSE)
def a_sum_that_is_not_used():
    """What only it depends on has no gradient."""
    model = Labelling()

    def step(tree):
        total = torch.zeros(())

        def walk(node):
            nonlocal total
            h = model.encode(node, walk)
            total += model.loss_at(h, node)
            return h

        return model.update(walk(tree).pow(2).sum())

    return Program(step, singles(), state=model)


@program(speculated=6, close=CLOSE)
def sums_beside_a_list_of_tensors():
    model = Labelling()

    def step(tree, scale):
        found = [0, torch.zeros(()), scale > 2, 0.0]

        def walk(node):
            h = model.encode(node, walk)
            found[0] += 1
            found[1] = found[1] + model.loss_at(h, node)
            found[3] = found[3] + h.sum()
            return h

        h = walk(tree)
        return model.update(h.pow(2).sum() + found[1] / found[0] + found[3]), found[2]

    return Program(step, [(labelled(), random.random()) for _ in range(CALLS)], state=model)


# -- as eager, served or not --------------------------------------------------------------------------------------


def counting(count, calls=None, finish=None):
    """A step that counts. ``count``: what calls make of the number; ``finish``: what the step does with it."""
    model = Labelling()

    def step(trees):
        number, log = 0, []

        def walk(node):
            nonlocal number
            number, factor = count(number, node)
            return model.encode(node, walk) * factor

        loss = 0.0
        for tree in trees:
            loss = loss + walk(tree).pow(2).sum()
            if finish is not None:
                number = finish(number, log)
        return model.update(loss), number, log

    return Program(step, calls or batches(), state=model)


@program(speculated=8, close=CLOSE)
def any_formula():
    return counting(lambda number, node: (2 * number % 1000 + node.label, 1))


@program(speculated=0, compiles=8, close=CLOSE)
def a_count_that_decides():
    return counting(lambda number, node: (number + 1, 2 if number > 4 else 1))


@program(speculated=0, compiles=8, close=CLOSE)
def a_count_to_compute_with():
    return counting(lambda number, node: (number + 1, number * 0.1))


@program(speculated=0, compiles=8, close=CLOSE)
def a_count_of_another_type():
    return counting(lambda number, node: (number + 0.5, 1))


@program(speculated=0, compiles=8, close=CLOSE, reported="the step uses a number between recursive calls that count it")
def a_count_noted_after_each_tree():
    def note(number, log):
        log.append(number)
        return number

    return counting(lambda number, node: (number + 1, 1), finish=note)


@program(speculated=0, compiles=8, close=CLOSE)
def a_count_halved_after_each_tree():
    return counting(lambda number, node: (number + 1, 1), finish=lambda number, log: number // 2)


@program(speculated=0, compiles=8, close=CLOSE)
def a_count_begun_anew_for_each_tree():
    def begin(number, log):
        log.append(number)
        return 0

    return counting(lambda number, node: (number + 1, 1), finish=begin)


@program(speculated=4, compiles=4, close=CLOSE)
def counted_now_and_then():
    """Only at a word that the first trees do not have."""

    def labels(word):
        def put(tree):
            tree.label = word if tree.left is None else 0
            for child in (tree.left, tree.right):
                if child is not None:
                    put(child)
            return tree

        return put(binary())

    calls = [([labels(2 if n in (9, 12, 13, 17) else 1) for _ in range(3)],) for n in range(20)]
    return counting(lambda number, node: (number + 1, 1) if node.label == 2 else (number, 1), calls=calls)


@program(speculated=4, compiles=4, close=CLOSE)
def added_now_and_then():
    model = Labelling()

    def step(trees):
        total = 0.0

        def walk(node):
            nonlocal total
            h = model.encode(node, walk)
            if node.label == 2:
                total = total + model.loss_at(h, node)
            return h

        loss = 0.0
        for tree in trees:
            loss = loss + walk(tree).pow(2).sum()
        return model.update(loss + total), type(total).__name__

    def without(tree):
        tree.label = min(tree.label, 1)
        for child in (tree.left, tree.right):
            if child is not None:
                without(child)
        return tree

    calls = [(t,) if n in (2, 9, 12, 15) else ([*map(without, t)],) for n, (t,) in enumerate(batches(calls=18))]
    return Program(step, calls, state=model)


@program(speculated=0, compiles=8, close=CLOSE)
def a_depth_that_goes_up_and_down():
    model = Labelling()

    def step(tree):
        depth = deepest = 0

        def walk(node):
            nonlocal depth, deepest
            depth += 1
            deepest = max(deepest, depth)
            h = model.encode(node, walk)
            depth -= 1
            return h

        return model.update(walk(tree).pow(2).sum()), deepest, depth

    return Program(step, singles(), state=model)


def adding(change, start, finish=None):
    """A step that adds up tensors. ``change``: what calls make of the sum."""
    model = Labelling()

    def step(tree, other):
        total = before = start()

        def walk(node):
            nonlocal total
            h = model.encode(node, walk)
            total = change(total, model.loss_at(h, node), h)
            return h

        walk(tree)
        middle = total
        walk(other)
        if finish is not None:
            total = finish(before, middle, total)
        return model.update(total), before if type(before) is float else before.detach().clone()

    return Program(step, [(labelled(), labelled()) for _ in range(CALLS)], state=model)


def add_in_place(total, loss, h):
    total += loss
    return total


@program(speculated=6, close=CLOSE)
def added_from_the_left():
    return adding(lambda total, loss, h: loss + total, float)


@program(speculated=6, close=CLOSE)
def added_in_place():
    return adding(add_in_place, lambda: torch.zeros(()))


@program(speculated=0, compiles=8, close=CLOSE)
def added_in_place_and_seen_elsewhere():
    return adding(add_in_place, lambda: torch.zeros(()), lambda before, middle, total: before * 2 + middle + total)


@program(speculated=0, compiles=8, close=CLOSE)
def the_sum_in_the_middle():
    return adding(lambda total, loss, h: total + loss, float, lambda before, middle, total: middle * total)


@program(speculated=0, compiles=8, close=CLOSE)
def subtracted():
    return adding(lambda total, loss, h: total - loss, float)


@program(speculated=0, compiles=8, close=CLOSE)
def only_the_last():
    return adding(lambda total, loss, h: loss, float)


@program(speculated=0, compiles=8, close=CLOSE)
def scaled_at_each():
    return adding(lambda total, loss, h: total * 0.9 + loss, float)


@program(speculated=0, compiles=8, close=CLOSE)
def two_variables_that_change_places():
    model = Labelling()

    def step(tree):
        one, other = 0, 0

        def walk(node):
            nonlocal one, other
            one, other = other + 1, one
            return model.encode(node, walk)

        return model.update(walk(tree).pow(2).sum()), one, other

    return Program(step, singles(), state=model)


@program(speculated=0, compiles=8, close=CLOSE)
def raised_after_counting():
    model = Labelling()

    def step(tree):
        count, stats = 0, {"leaves": 0}

        def walk(node):
            nonlocal count
            count += 1
            if node.label == 2 and node.weight > 0.6:
                raise ValueError("no such label")
            stats["leaves"] += node.left is None
            return model.encode(node, walk)

        try:
            loss = walk(tree).pow(2).sum()
        except ValueError as error:
            return str(error), count, stats
        return model.update(loss), count, stats

    return Program(step, singles(), state=model)


@program(speculated=0, compiles=8, close=CLOSE)
def containers_that_grow():
    model = Labelling()

    def step(tree):
        stats, found = {"nodes": 0}, [0]

        def walk(node):
            stats["nodes"] += 1
            stats[f"label {node.label}"] = stats.get(f"label {node.label}", 0) + 1
            found.append(node.label)
            return model.encode(node, walk)

        return model.update(walk(tree).pow(2).sum()), stats, found

    return Program(step, singles(), state=model)


@program(speculated=0, compiles=8, close=CLOSE)
def a_dictionary_that_remembers():
    model = Labelling()

    def step(tree):
        known = {}

        def walk(node):
            if node.word not in known or node.word is None:
                known[node.word] = h = torch.tanh(model.words.weight[node.word or 0])
                for child in node.children:
                    h = h + walk(child)
                return h
            return known[node.word] * 2

        return model.update(walk(tree).pow(2).sum()), len(known)

    return Program(step, single(bushy, CALLS), state=model)


@program(speculated=6, close=CLOSE)
def a_function_that_leaves_the_step():
    model = Labelling()

    def step(tree):
        count = 0

        def walk(node):
            nonlocal count
            count += 1
            return model.encode(node, walk)

        loss = model.update(walk(tree).pow(2).sum())
        return loss, (lambda: count)() + 1

    return Program(step, singles(), state=model)


@program(speculated=0, compiles=8, close=CLOSE)
def a_loss_without_gradients():
    model = Labelling()

    def step(tree):
        total = torch.zeros(())

        def walk(node):
            nonlocal total
            h = model.encode(node, walk)
            with torch.no_grad():
                total = total + model.loss_at(h, node)
            return h

        loss = walk(tree).pow(2).sum()
        return model.update(loss), total

    return Program(step, singles(), state=model)
