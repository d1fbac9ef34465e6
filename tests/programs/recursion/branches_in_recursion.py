"""Recursive functions in which tensors decide which arm a node takes, in new trees at each call."""

import random

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.harness import CALLS, Program, program
from tests.programs.recursion.recursion import CLOSE, WIDTH, WORDS, Net, binary, bushy, forests, parameter, single

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

LONG = 16


def even(net):
    """The net, by which about half of all nodes are positive."""
    with torch.no_grad():
        net.words.normal_()
        net.w *= 2
        net.b.zero_()
    net.opt.param_groups[0]["lr"] = 0.003
    return net


def gates(*names):
    """More parameters, and an optimizer for them."""
    made = {name: parameter(WIDTH, WIDTH) for name in names}
    return made, torch.optim.SGD(list(made.values()), lr=0.01)


@program(speculated=11, close=CLOSE)
def each_way_has_weights_of_its_own():
    net, gate = even(Net()), parameter(WIDTH)
    more, opt = gates("up", "down")

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        h = net.join(encode(tree.left), encode(tree.right))
        if h @ gate > 0:
            h = torch.tanh(h @ more["up"])
        else:
            h = torch.sigmoid(h @ more["down"])
        return h

    def step(trees):
        opt.zero_grad()
        loss = net.update(sum(encode(tree).pow(2).sum() for tree in trees))
        opt.step()
        return loss

    return Program(step, forests(lambda: binary(7), 4, 6, calls=LONG), state=(net, more, gate))


@program(speculated=15, compiles=8, close=CLOSE)
def ways_that_nobody_takes_leave_no_gradient():
    net, gate = even(Net()), parameter(WIDTH)
    more = {name: parameter(WIDTH, WIDTH) for name in ("up", "down")}
    opt = torch.optim.Adam(more.values(), lr=0.01)  # it moves on where a gradient is zero, and not where there is none

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        h = net.join(encode(tree.left), encode(tree.right))
        return h @ more["up"] if h @ gate > 0 else h @ more["down"]

    def step(tree):
        opt.zero_grad()
        loss = net.update(encode(tree).pow(2).sum())
        opt.step()
        return loss, more["up"].grad is None, more["down"].grad is None

    return Program(step, single(binary, calls=24), state=(net, more, gate))


@program(speculated=10, close=CLOSE)
def several_ways_by_fetched_numbers():
    net = even(Net())

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        h = net.join(encode(tree.left), encode(tree.right))
        score = h.mean().item()
        if score > 0.3:
            return h * 0.5
        elif score > -0.1:
            return torch.relu(h) - 0.1
        else:
            return h.neg()

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(lambda: binary(6), 3, 5, calls=LONG), state=net)


@program(speculated=11, close=CLOSE, compiles=4)
def two_decisions_one_after_the_other():
    net = even(Net())

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word], torch.zeros(WIDTH)
        (lh, lc), (rh, rc) = encode(tree.left), encode(tree.right)
        h, c = net.join(lh, rh), lc + rc
        if h.sum() > 0:
            c = c + h
        if c.sum() > 0:
            h = h - 0.1 * c
        return h, torch.tanh(c)

    def step(trees):
        return net.update(sum(h.pow(2).sum() + c.sum() for h, c in [encode(tree) for tree in trees]))

    return Program(step, forests(lambda: binary(7), 4, 4, calls=LONG), state=net)


@program(speculated=10, close=CLOSE)
def overflow_that_is_caught():
    net = even(Net())
    with torch.no_grad():
        net.words[::2] *= 1e30
    net.opt.param_groups[0]["lr"] = 0.0

    def encode(tree):
        if tree.left is None:
            h = net.words[tree.word]
            h = h * h
        else:
            h = net.join(encode(tree.left), encode(tree.right)) + net.b
        if torch.isfinite(h).all():
            return h * 2
        return torch.zeros(WIDTH) + net.b

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees)), net.words.grad.clone()

    return Program(step, forests(lambda: binary(5), 3, 4, calls=LONG), state=net)


@program(speculated=0, close=CLOSE, reported="both have been seen")
def roots_of_what_is_positive():
    net = even(Net())

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        h = net.join(encode(tree.left), encode(tree.right))
        return h * h.sum().sqrt() if h.sum() > 0 else h  # a root has no derivative where the other way goes

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(lambda: binary(5), 3, 3), state=net)


@program(speculated=11, close=CLOSE, compiles=4)
def decided_on_the_way_down():
    net = even(Net())
    down = parameter(WIDTH, WIDTH)

    def encode(tree, above):
        if above.sum() > 0:
            above = torch.tanh(above @ down)
        else:
            above = above + 0.2
        if tree.left is None:
            return net.words[tree.word] * above
        return net.join(encode(tree.left, above * 0.9), encode(tree.right, above - 0.3))

    def step(trees):
        loss = net.update(sum(encode(tree, torch.ones(WIDTH)).pow(2).sum() for tree in trees))
        down.grad = None
        return loss

    return Program(step, forests(lambda: binary(6), 4, 4, calls=LONG), state=(net, down))


