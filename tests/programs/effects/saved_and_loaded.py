"""What a step writes to files, above all checkpoints, equals eager's, to the class of each number."""

import collections
import dataclasses
import io
import os
import pickle
import tempfile
import types

import torch
from torch import nn

from tests.programs.harness import CALLS, Program, program


def inputs(count=CALLS):
    return [(torch.randn(4, 5),) for _ in range(count)]


def model_and_optimizer():
    model = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def train(model, opt, x):
    opt.zero_grad()
    loss = (model(x) - x[:, :3]).pow(2).mean()
    loss.backward()
    opt.step()
    return loss


def path_of(name):
    path = os.path.join(tempfile.gettempdir(), f"torchjanus-{name}-{os.getpid()}.pt")
    if os.path.exists(path):
        os.remove(path)
    return path


def contents(path, found):
    """After each call: what lies in the file, as bytes and as objects."""

    def look(_):
        if os.path.exists(path):
            with open(path, "rb") as file:
                found.append(file.read())
            found.append(torch.load(io.BytesIO(found[-1])))

    return look


@program()
def a_checkpoint_at_each_call():
    path, found = path_of("each"), []
    model, opt = model_and_optimizer()
    state = {"epoch": 0}

    def step(x):
        loss = train(model, opt, x)
        state["epoch"] += 1
        torch.save(
            {"epoch": state["epoch"], "model": model.state_dict(), "opt": opt.state_dict(), "loss": loss.item()}, path
        )
        return loss.item()

    return Program(step, inputs(), state=(model, opt, state, found), between=contents(path, found))


@program(speculated=16, compiles=4)
def the_best_so_far_is_saved():
    path, found = path_of("best"), []
    model, opt = model_and_optimizer()
    best = {"loss": float("inf"), "calls": 0}

    def step(x):
        loss = train(model, opt, x).item()
        best["calls"] += 1
        if loss < best["loss"]:
            best["loss"] = loss
            torch.save(model.state_dict(), path)
        return loss

    calls = [(x * (1 + i * 5 % 4),) for i, (x,) in enumerate(inputs(24))]
    return Program(step, calls, state=(model, opt, best, found), between=contents(path, found))


@program(speculated=8, compiles=2, slow=True)
def a_checkpoint_is_read_again():
    path = path_of("again")
    model, opt = model_and_optimizer()
    torch.save(model.state_dict(), path)
    state = {"calls": 0}

    def step(x):
        state["calls"] += 1
        if state["calls"] % 4 == 0:
            model.load_state_dict(torch.load(path))
        return train(model, opt, x).item()

    return Program(step, inputs(20), state=(model, opt, state))


@dataclasses.dataclass(slots=True)
class Slots:
    count: int
    more: dict


Pair = collections.namedtuple("Pair", "one other")


def pickled(make):
    """A step that counts, makes something of the count, and lets ``pickle`` take it apart."""
    file = io.BytesIO()
    state = {"count": 0, "inner": {}, "log": collections.OrderedDict()}
    found = []

    def step(x):
        state["count"] += 1
        made = make(state, x)
        pickle.dump(made, file)
        return x * state["count"], made

    return Program(step, inputs(), state=state, between=lambda _: found.append(file.getvalue()))


@program()
def numbers_in_an_ordered_dictionary():
    return pickled(lambda state, x: collections.OrderedDict(n=state["count"], rows=[len(x)]))


@program()
def numbers_in_objects():
    return pickled(lambda state, x: vars(types.SimpleNamespace(n=state["count"], deep=collections.deque([len(x)]))))


@program()
def numbers_in_tuples_in_lists():
    return pickled(lambda state, x: [x.shape, (state["count"], [state["count"] + 1]), tuple(Pair(state["count"], 2))])


@program()
def numbers_in_a_default_dictionary():
    return pickled(lambda state, x: collections.defaultdict(list, n=state["count"], more=[state["count"] * 0.5]))


@program()
def what_the_step_has_put_into_an_old_dictionary():
    def make(state, x):
        state["log"]["last"] = collections.OrderedDict(n=state["count"])
        state["inner"]["sizes"] = {"rows": len(x), "count": [state["count"]]}
        return state

    return pickled(make)


@program()
def numbers_go_on_as_they_were():
    def make(state, x):
        slots = Slots(state["count"], {"n": state["count"]})
        data = [slots.count, slots.more, vars(types.SimpleNamespace(held=slots.more))]
        pickle.dump(data, io.BytesIO())
        state["inner"] = {"again": slots.count + 1, "more": slots.more["n"] * len(x)}
        return data

    return pickled(make)
