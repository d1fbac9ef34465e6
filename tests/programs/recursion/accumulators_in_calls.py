"""Sums and counters that a step sets and its recursive calls update: a loss at every node, the number of nodes."""

import random

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.harness import Program, program
from tests.programs.recursion.recursion import CLOSE, WIDTH, WORDS, binary

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

CLASSES = 3


def labelled(leaves=None):
    def label(tree):
        tree.label = random.randrange(CLASSES)
        if tree.left is not None:
            label(tree.left)
            label(tree.right)
        return tree

    return label(binary(leaves or random.randint(2, 5)))


def batches(least=2, most=4, calls=14):
    return [([labelled() for _ in range(random.randint(least, most))],) for _ in range(calls)]


def singles(calls=14):
    return [(labelled(),) for _ in range(calls)]


class Sentiment(nn.Module):
    """A recursive network with a label at each node. ``adding``: what is done at each of them."""

    def __init__(self, adding=None):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.both = nn.Linear(2 * WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, CLASSES)
        self.adding = adding
        self.loss, self.nodes, self.deepest = None, 0, 0
        self.opt = torch.optim.SGD(self.parameters(), lr=0.05)

    def join(self, left, right):
        return torch.tanh(self.both(torch.cat([left, right])))

    def loss_at(self, h, tree):
        return F.cross_entropy(self.out(h).unsqueeze(0), torch.tensor([tree.label]))

    def encode(self, tree):
        h = self.words.weight[tree.word] if tree.left is None else self.join(*map(self.encode, (tree.left, tree.right)))
        self.adding(self, h, tree)
        return h

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    def norms(self, trees):
        return sum(self.encode(tree).pow(2).sum() for tree in trees)


class Classic(Sentiment):
    """As people write it."""

    def encode(self, tree):
        if tree.left is None:
            h = self.words.weight[tree.word]
        else:
            h = self.join(self.encode(tree.left), self.encode(tree.right))
        self.loss = self.loss + self.loss_at(h, tree)
        self.nodes += 1
        return h

    def forward(self, tree):
        self.loss, self.nodes = 0.0, 0
        self.encode(tree)
        return self.loss / self.nodes


class Adding(Sentiment):
    def encode(self, tree):
        if tree.left is None:
            h = self.words.weight[tree.word]
        else:
            h = self.join(self.encode(tree.left), self.encode(tree.right))
        self.adding(self, h, tree)
        return h


def add(model, h, tree):
    model.loss = model.loss + model.loss_at(h, tree)


def add_in_place(model, h, tree):
    model.loss += model.loss_at(h, tree)


def summed(adding, start, calls=None):
    """A step that sets the loss to what ``start`` gives, and trains with what calls have made of it."""
    model = Adding(adding)

    def step(trees):
        model.loss, model.nodes = start(), 0
        for tree in trees:
            model.encode(tree)
        return model.update(model.loss / len(trees)), model.nodes

    return Program(step, calls or batches(), state=model)


# -- served -------------------------------------------------------------------------------------------------------


@program(speculated=9, close=CLOSE)
def a_loss_at_every_node():
    return summed(add, int)


@program(speculated=9, close=CLOSE)
def mean_loss_over_nodes():
    model = Classic()

    def step(trees):
        model.loss, model.nodes = 0, 0
        for tree in trees:
            model.encode(tree)
        return model.update(model.loss / model.nodes), model.nodes

    return Program(step, batches(), state=model)


@program(speculated=8, compiles=3, close=CLOSE)
def a_loss_in_forward():
    model = Classic()

    def step(tree):
        return model.update(model(tree))

    return Program(step, singles(), state=model)


@program(speculated=9, close=CLOSE)
def a_sum_that_begins_with_a_tensor():
    return summed(add, lambda: torch.ones(()))


@program(speculated=9, close=CLOSE)
def a_sum_in_place():
    return summed(add_in_place, float)


@program(speculated=9, close=CLOSE)
def two_terms_at_once():
    def adding(model, h, tree):
        model.loss = model.loss + model.loss_at(h, tree) + h.pow(2).mean() * 0.1

    return summed(adding, int)


@program(speculated=9, close=CLOSE)
def the_term_stands_first():
    def adding(model, h, tree):
        model.loss = model.loss_at(h, tree) + model.loss

    return summed(adding, int)