@program(speculated=7, close=CLOSE, compiles=4)
def the_better_child():
    net, score = even(Net()), parameter(WIDTH)

    def encode(tree):
        if tree.left is None:
            return torch.tanh(net.words[tree.word])
        left, right = encode(tree.left), encode(tree.right)
        best = left if left @ score > right @ score else right
        return net.join(best, left + right)

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(lambda: binary(6), 4, 4, calls=12), state=(net, score))


@program(speculated=0, close=CLOSE, reported="both have been seen")
def the_better_child_itself():
    net, score = even(Net()), parameter(WIDTH)

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word] * 1.5
        left, right = encode(tree.left), encode(tree.right)
        return left if left @ score > right @ score else right

    def step(trees):
        outs = [encode(tree) for tree in trees]
        return net.update(torch.stack(outs).pow(2).sum() + (net.w * net.w).sum() + net.b.sum())

    return Program(step, forests(lambda: binary(6), 4, 4, calls=12), state=(net, score))


@program(speculated=0, close=CLOSE)
def changed_in_place_on_one_way():
    net = even(Net())

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word] * 1.0
        h = net.join(encode(tree.left), encode(tree.right))
        if h.sum() > 0:
            h *= 0.5
        return h + 0.1

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(lambda: binary(6), 3, 3), state=net)


@program(speculated=0, close=CLOSE, reported="both have been seen")
def losses_of_some_nodes():
    net = even(Net())

    def encode(tree, losses):
        if tree.left is None:
            return net.words[tree.word]
        h = net.join(encode(tree.left, losses), encode(tree.right, losses))
        if h.sum() > 0:
            losses.append(h.pow(2).sum())
        return h

    def step(trees):
        losses = []
        tops = [encode(tree, losses).sum() for tree in trees]
        return net.update(torch.stack(losses + tops).sum())

    return Program(step, forests(lambda: binary(6), 3, 3), state=net)


@program(speculated=11, close=CLOSE, compiles=4)
def classes_of_nodes_and_decisions():
    net = even(Net())

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        h = net.join(encode(tree.left), encode(tree.right))
        if h.sum() > 0:
            if tree.kind == 0:
                return h * 0.5
            return torch.tanh(h - 0.3)
        return h + 0.2

    def kinds():
        tree = binary(6)

        def mark(node):
            if node.left is not None:
                node.kind = random.randrange(2)
                mark(node.left)
                mark(node.right)

        mark(tree)
        return tree

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(kinds, 4, 4, calls=LONG), state=net)


@program(speculated=11, close=CLOSE)
def checks_on_one_way_only():
    net = even(Net())

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        h = net.join(encode(tree.left), encode(tree.right))
        if h.sum() > 0:
            assert h.max() > 0, "cannot be"
            h = h * 0.5
        return h

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(lambda: binary(6), 3, 3, calls=LONG), state=net)


@program(speculated=12, close=CLOSE, slow=True)
def module_with_a_gate():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.join = nn.Embedding(WORDS, WIDTH), nn.Linear(2 * WIDTH, WIDTH)
            self.gate, self.deep = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, WIDTH)

        def forward(self, tree):
            if tree.left is None:
                return self.words(torch.tensor(tree.word))
            h = torch.tanh(self.join(torch.cat([self(tree.left), self(tree.right)])))
            if torch.sigmoid(self.gate(h)) > 0.5:
                h = F.relu(self.deep(h)) + h
            return h

    model, head = Gated(), nn.Linear(WIDTH, 2)
    opt = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=0.01)

    def step(trees, labels):
        opt.zero_grad()
        loss = F.cross_entropy(head(torch.stack([model(tree) for tree in trees])), labels)
        loss.backward()
        opt.step()
        return loss.item()

    calls = [([binary(6) for _ in range(5)], torch.randint(2, (5,))) for _ in range(LONG)]
    return Program(step, calls, state=(model, head))


@program(speculated=0, close=CLOSE)
def children_that_count():
    net = even(Net())

    def encode(node):
        h = net.words[node.word]
        for child in node.children:
            below = encode(child)
            if below.sum() > 0:
                h = net.join(h, below)
        return h

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(bushy, 3, 3, calls=CALLS), state=net)


@program(speculated=11, close=CLOSE)
def decided_without_gradients():
    net, gate = even(Net()), parameter(WIDTH)

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        h = net.join(encode(tree.left), encode(tree.right))
        return torch.tanh(h + 1) if h @ gate > 0 else h.clamp(-0.5, 0.5)

    def step(trees):
        with torch.no_grad():
            return torch.stack([encode(tree) for tree in trees]).argmax(1)

    return Program(step, forests(lambda: binary(6), 4, 4, calls=LONG), state=(net, gate))


