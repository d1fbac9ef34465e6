"""Loops of changing length whose iterations ask for loop-invariant facts: a mode, a flag, a class, a table."""

import enum

import torch
from torch import nn

from tests.programs.branches.branches_in_loops import Net, sequences
from tests.programs.harness import Program, program

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.


class Kind(enum.Enum):
    PLAIN = 1
    GATED = 2


class Settings:
    """What a program is set up with."""

    kind = "gru"
    mode = Kind.GATED
    clip = None
    count = 3
    names = ("gru", "linear")

    def __init__(self):
        self.scales = {"gru": 0.5, "linear": 2.0}
        self.hooks = ["norm"]


SETTINGS = Settings()
NAME = "a gru cell"


def looping(body):
    """A step that goes over a sequence with this iteration."""
    net = Net(nn.GRUCell(4, 4), nn.GRUCell(4, 4))

    def step(xs):
        h = torch.zeros(2, 4)
        for x in xs:
            h = body(net.layers, h, x)
        return net.update(h.square().sum())

    return Program(step, sequences(), state=net)


@program(speculated=19, compiles=1)
def text_within_a_text():
    def body(layers, h, x):
        return layers[0](x, h) if "gru" in NAME else x

    return looping(body)


@program(speculated=19, compiles=1)
def texts_one_after_the_other():
    def body(layers, h, x):
        if SETTINGS.kind == "linear":
            return x
        elif SETTINGS.kind.startswith("gr") and SETTINGS.kind.upper() != "GR":
            return layers[0](x, h)
        return h

    return looping(body)


@program(speculated=19, compiles=1)
def matched_text():
    def body(layers, h, x):
        match SETTINGS.kind:
            case "linear":
                return x
            case "gru":
                return layers[0](x, h)
        return h

    return looping(body)


@program(speculated=19, compiles=1)
def numbers_and_none():
    def body(layers, h, x):
        if SETTINGS.clip is not None:
            h = h.clamp(-SETTINGS.clip, SETTINGS.clip)
        if SETTINGS.count % 2 == 1 and SETTINGS.count > 2:
            h = layers[0](x, h)
        return h

    return looping(body)


@program(speculated=19, compiles=1)
def members_of_an_enumeration():
    def body(layers, h, x):
        return layers[0](x, h) if SETTINGS.mode == Kind.GATED and SETTINGS.mode in (Kind.GATED, None) else x

    return looping(body)


@program(speculated=19, compiles=1)
def tables_and_membership():
    def body(layers, h, x):
        scale = SETTINGS.scales[SETTINGS.kind] * SETTINGS.scales.get("other", 1.0)
        if SETTINGS.kind in SETTINGS.scales and SETTINGS.kind in {"gru", "lstm"} and "norm" in SETTINGS.hooks:
            h = layers[0](x, h)
        return h * scale

    return looping(body)


@program(speculated=19, compiles=1)
def classes_and_attributes():
    def body(layers, h, x):
        if isinstance(layers[0], (nn.GRUCell, nn.LSTMCell)) and hasattr(SETTINGS, "kind"):
            h = layers[0](x, h)
        return getattr(torch, "tanh" if SETTINGS.kind == "gru" else "relu")(h)

    return looping(body)


@program(speculated=19, compiles=1)
def several_layers_in_each_iteration():
    def body(layers, h, x):
        for depth, layer in enumerate(layers):
            h = layer(x, h)
            if depth < len(layers) - 1:
                h = torch.relu(h)
        return h

    return looping(body)


@program(speculated=19, compiles=1)
def sizes_of_what_an_iteration_gets():
    def body(layers, h, x):
        assert x.dim() == 2 and x.size(-1) == h.size(-1)
        return layers[0](x, h)

    return looping(body)


@program(speculated=18, compiles=2)
def texts_beside_a_tensor_that_decides():
    def body(layers, h, x):
        h = layers[0](x, h)
        if SETTINGS.kind == "gru" and h.norm() > 0.9:
            h = h / h.norm() if "gru" in NAME else x
        return h

    return looping(body)


@program(speculated=14, compiles=3)
def a_mode_that_changes_between_calls():
    net = Net(nn.GRUCell(4, 4))
    holder = Settings()

    def step(xs):
        h = torch.zeros(2, 4)
        for x in xs:
            h = net.layers[0](x, h) if holder.kind == "gru" else torch.tanh(x + h) * net.layers[0].bias_hh[:4]
        return net.update(h.sum())

    def turn(kind):
        return lambda: setattr(holder, "kind", kind)

    return Program(step, sequences(30), before={10: turn("linear"), 22: turn("gru")}, state=net)


@program(speculated=19, compiles=1)
def a_state_for_each_layer():
    net = Net(nn.GRUCell(4, 4), nn.GRUCell(4, 4))

    def step(xs):
        states = [torch.zeros(2, 4) for _ in net.layers]
        for x in xs:
            for n, layer in enumerate(net.layers):
                states[n] = x = layer(x, states[n])
        return net.update(sum(state.sum() for state in states))

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=99)
def a_mode_that_iterations_change():
    net = Net(nn.GRUCell(4, 4))

    def step(xs):
        h, modes = torch.zeros(2, 4), ["a"] * 5 + ["b"] * 20
        for x in xs:
            h = net.layers[0](x, h) if modes[0] == "a" else h - x
            del modes[0]
        return net.update(h.sum())

    return Program(step, sequences(low=4, high=9), state=net)


@program(speculated=0, compiles=99)
def modes_carried_from_iteration_to_iteration():
    net = Net(nn.GRUCell(4, 4))

    def step(xs):
        h, a, b, c, d = torch.zeros(2, 4), "x", "x", "x", "x"
        for x in xs:
            h = net.layers[0](x, h) if a == "x" else h - x
            a, b, c, d = b, c, d, "y"
        return net.update(h.sum())

    return Program(step, sequences(low=3, high=9), state=net)


@program(speculated=0, compiles=99)
def a_row_of_states_that_is_shifted():
    net = Net(nn.GRUCell(4, 4))

    def step(xs):
        h, late = torch.zeros(2, 4), [torch.ones(2, 4)] * 6
        for x in xs:
            h = net.layers[0](x + late[0], h)
            late[0], late[1], late[2], late[3], late[4], late[5] = late[1], late[2], late[3], late[4], late[5], h
        return net.update(h.sum())

    return Program(step, sequences(low=4, high=10), state=net)


@program(speculated=19, compiles=1)
def constants_that_are_the_number_of_one_iteration():
    def body(layers, h, x):
        return torch.tanh(x + h) * layers[0].bias_hh[:4] + layers[1].weight_hh[4, 3]

    return looping(body)