@program(speculated=8, compiles=3, close=CLOSE)
def numbers_of_all_kinds():
    model = Adding()

    def adding(model, h, tree):
        model.nodes = model.nodes * 2 + tree.label
        model.deepest = max(model.deepest, tree.label)

    model.adding = adding

    def step(trees):
        model.nodes, model.deepest = 1, -1
        return model.update(model.norms(trees) * (2 + model.deepest)), model.nodes % 1000

    return Program(step, batches(), state=model)


@program(speculated=9, close=CLOSE)
def the_deepest_node():
    class Deep(Sentiment):
        def encode(self, tree, depth=0):
            self.deepest = max(self.deepest, depth)
            if tree.left is None:
                return self.words.weight[tree.word]
            return self.join(self.encode(tree.left, depth + 1), self.encode(tree.right, depth + 1))

    model = Deep()

    def step(trees):
        model.deepest = 0
        return model.update(model.norms(trees)), model.deepest

    return Program(step, batches(), state=model)


@program(speculated=6, compiles=3, close=CLOSE)
def a_sum_without_gradients():
    def adding(model, h, tree):
        model.loss = model.loss + model.loss_at(h, tree).detach()

    model = Adding(adding)

    def step(trees):
        model.loss = 0
        norms = model.update(model.norms(trees))
        return norms, model.loss / len(trees)

    return Program(step, batches(), state=model)


@program(speculated=6, compiles=3, close=CLOSE)
def a_sum_of_which_no_gradient_is_asked():
    """The parameters on which nothing else depends have none."""
    model = Adding(add)

    def step(trees):
        model.loss = 0
        model.update(model.norms(trees))
        model.loss = model.loss.detach()
        return [parameter.grad is None for parameter in model.parameters()]

    return Program(step, batches(), state=model)


@program(speculated=6, compiles=3, close=CLOSE)
def a_list_of_which_no_gradient_is_asked():
    def adding(model, h, tree):
        model.losses.append(model.loss_at(h, tree))

    model = Adding(adding)
    model.losses = None

    def step(trees):
        model.losses = []
        model.update(model.norms(trees))
        model.losses = sum(model.losses).detach()
        return [parameter.grad is None for parameter in model.parameters()]

    return Program(step, batches(), state=model)


def only_some():
    def adding(model, h, tree):
        if tree.label == 1:
            model.loss = model.loss + model.loss_at(h, tree)
            model.nodes += 1

    model = Adding(adding)

    def step(trees):
        model.loss, model.nodes = torch.zeros(1), 0
        for tree in trees:
            model.encode(tree)
        return model.update((model.loss / model.nodes).sum()) if model.nodes else 0

    return Program(step, batches(calls=24), state=model)


@program(speculated=12, compiles=3, close=CLOSE)
def a_loss_at_some_nodes():
    """Where they are all leaves, the weights of the others have no gradient."""
    return only_some()


@program(speculated=8, compiles=3, close=CLOSE)
def no_loss_at_all():
    """The number is left there."""

    def adding(model, h, tree):
        if tree.left is not None:
            model.loss = model.loss + model.loss_at(h, tree)

    model = Adding(adding)

    def step(trees):
        model.loss = 0
        for tree in trees:
            model.encode(tree)
        return model.loss if type(model.loss) is int else model.update(model.loss)

    calls = batches()
    calls[9] = calls[12] = ([labelled(1), labelled(1)],)
    return Program(step, calls, state=model)


@program(speculated=7, compiles=2, close=CLOSE)
def a_call_that_raises():
    """What was added by then is there."""

    def adding(model, h, tree):
        if tree.label > 10:
            raise ValueError(tree.label)
        model.loss = model.loss + model.loss_at(h, tree)
        model.nodes += 1

    calls = batches()
    for number, label in ((8, CLASSES), (11, 11)):
        calls[number][0][1].left.label = label
    return summed(adding, int, calls)


@program(speculated=8, compiles=3, close=CLOSE)
def the_step_reads_what_was_left_there():
    model = Adding(add)

    def step(trees):
        before = 0 if model.loss is None else model.loss.detach()
        model.loss = 0
        for tree in trees:
            model.encode(tree)
        model.loss = model.loss / len(trees)
        model.update(model.loss)
        return model.loss.detach() - before

    return Program(step, batches(), state=model)


