"""Containers from before the call to which only some iterations append, and which the program inspects afterwards."""

import collections

import torch

from tests.programs.harness import Program, program

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

LENGTHS = (4, 4, 4, 4, 4, 4, 6, 3, 4, 4, 4, 4, 3, 4, 4, 4)


def sequences(seed):
    torch.manual_seed(seed)
    return [(torch.randn(n, 5),) for n in LENGTHS]


@program(speculated=0, compiles=8)
def length_of_a_list():
    found = []

    def step(x):
        for row in x:
            if row.sum() > 0:
                found.append(1.5)
        return x * 1.0, len(found)

    return Program(step, sequences(4), state=found)


@program(speculated=0, compiles=8)
def length_of_a_list_of_fetched_numbers():
    found, hits = [], collections.Counter()

    def step(x):
        h = x * 1.0
        for row in x:
            z = torch.tanh(row + h.mean())
            if z.sum() > 0:
                hits["p"] += 1
                found.append(z.sum().item())
            else:
                h = h + 0.1
        return h, dict(hits), len(found)

    return Program(step, sequences(2), state=(found, hits))


@program(speculated=0, compiles=8)
def length_of_a_deque():
    found = collections.deque()

    def step(x):
        for row in x:
            if row.sum() > 0:
                found.append(1.5)
        return x * 1.0, len(found)

    return Program(step, sequences(4), state=found)


@program(speculated=0, compiles=16)
def keys_of_a_counter_that_is_cleared():
    hits = collections.Counter()

    def step(x):
        h = torch.zeros(5)
        for row in x:
            h = torch.tanh(h + row)
            if row.sum() > 0:
                hits["a"] += 1
        names = list(hits)
        hits.clear()
        return len(names), names[:2], h

    torch.manual_seed(3)
    return Program(step, [(torch.randn(4, 5),) for _ in range(30)], state=hits)


@program(speculated=1, compiles=8, close=1e-4)
def iterations_counted_from_one():
    layer, seen = torch.nn.Linear(4, 4), {"total": 0.0, "flag": False}
    opt = torch.optim.SGD(layer.parameters(), lr=0.05)

    def step(xs):
        h = torch.zeros(2, 4)
        for number, x in enumerate(xs, 1):
            h = torch.tanh(layer(h) + x)
            if number == 0:
                print(h.sum().item())
            else:
                seen["total"] = seen["total"] * 0.9 + h.sum().item()
            if torch.rand(()) > 0.5:
                seen["total"] += h.mean().item()
            else:
                seen["flag"] = True
        opt.zero_grad()
        h.sum().backward()
        opt.step()
        return h.detach()

    return Program(step, [(torch.randn(5, 2, 4),) for _ in range(19)], state=(layer, seen))


@program(speculated=14)
def in_inference_mode():
    seen = []

    def step(x):
        h = x * 2
        if h.sum() > 0:
            seen.append(h.sum().item())
        mean = h.mean()
        h = h.clone()
        h.add_(1)
        return h, mean, len(seen)

    around = torch.inference_mode
    return Program(step, [(torch.randn(4, 5),) for _ in range(20)], state=seen, around=lambda _: around())
