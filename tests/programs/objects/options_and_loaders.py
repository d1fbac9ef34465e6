"""Options of `argparse`, data sets and loaders: attributes read and written, lengths asked for in mid-step, items."""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Sampler, Subset, TensorDataset

from tests.programs.harness import CALLS, Program, program


def trained(change, state=()):
    """A step that trains, keeps its loss, and goes on with ``change(i, loss)``."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    history = []

    def step(i, x):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
        return change(i, loss)

    return Program(step, [(i, torch.randn(4, 3)) for i in range(CALLS)], state=(model, history, state))


class Rows(Dataset):
    def __init__(self, n=30):
        self.rows, self.n, self.asked = torch.randn(n, 3), n, 0

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.rows[i]


class Counting(Rows):
    def __len__(self):
        self.asked += 1
        return self.n


class Measured(Rows):
    def __len__(self):
        return len(self.rows)


class EverySecond(Sampler):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(range(0, len(self.rows), 2))

    def __len__(self):
        return len(self.rows) // 2


class Options(argparse.Namespace):
    @property
    def often(self):
        return self.every * 2


def last_of(loader, state=()):
    return trained(lambda i, loss: ("last" if i % len(loader) == 1 else "", len(loader) * 10), state)


@program(speculated=4)
def options_are_read():
    args = argparse.Namespace(every=2, dry_run=False, name="run")

    def change(i, loss):
        if args.dry_run:
            return None
        return (loss.item(), args.name) if i % args.every == 0 else i

    return trained(change)


@program(speculated=4)
def options_are_written():
    args = Options(every=2, seen=0)

    def change(i, loss):
        args.seen += 1
        args.last = loss.item()
        return args.often, "last" in args, "first" in args, getattr(args, "first", None), sorted(vars(args))

    return trained(change, args)


@program(speculated=4)
def options_change_between_calls():
    args = argparse.Namespace(scale=1.0, dry_run=False)

    def between(_):
        args.scale *= 0.5
        args.dry_run = args.scale < 0.01

    def change(i, loss):
        return "dry" if args.dry_run else loss.detach() * args.scale

    one = trained(change)
    one.between = between
    return one


@program(speculated=4)
def options_are_made():
    def change(i, loss):
        made = argparse.Namespace(loss=loss.item(), i=0)
        made.i = i
        return made.loss, made.i == i, "i" in made, sorted(vars(made))

    return trained(change)


@program(speculated=5)
def length_of_a_loader():
    return last_of(DataLoader(Rows(), batch_size=8, shuffle=True))


@program(speculated=5)
def length_of_a_loader_of_tensors():
    return last_of(DataLoader(TensorDataset(torch.randn(30, 3), torch.zeros(30)), batch_size=8))


@program(speculated=5)
def length_of_a_loader_that_measures_a_tensor():
    return last_of(DataLoader(Measured(), batch_size=8, drop_last=True))


@program(speculated=5)
def length_of_a_loader_with_a_sampler():
    rows = Rows()
    return last_of(DataLoader(rows, batch_size=4, sampler=EverySecond(rows)))


@program(speculated=5)
def lengths_of_composed_data_sets():
    rows = Rows()
    return last_of(DataLoader(ConcatDataset([rows, Subset(rows, range(10))]), batch_size=8))


@program(speculated=4)
def length_that_counts_its_calls():
    rows = Counting()
    return last_of(DataLoader(rows, batch_size=8), rows)


@program(speculated=4)
def length_that_the_step_changes():
    rows = Rows()
    loader = DataLoader(rows, batch_size=4)

    def change(i, loss):
        rows.n += 2
        return "more" if len(loader) > 9 else "few"

    return trained(change, rows)


@program(speculated=4)
def length_that_changes_between_calls():
    rows = Rows()
    one = last_of(DataLoader(rows, batch_size=8))

    def between(_):
        rows.n += 3

    one.between = between
    return one


@program(speculated=4)
def elements_of_data_sets():
    both = ConcatDataset([TensorDataset(torch.randn(6, 3)), TensorDataset(torch.randn(5, 3))])

    def change(i, loss):
        return both[i][0] + loss.detach(), both.cumulative_sizes

    return trained(change)


@program(speculated=4)
def options_are_compared():
    first, second = argparse.Namespace(a=1, b="x"), argparse.Namespace(b="x", a=1)

    def between(_):
        second.a = 2

    one = trained(lambda i, loss: first == second)
    one.between = between
    return one


@program(refused="is called in the middle of the step, and may read what the step has written before it")
def a_loader_is_gone_through():
    loader = DataLoader(TensorDataset(torch.randn(6, 3)), batch_size=2, shuffle=True)

    def change(i, loss):
        return [part.sum() for (part,) in loader], loader.batch_size, torch.rand(())

    return trained(change)