@program(speculated=8, compiles=3, close=CLOSE)
def a_sum_of_whole_numbers():
    def adding(model, h, tree):
        model.loss = model.loss + (model.out(h).argmax() == tree.label).int()
        model.nodes += 1

    model = Adding(adding)

    def step(trees):
        model.loss, model.nodes = torch.zeros((), dtype=torch.int32), 0
        model.update(model.norms(trees))
        return model.loss, model.loss / model.nodes

    return Program(step, batches(), state=model)


@program(speculated=9, close=CLOSE)
def sums_in_a_dictionary():
    def adding(model, h, tree):
        model.stats["loss"] = model.stats["loss"] + model.loss_at(h, tree)
        model.stats["nodes"] += 1

    model = Adding(adding)
    model.stats = {"loss": 0, "nodes": 0}

    def step(trees):
        model.stats["loss"] = model.stats["nodes"] = 0
        for tree in trees:
            model.encode(tree)
        return model.update(model.stats["loss"] / model.stats["nodes"])

    return Program(step, batches(), state=model)


TOTALS = {}


@program(speculated=9, close=CLOSE)
def a_sum_found_by_a_global_name():
    def adding(model, h, tree):
        TOTALS["loss"] = TOTALS["loss"] + model.loss_at(h, tree)

    model = Adding(adding)
    TOTALS["loss"] = 0

    def step(trees):
        TOTALS["loss"] = 0
        for tree in trees:
            model.encode(tree)
        return model.update(TOTALS["loss"])

    return Program(step, batches(), state=(model, TOTALS))


# -- unrolled -----------------------------------------------------------------------------------------------------

ONLY = "does something else with what the step sets"


@program(speculated=0, close=CLOSE, reported=ONLY)
def a_sum_that_decays():
    def adding(model, h, tree):
        model.loss = model.loss * 0.9 + model.loss_at(h, tree)

    return summed(adding, lambda: torch.zeros(()))


@program(speculated=0, close=CLOSE, reported=ONLY)
def a_sum_that_calls_compute_with():
    def adding(model, h, tree):
        model.loss = model.loss + model.loss_at(h, tree)
        model.last = model.loss * 0.1

    return summed(adding, int)


@program(speculated=0, close=CLOSE, reported=ONLY)
def a_sum_read_before_the_children():
    class Stale(Sentiment):
        def encode(self, tree):
            before = self.loss
            if tree.left is None:
                h = self.words.weight[tree.word]
            else:
                h = self.join(self.encode(tree.left), self.encode(tree.right))
            self.loss = before + self.loss_at(h, tree)
            return h

    model = Stale()

    def step(trees):
        model.loss = 0
        for tree in trees:
            model.encode(tree)
        return model.update(model.loss)

    return Program(step, batches(), state=model)


@program(speculated=0, close=CLOSE, reported=ONLY)
def a_counter_read_before_the_children():
    class Stale(Sentiment):
        def encode(self, tree):
            before = self.nodes
            if tree.left is None:
                h = self.words.weight[tree.word]
            else:
                h = self.join(self.encode(tree.left), self.encode(tree.right))
            self.nodes = before + 1
            return h

    model = Stale()

    def step(trees):
        model.nodes = 0
        return model.update(model.norms(trees)), model.nodes

    return Program(step, batches(), state=model)


@program(speculated=0, close=CLOSE, reported=ONLY)
def a_counter_that_decides():
    class Decided(Sentiment):
        def encode(self, tree):
            self.nodes += 1
            half = self.nodes < 5
            if tree.left is None:
                h = self.words.weight[tree.word]
            else:
                h = self.join(self.encode(tree.left), self.encode(tree.right))
            return h * 0.5 if half else h

    model = Decided()

    def step(trees):
        model.nodes = 0
        return model.update(model.norms(trees)), model.nodes

    return Program(step, batches(), state=model)


@program(speculated=7, close=CLOSE)
def a_counter_as_a_factor():
    class Factor(Sentiment):
        def encode(self, tree):
            number = self.nodes
            self.nodes += 1
            if tree.left is None:
                h = self.words.weight[tree.word]
            else:
                h = self.join(self.encode(tree.left), self.encode(tree.right))
            return h * (1 + 0.01 * number)

    model = Factor()

    def step(trees):
        model.nodes = 0
        return model.update(model.norms(trees)), model.nodes

    return Program(step, batches(), state=model)


