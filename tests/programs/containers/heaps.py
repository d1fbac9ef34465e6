"""``heapq``, and what compares tuples: the best results so far, shortest paths, most common elements."""

import collections
import heapq
import itertools

import torch
from torch import nn

from tests.programs.harness import Program, program


def inputs(count=12):
    return [(torch.randn(4, 3),) for _ in range(count)]


@program(speculated=9, compiles=1)
def the_most_common_of_the_step():
    def step(x):
        words = collections.Counter("abracadabra").most_common(2)
        largest, smallest = heapq.nlargest(2, [3, 1, 4, 1, 5]), heapq.nsmallest(2, [3, 1, 4], key=lambda v: -v)
        return x * words[0][1], words, largest, smallest

    return Program(step, inputs())


@program(speculated=9, compiles=1)
def shortest_paths_in_the_step():
    edges = {0: [(1, 2.0), (2, 5.0)], 1: [(2, 1.0), (3, 7.0)], 2: [(3, 1.5)], 3: []}
    weight = nn.Parameter(torch.ones(4))

    def step(x):
        far, waiting = {0: 0.0}, [(0.0, 0)]
        while waiting:
            so_far, node = heapq.heappop(waiting)
            for other, cost in edges[node]:
                if so_far + cost < far.get(other, float("inf")):
                    far[other] = so_far + cost
                    heapq.heappush(waiting, (far[other], other))
        return (weight * torch.tensor([far[node] for node in range(4)])).sum().detach() + x.sum()

    return Program(step, inputs(), state=(edges, weight))


@program(speculated=24, compiles=5)
def the_three_largest_so_far():
    heap = []

    def step(x):
        value = x.abs().sum().item()
        if len(heap) < 3:
            heapq.heappush(heap, value)
        elif value > heap[0]:
            heapq.heapreplace(heap, value)
        return x * 2, heap[0]

    return Program(step, inputs(40), state=heap)


@program(speculated=24, compiles=5)
def the_best_weights_so_far():
    model, heap, number = nn.Linear(3, 2), [], itertools.count()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)

    def step(x):
        loss = (model(x) - x[:, :2]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept = (-loss.item(), next(number), {name: part.clone() for name, part in model.state_dict().items()})
        if len(heap) < 3:
            heapq.heappush(heap, kept)
        else:
            heapq.heappushpop(heap, kept)
        return -heap[0][0]

    return Program(step, inputs(40), state=(model, optimizer, heap))


@program(speculated=9, compiles=1)
def a_heap_of_lists_and_an_empty_one():
    def step(x):
        try:
            heapq.heappop([])
        except IndexError as error:
            reported = type(error).__name__
        heap = [[2, "b"], [1, "c"], [1, "a"]]
        heapq.heapify(heap)
        return x * 2, reported, heap, heapq.heappushpop(heap, [0, "z"]), [heapq.heappop(heap) for _ in range(3)]

    return Program(step, inputs())


@program(speculated=16, compiles=4)
def tuples_are_compared_part_by_part():
    best = {"kept": (0.0, 0)}

    def step(x, n):
        now = (x.mean().item(), n)
        if now > best["kept"]:
            best["kept"] = now
        return (n, 2) < (30, 1), [n] >= [40], (n,) <= (n, 1), max((n + 50, 1), (4, 0))

    return Program(step, [(x, i) for i, (x,) in enumerate(inputs(24))], state=best)