@program(speculated=0, close=CLOSE, reported="the variants on which a tensor decides give tensors of sizes")
def ways_of_two_sizes():
    net = even(Net())

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        h = torch.tanh(encode(tree.left) + encode(tree.right) * 0.7 + net.b)
        return h if h.sum() > 0 else h[:1]

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees))

    return Program(step, forests(lambda: binary(6), 4, 4), state=net)


@program(speculated=17, close=CLOSE, compiles=8)
def what_only_one_way_goes_on_with():
    net = even(Net())
    deep, wide = parameter(WIDTH, WIDTH), parameter(WIDTH, WIDTH)
    opt = torch.optim.Adam([deep, wide], lr=0.003)

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        h = net.join(encode(tree.left), encode(tree.right))
        one, other = torch.tanh(h @ deep), h @ wide
        return one if other.sum() > 0 else h * 0.3

    def step(tree):
        opt.zero_grad()
        loss = net.update(encode(tree).pow(2).sum())
        opt.step()
        return loss, deep.grad is None, wide.grad is None

    return Program(step, single(lambda: binary(random.randint(2, 4)), calls=24), state=(net, deep, wide))


@program(speculated=0, close=CLOSE, reported="both have been seen")
def the_first_child_or_both():
    net = even(Net())

    def encode(tree):
        if tree.left is None:
            return torch.tanh(net.words[tree.word])
        left, right = encode(tree.left), encode(tree.right)
        h = net.join(left, right)
        return h if h.sum() > 0 else left  # at times nobody uses what weights there are

    def step(trees):
        tops = [encode(tree) for tree in trees]
        loss = net.update(torch.stack(tops).pow(2).sum())
        return tops, loss, net.w.grad is None

    return Program(step, forests(lambda: binary(4), 2, 2), state=net)


@program(speculated=9, close=CLOSE, compiles=8)
def detached_by_the_tree():
    net = Net()

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        h = net.join(encode(tree.left), encode(tree.right))
        if tree.stop:
            h = h.detach()
        return h + net.b

    def stopping():
        tree = binary(3)
        mark(tree)
        return tree

    def step(trees):
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees)), net.w.grad is None

    return Program(step, forests(stopping, 2, 2, calls=LONG + 4), state=net)


@program(speculated=10, close=CLOSE, compiles=8)
def children_that_are_ignored():
    net = Net()

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        left, right = encode(tree.left), encode(tree.right)
        return left * 2 if tree.stop else net.join(left, right)

    def stopping():
        tree = binary(3)
        mark(tree)
        return tree

    def step(tree):
        return net.update(encode(tree).pow(2).sum()), net.w.grad is None

    return Program(step, single(stopping, calls=LONG + 4), state=net)


@program(speculated=0, close=CLOSE, reported="and some of its results are detached")
def decided_by_a_tensor_and_detached_by_the_tree():
    net, more = even(Net()), parameter(WIDTH, WIDTH)

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        h = net.join(encode(tree.left), encode(tree.right))
        if tree.stop:
            return h.detach() + net.b
        return h * 0.5 if h.sum() > 0 else h @ more

    def stopping():
        tree = binary(4)
        mark(tree)
        return tree

    def step(trees):
        more.grad = None
        return net.update(sum(encode(tree).pow(2).sum() for tree in trees)), more.grad is None

    return Program(step, forests(stopping, 3, 3, calls=12), state=(net, more))


def mark(tree):
    """Some nodes stop gradients, whatever is below them."""
    tree.stop = random.random() < 0.6
    if tree.left is not None:
        mark(tree.left)
        mark(tree.right)


@program(speculated=10, close=CLOSE, compiles=6)
def a_tree_whose_state_the_loss_does_not_use():
    net = Net()

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        return net.join(encode(tree.left), encode(tree.right))

    def step(first, second):
        seen = encode(first)
        unused = seen * 2
        used = encode(second).pow(2).sum()
        return net.update(used), net.w.grad is None, net.words.grad is None, unused.detach()

    # A tree of one node uses no weights: whether they have gradients depends on the second tree alone.
    calls = [(binary(2 + k % 3), binary(1 + (k % 4 != 1) * (k % 3))) for k in range(LONG + 4)]
    return Program(step, calls, state=net)


@program(speculated=3, close=CLOSE, compiles=10)
def only_the_first_of_the_trees_counts():
    net = Net()

    def encode(tree):
        if tree.left is None:
            return net.words[tree.word]
        return net.join(encode(tree.left), encode(tree.right))

    def step(trees):
        states = [encode(tree) for tree in trees]
        return net.update(states[0].pow(2).sum()), net.w.grad is None, [state.detach().sum() for state in states]

    calls = [([binary(1 + (k % 4 != 1) * (k % 3)), binary(3)],) for k in range(LONG + 4)]
    return Program(step, calls, state=net)