@program(speculated=0, close=CLOSE, reported=ONLY)
def a_sum_that_loses_its_gradients_at_leaves():
    def adding(model, h, tree):
        with torch.set_grad_enabled(tree.left is not None):
            model.loss = model.loss + model.loss_at(h, tree)

    return summed(adding, int)


@program(speculated=0, close=CLOSE, reported=ONLY)
def a_sum_by_its_class():
    def adding(model, h, tree):
        loss = model.loss_at(h, tree)
        model.loss = loss if isinstance(model.loss, int) else model.loss + loss

    return summed(adding, int)


@program(speculated=0, close=CLOSE)
def a_sum_that_begins_with_none():
    def adding(model, h, tree):
        loss = model.loss_at(h, tree)
        model.loss = loss if model.loss is None else model.loss + loss

    return summed(adding, lambda: None)


@program(speculated=0, close=CLOSE, reported="the step uses a tensor in place of which recursive calls add up")
def a_sum_in_a_tensor_that_the_step_looks_at_meanwhile():
    model = Adding(add_in_place)

    def step(trees):
        total, seen = torch.zeros(()), []
        model.loss = total
        for tree in trees:
            model.encode(tree)
            seen.append(total.detach() * 2)
        model.update(total)
        return torch.stack(seen), model.loss is total

    return Program(step, batches(), state=model)


@program(speculated=0, close=CLOSE)
def sums_over_several_steps():
    def adding(model, h, tree):
        model.loss = model.loss + model.loss_at(h, tree).detach()

    model = Adding(adding)
    model.loss = 0

    def step(trees):
        if len(trees) == 3:
            model.loss = 0
        return model.update(model.norms(trees)), float(model.loss)

    return Program(step, batches(), state=model)


@program(speculated=0, close=CLOSE)
def the_step_looks_at_it_after_each_tree():
    model = Classic()

    def step(trees):
        model.loss, model.nodes, seen = 0, 1, []
        for tree in trees:
            model.encode(tree)
            seen.append((model.loss.item(), model.nodes))
        return model.update(model.loss), seen

    return Program(step, batches(), state=model)


class Account:
    def __init__(self):
        self.loss = 0


@program(speculated=0, close=CLOSE)
def sums_of_two_accounts():
    """Which of them it is depends on the tree."""

    class Paying(Sentiment):
        def encode(self, tree, account):
            if tree.left is None:
                h = self.words.weight[tree.word]
            else:
                h = self.join(self.encode(tree.left, account), self.encode(tree.right, account))
            account.loss = account.loss + self.loss_at(h, tree)
            return h

    model, accounts = Paying(), [Account(), Account()]

    def step(trees):
        for account in accounts:
            account.loss = 0
        for tree in trees:
            model.encode(tree, accounts[tree.label % 2])
        model.update(2 * accounts[0].loss + accounts[1].loss)
        return [torch.as_tensor(account.loss).item() for account in accounts]

    return Program(step, batches(), state=model)


@program(speculated=0, close=CLOSE)
def two_functions_add_to_one_sum():
    class Twice(Classic):
        def again(self, tree):
            if tree.left is not None:
                self.again(tree.left)
                self.again(tree.right)
            self.loss = self.loss + self.out.weight[tree.label].sum()

    model = Twice()

    def step(trees):
        model.loss, model.nodes = 0, 0
        for tree in trees:
            model.encode(tree)
            model.again(tree)
        return model.update(model.loss), model.nodes

    return Program(step, batches(), state=model)


@program(speculated=9, compiles=3, close=CLOSE)
def counted_now_and_then():
    """At labels that most trees do not have."""
    model = Sentiment(lambda model, h, tree: None)

    def encode(tree):
        if tree.label == 2:
            model.deepest += 1
        h = model.words.weight[tree.word] if tree.left is None else model.join(encode(tree.left), encode(tree.right))
        return h

    def step(trees):
        model.deepest = 0
        return model.update(sum(encode(tree).pow(2).sum() for tree in trees))

    def without(tree):
        tree.label = min(tree.label, 1)
        for child in (tree.left, tree.right):
            if child is not None:
                without(child)
        return tree

    calls = [call if n in (1, 8, 14, 15) else ([*map(without, call[0])],) for n, call in enumerate(batches(calls=20))]
    return Program(step, calls, state=model)
