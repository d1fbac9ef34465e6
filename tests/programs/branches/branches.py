"""Branches that tensors decide, both arms taken in turn: all kinds of conditions, and all that can happen in an arm."""

import math
import random

import torch
from torch import nn
from torch.nn import functional as F

from tests.programs.harness import Program, program

RUN_ONE_IN = 12  # Each takes a second or two, or is much like the others.

CALLS = 24


class Net(nn.Module):
    def __init__(self, *, dropout=0.0):
        super().__init__()
        self.first = nn.Linear(5, 6)
        self.left = nn.Linear(6, 3)
        self.right = nn.Linear(6, 3)
        self.dropout = nn.Dropout(dropout)
        self.taken = {"left": 0, "right": 0}

    def forward(self, x):
        h = self.dropout(torch.relu(self.first(x)))
        if x[0, 0] > 0:
            self.taken["left"] += 1
            return self.left(h)
        self.taken["right"] += 1
        return self.right(h).tanh()


def signs(k):
    """A pattern in which all pairs of two decisions occur, in no regular order."""
    return (k * 7 + k // 3) % 4


def inputs(count=CALLS, rows=4, scale=1.0):
    """The first two numbers decide."""
    made = []
    for k in range(count):
        x = torch.randn(rows, 5)
        x[0, 0] = 1.0 if signs(k) & 1 else -1.0
        x[0, 1] = 1.0 if signs(k) & 2 else -1.0
        made.append((x * scale,))
    return made


def training(step_of, *, dropout=0.0, optimizer=torch.optim.Adam, count=CALLS, **options):
    """A Program whose step is ``step_of(net, optimizer, state)(x)``."""
    net = Net(dropout=dropout)
    opt = optimizer(net.parameters(), lr=0.05, **options)
    state = {"skipped": 0, "log": []}
    return Program(step_of(net, opt, state), inputs(count), state=(net, opt, state))


# -- kinds of conditions -----------------------------------------------------------------------------------------------


@program(speculated=18)
def plain_if():
    def step(x):
        if x[0, 0] > 0:
            return x * 2
        return x - 1

    return Program(step, inputs())


@program(speculated=18)
def conditional_expression():
    return Program(lambda x: x.exp() if x[0, 0] > 0 else x.sin(), inputs())


@program(speculated=16, compiles=4)
def prediction_compared_with_a_label():
    """The label is the same in the first runs."""
    net = nn.Linear(5, 2)

    def step(x, label):
        if net(x).sum(0).argmax().item() == label:
            return "right"
        return "wrong"

    labels = (0, 0, 0, *(k % 3 % 2 for k in range(CALLS)))
    return Program(step, [(x, label) for (x,), label in zip(inputs(), labels, strict=False)], state=net)


@program(speculated=20, compiles=4)
def elif_chain():
    def step(x):
        s = x[0, 0] + 2 * x[0, 1]
        if s > 2:
            y = x * 2
        elif s > 0:
            y = x * 3
        elif s > -2:
            y = x * 4
        else:
            y = x * 5
        return y.sum()

    return Program(step, inputs()[::-1][:20] + [i for i in inputs() if i[0][0, 0] > 0])


@program(speculated=10, compiles=4)
def two_independent_decisions():
    def step(x):
        y = x + 1 if x[0, 0] > 0 else x.relu()
        return y * 2 if x[0, 1] > 0 else y.exp()

    return Program(step, inputs(30))


@program(speculated=10, compiles=4)
def and_and_or():
    def step(x):
        a, b = x[0, 0] > 0, x[0, 1] > 0
        y = x + 1 if a and b else x - 1
        if a or not b:
            y = y * 2
        return y

    return Program(step, inputs(30))


@program(speculated=18)
def not_of_a_tensor():
    def step(x):
        if not (x[0, 0] > 0).all():
            return x + 1
        return x

    return Program(step, inputs())


@program(speculated=18)
def chained_comparison():
    def step(x):
        if -0.5 < x[0, 0].clamp(-1, 1).item() < 2:
            return x.abs()
        return x.neg()

    return Program(step, inputs())


@program(speculated=18)
def any_and_all_of_masks():
    def step(x):
        mask = x[:, 0] > 0.9
        if mask.any():
            return torch.where(mask[:, None], x, 0.0).sum()
        return x.mean()

    return Program(step, [(x.clamp(max=0.8) if signs(k) & 1 == 0 else x,) for k, (x,) in enumerate(inputs())])


@program(speculated=18)
def condition_on_item_arithmetic():
    def step(x):
        level = x[0, 0].item() * 0.5 + 1
        if level > 1:
            return x * level
        return x / (level + 2)

    return Program(step, inputs())


@program(speculated=18)
def nan_check():
    def step(x):
        loss = (x * x).sum().log()
        if math.isfinite(loss.item()):
            return loss
        return torch.zeros(())

    return Program(step, [(x * 0 if signs(k) & 1 else x,) for k, (x,) in enumerate(inputs())])


@program(speculated=16, compiles=3)
def filter_of_a_comprehension():
    parts = [torch.randn(5) for _ in range(2)]

    def step(x):
        return sum((p * x for p in parts if (p.sum() * x[0, 0]).item() > 0), torch.zeros(4, 5))

    return Program(step, inputs())


@program(speculated=18)
def assertion_that_fails_now_and_then():
    def step(x):
        assert x[0, 0] < 0, "positive"
        return x + 1

    return Program(step, inputs(30))


@program(speculated=22, compiles=4)
def match_on_a_fetched_number():
    def step(x):
        match int((x[0, 0] > 0).item()) + int((x[0, 1] > 0).item()):
            case 0:
                return x * 2
            case 1:
                return x * 3
            case _:
                return x * 4

    return Program(step, inputs(30))


@program(speculated=10, compiles=4)
def expert_picked_by_index():
    experts = nn.ModuleList(nn.Linear(5, 3) for _ in range(3))
    opt = torch.optim.SGD(experts.parameters(), lr=0.1, momentum=0.9)

    def step(x, k):
        opt.zero_grad()
        loss = experts[int(k.argmax())](x).pow(2).mean()
        loss.backward()
        opt.step()
        return loss.detach()

    calls = [(torch.randn(4, 5), torch.eye(3)[(k * 5 + k // 4) % 3]) for k in range(30)]
    return Program(step, calls, state=(experts, opt))


# -- what happens in an arm ------------------------------------------------------------------------------------------


def trained(net, opt, state):
    def step(x):
        opt.zero_grad()
        loss = net(x).pow(2).mean()
        loss.backward()
        opt.step()
        return loss.detach()

    return step


@program(speculated=14, compiles=3)
def arms_with_parameters_of_their_own():
    return training(trained)


@program(speculated=14, compiles=3)
def arms_with_dropout():
    return training(trained, dropout=0.4, optimizer=torch.optim.SGD, momentum=0.9)


@program(speculated=14, compiles=3)
def skipped_update():
    def make(net, opt, state):
        def step(x):
            opt.zero_grad()
            loss = net.left(net.first(x)).pow(2).mean()
            loss.backward()
            if x[0, 0] > 0:
                opt.step()
            else:
                state["skipped"] += 1
            return loss.detach()

        return step

    return training(make)


@program(speculated=14, compiles=3)
def backward_in_one_arm():
    def make(net, opt, state):
        def step(x):
            loss = net.left(net.first(x)).pow(2).mean()
            if x[0, 0] > 0:
                opt.zero_grad()
                loss.backward()
                opt.step()
            return loss.detach()

        return step

    return training(make, optimizer=torch.optim.SGD)


@program(speculated=14, compiles=3)
def clipping_by_hand():
    def make(net, opt, state):
        def step(x):
            opt.zero_grad()
            loss = net.left(net.first(x)).pow(2).mean()
            loss.backward()
            norm = torch.stack([p.grad.norm() for p in net.parameters() if p.grad is not None]).norm()
            if norm > 1.0:
                for p in net.parameters():
                    if p.grad is not None:
                        p.grad.mul_(1.0 / norm)
                state["log"].append("clipped")
            opt.step()
            return norm.detach()

        return step

    program = training(make, optimizer=torch.optim.SGD, momentum=0.5)
    program.calls = [(x * (4.0 if signs(k) & 1 else 0.1),) for k, (x,) in enumerate(inputs())]
    return program


@program(speculated=18)
def changes_in_place_in_the_arms():
    total = torch.zeros(5)
    other = torch.zeros(5)

    def step(x):
        if x[0, 0] > 0:
            total.add_(x.sum(0))
            total[0] = 1.0
        else:
            other.mul_(0.5).sub_(x[1])
        return total + other

    return Program(step, inputs(), state=(total, other))


@program(speculated=16, compiles=3)
def input_changed_after_the_decision():
    def step(x):
        if x[0, 0] > 0:
            x.mul_(2)
        x.add_(1)
        return x.sum()

    return Program(step, inputs())


@program(speculated=18, compiles=4)
def objects_changed_in_the_arms():
    class Meter:
        pass

    meter = Meter()
    meter.seen, meter.last, meter.ways = 0, None, {}

    def step(x):
        meter.seen += 1
        if x[0, 0] > 0:
            meter.last = x.mean()
            meter.ways["up"] = meter.seen
        else:
            meter.ways["down"] = meter.last
        return meter.seen

    return Program(step, inputs(30), state=meter)


@program(speculated=18)
def prints_in_the_arms():
    def step(x):
        y = x.sum()
        if x[0, 0] > 0:
            print("up", y)
        else:
            print("down", y.item(), x.shape)
        return y

    return Program(step, inputs())


@program(speculated=18)
def results_of_different_structure():
    def step(x):
        if x[0, 0] > 0:
            return {"y": x + 1, "n": [1, 2]}
        return None

    return Program(step, inputs())


@program(speculated=18)
def same_tensor_returned_by_one_arm():
    def step(x):
        return x if x[0, 0] > 0 else x.clone()

    return Program(step, inputs())


@program(speculated=18)
def view_returned_by_one_arm():
    def step(x):
        return x[1:] if x[0, 0] > 0 else x[:1] + 0

    return Program(step, inputs())


@program(speculated=14, compiles=3)
def draws_in_the_arms_and_after():
    def step(x):
        y = F.dropout(x, 0.3)
        if x[0, 0] > 0:
            y = y + torch.randn(5)
        y = F.dropout(y, 0.5)
        return y + torch.rand(())

    return Program(step, inputs())


@program(speculated=16, compiles=3)
def draws_of_python_before_the_decision():
    def step(x):
        k = random.random()
        if (x[0, 0] * k) > 0:
            return x * k
        return x + k

    return Program(step, inputs())


@program(speculated=8, compiles=3)
def draws_of_python_in_an_arm():
    def step(x):
        if x[0, 0] > 0:
            return x * random.random()
        return x + 1

    return Program(step, inputs())


@program(speculated=18)
def error_raised_in_one_arm():
    seen = []

    def step(x):
        seen.append(float(x[0, 0]))
        if x[0, 0] > 0:
            raise ValueError("up")
        seen.append("down")
        return x.sum()

    return Program(step, inputs(40), state=seen)


@program(speculated=14, compiles=3)
def error_caught_after_the_decision():
    state = {"bad": 0}

    def check(x):
        if x[0, 0] > 0:
            raise ArithmeticError("up")
        return x * 2

    def step(x):
        try:
            return check(x)
        except ArithmeticError:
            state["bad"] += 1
            return x * 3

    return Program(step, inputs(), state=state)


@program(speculated=16, compiles=3)
def early_return_of_a_called_function():
    def inner(x):
        if x[0, 0] > 0:
            return x * 2
        x = x + 1
        return x.relu()

    def step(x):
        return inner(x) + inner(x * 0.5)

    return Program(step, inputs())


@program(speculated=14, compiles=4)
def nested_decisions():
    def step(x):
        if x[0, 0] > 0:
            if x[0, 1] > 0:
                return x * 2
            return x * 3
        return x * 5

    return Program(step, inputs(30))


@program(speculated=12, compiles=4)
def decision_in_a_short_loop():
    def step(x):
        y = x.sum(0)
        for column in range(2):
            if x[0, column] > 0:
                y = y * 2
            else:
                y = y + 1
        return y

    return Program(step, inputs(34))


@program(speculated=14, compiles=4)
def break_of_a_short_loop():
    def step(x):
        y = x.mean(0)
        for column in range(2):
            if x[0, column] > 0:
                break
            y = y * 2 + column
        else:
            y = y - 1
        return y

    return Program(step, inputs(34))


@program(speculated=14, compiles=3)
def continue_in_a_short_loop():
    def step(x):
        y = x.mean(0)
        for column in range(2):
            if column == 1 and x[0, 0] > 0:
                continue
            y = y * 2 + column
        return y

    return Program(step, inputs())


# -- with what else may change ---------------------------------------------------------------------------------------


@program(speculated=14, compiles=4)
def learning_rate_that_changes():
    def make(net, opt, state):
        def step(x):
            opt.zero_grad()
            loss = net(x).pow(2).mean()
            loss.backward()
            opt.step()
            opt.param_groups[0]["lr"] *= 0.9
            return loss.item()

        return step

    return training(make, optimizer=torch.optim.SGD, count=30)


@program(speculated=12, compiles=4)
def training_flag_beside_a_decision():
    net = Net(dropout=0.5)

    def step(x):
        return net(x).sum().detach()

    return Program(step, inputs(34), before={12: net.eval, 24: net.train, 28: net.eval}, state=net)


@program(speculated=12, compiles=4)
def curriculum_switch():
    state = {"step": 0, "hard": False}

    def step(x):
        state["step"] += 1
        loss = x.pow(2).mean() if state["hard"] else x.abs().mean()
        if state["step"] > 6 and loss < 10:
            state["hard"] = True
        return loss

    return Program(step, inputs(), state=state)


@program(speculated=18, compiles=3)
def batch_norm_in_one_arm():
    norm = nn.BatchNorm1d(5)

    def step(x):
        if x[0, 0] > 0:
            return norm(x).sum().detach()
        return x.sum()

    return Program(step, inputs(28), state=norm)


@program(speculated=14, compiles=3)
def gradients_of_inputs():
    def step(x):
        x = x.detach().requires_grad_()
        y = (x * 2).exp() if x[0, 0] > 0 else x.pow(3)
        y.sum().backward()
        return x.grad

    return Program(step, inputs())


@program(speculated=10, compiles=4)
def best_loss_so_far():
    best = {"loss": float("inf"), "at": None}

    def step(x):
        loss = x.pow(2).sum().item()
        if loss < best["loss"]:
            best["loss"] = loss
            best["at"] = x.clone()
        return loss

    return Program(step, inputs(), state=best)


def batches(sizes, scale=1.0):
    return [(x * scale,) for k, n in enumerate(sizes) for x in [torch.cat([inputs(k + 1)[k][0]] * 4)[:n]]]


@program(speculated=18, compiles=6)
def batch_sizes_that_change():
    def make(net, opt, state):
        def step(x):
            opt.zero_grad()
            loss = net(x).pow(2).sum() / x.shape[0]
            loss.backward()
            if x[0, 1] > 0:
                opt.step()
            return loss.detach()

        return step

    program = training(make, dropout=0.2)
    program.calls = batches(
        [4, 4, 4, 4, 7, 5, 4, 6, 3, 8, 4, 9, 5, 11, 4, 2, 3, 7, 8, 9, 10, 4, 4, 5, 6, 7, 8, 9, 3, 4]
    )
    return program


@program(speculated=18, compiles=4)
def last_batch_is_smaller():
    program = training(trained)
    program.calls = batches([8] * 5 + [3] + [8] * 5 + [3] + [8] * 5 + [3] + [8] * 5 + [3] + [8] * 5 + [3])
    return program


@program(speculated=18, compiles=3)
def allclose_decides():
    net = nn.Linear(5, 3)

    def step(x):
        y = net(x)
        loss = y.sum() if torch.allclose(x[:, :1], torch.ones(4, 1), atol=5.0) else y.pow(2).mean()
        net.zero_grad()
        loss.backward()
        return loss.detach()

    return Program(step, [(x * (1 + 9 * (k % 2)),) for k, (x,) in enumerate(inputs())], state=net)


@program(speculated=18, compiles=4)
def equal_decides():
    def step(x, y):
        same = x.equal(y)
        if torch.equal(x, y.clone()):
            return x * 2, same
        return (x[:3] - y[:3]).sum(), same

    calls = [(x, (x if signs(k) & 1 else x + 1)[: 3 + (signs(k) != 2)]) for k, (x,) in enumerate(inputs())]
    return Program(step, calls)


@program(speculated=18, compiles=2)
def approached_until_all_are_close():
    def step(x, y):
        while not x.allclose(y, rtol=0, atol=0.1):
            x = x + (y - x) * 0.5
        return x

    return Program(step, [(torch.zeros(3), torch.rand(3) * (1 + 3 * (k % 2))) for k in range(CALLS)])
