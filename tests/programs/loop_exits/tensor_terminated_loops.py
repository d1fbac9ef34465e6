"""Loops whose trip count a tensor decides: ``while error > tolerance``, ``if done: break``; with gradients."""

import math

import torch
import torch.nn.functional as F

from tests.programs.harness import Program, program

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

MANY = 16


def parameter(*shape, scale=0.3):
    return (torch.randn(*shape) * scale).requires_grad_()


class Net:
    def __init__(self):
        self.w, self.b = parameter(4, 4, scale=0.2), parameter(4)
        self.steps = 0
        self.opt = torch.optim.SGD([self.w, self.b], lr=0.01)

    def layer(self, h, x):
        return torch.tanh(h @ self.w + self.b + x)

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()


def positive(calls=MANY, low=1.5, high=6.0):
    """Vectors of ever other sizes: Newton's method needs more iterations for larger ones."""
    return [(torch.rand(4) + low * (high / low) ** (3 * n % calls / calls * 4),) for n in range(calls)]


def noise(calls=MANY, *scales):
    return [(torch.randn(2, 4) * (scales[n % len(scales)] if scales else 0.2 + n % 5),) for n in range(calls)]


# -- while ---------------------------------------------------------------------------------------------------------


def newton(a):
    x = torch.ones_like(a)
    while (x * x / a - 1).abs().max() > 1e-4:
        x = 0.5 * (x + a / x)
    return x


@program(speculated=12, compiles=1)
def while_until_convergence():
    return Program(newton, positive())


@program(speculated=12, compiles=1)
def while_with_item():
    def step(a):
        x = torch.ones_like(a)
        while (x * x / a - 1).abs().max().item() > 1e-4:
            x = 0.5 * (x + a / x)
        return x * 2

    return Program(step, positive())


@program(speculated=10, compiles=1)
def while_in_a_called_function_in_training():
    net = Net()

    def step(a):
        with torch.no_grad():
            scale = newton(a)
        return net.update(net.layer(a / scale, a).pow(2).sum())

    return Program(step, positive(), state=net)


@program(speculated=10, compiles=2)
def gradients_through_a_while():
    net = Net()

    def step(x):
        h = net.layer(x, x)
        while h.detach().norm() > 0.1:
            h = 0.5 * net.layer(h, x * 0) * h.abs().sqrt()
        return net.update(h.pow(2).sum())

    return Program(step, noise(), state=net)


@program(speculated=10, compiles=2)
def fixed_point_with_gradients():
    net = Net()

    def step(x):
        h = torch.zeros(2, 4)
        for _ in range(60):
            new = net.layer(h, x)
            error = (new - h).abs().max()
            h = new
            if error < 1e-3:
                break
        net.update(h.pow(2).sum())
        return h.detach(), error.detach()

    return Program(step, noise(), state=net)


@program(speculated=9, compiles=3)
def zero_iterations_now_and_then():
    def step(x):
        while x.abs().sum() > 1:
            x = x * 0.7
        return x + 1

    calls = noise(MANY + 4)
    for n in range(3, MANY + 4, 3):
        calls[n] = (torch.full((2, 4), 0.01),)
    return Program(step, calls)


@program(speculated=10, compiles=2)
def no_iterations_must_not_become_endless():
    """Had the graph gone round where eager does not, it would never come to an end."""

    def step(x):
        while x[0] != 0:
            x = x - 1
        return x * 2

    counts = [4, 5, 6, 7, 4, 9, 0, 5, 0, 0, 6, 30, 0, 4, 3, 5]
    return Program(step, [(torch.full((2,), float(n)),) for n in counts])


@program(speculated=9, compiles=4)
def few_iterations_after_many():
    def step(x):
        for _ in range(20):
            x = torch.sin(x) * 0.8
            if x.abs().max() < 0.2:
                break
        return x.exp()

    scales = [1.2, 1.0, 0.9, 1.1, 0.31, 0.31, 1.4, 0.24, 0.23, 1.0, 0.24, 1.2, 0.3, 0.23, 1.3, 0.6]
    return Program(step, [(torch.full((3,), scale),) for scale in scales])


@program(speculated=8, compiles=3)
def first_iteration_is_remembered():
    """What comes after the loop knows whether there was more than one iteration."""

    def step(x):
        first = True
        for _ in range(20):
            x = x * 0.5
            if x.max() < 0.1:
                break
            first = False
        return x - 1 if first else x + 1

    scales = [1.2, 4.0, 0.9, 2.1, 0.11, 0.12, 1.4, 0.15, 8.0, 0.1, 0.24, 1.2, 0.3, 0.13, 1.3, 0.6]
    return Program(step, [(torch.full((3,), scale),) for scale in scales])


# -- for and break -------------------------------------------------------------------------------------------------


@program(speculated=10, compiles=3)
def break_or_exhausted():
    net = Net()

    def step(x):
        h = x
        for _ in range(6):
            h = h + 0.5 * net.layer(h, x)
            if h.norm() > 7.0:
                break
        return net.update(F.mse_loss(h, x))

    return Program(step, noise(MANY, 0.5, 1.5, 1.0, 1.7, 0.9), state=net)


@program(speculated=9, compiles=2)
def for_else():
    def step(x):
        for _ in range(6):
            x = x * 0.5
            if x.norm() < 0.3:
                x = x + 1
                break
        else:
            x = x - 1
        return x

    return Program(step, noise(MANY, 0.9, 9.0, 2.0, 20.0, 0.7))


@program(speculated=9, compiles=3)
def work_after_the_question():
    def step(x):
        for _ in range(8):
            error = x.abs().max()
            if error < 0.2:
                break
            x = torch.sin(x) * 0.6
        return x, error

    return Program(step, noise(MANY, 0.9, 3.0, 1.0, 2.0, 0.7))


@program(speculated=9, compiles=3)
def while_true():
    def step(x):
        while True:
            x = x * 0.5
            if bool((x < 0.3).all()):
                break
        return x

    return Program(step, noise(MANY, 3.0, 9.0, 2.0, 20.0, 7.0))


@program(speculated=9, compiles=2)
def continue_the_other_way():
    def step(x):
        while True:
            x = x * 0.5
            if x.abs().max() > 0.3:
                continue
            return x * 3

    return Program(step, noise(MANY, 3.0, 9.0, 2.0, 20.0, 7.0))


@program(speculated=9, compiles=2)
def two_loops_one_after_the_other():
    def step(x):
        while x.abs().max() > 0.5:
            x = x * 0.6
        y = x + 2
        while y.min() < 9:
            y = y * 1.1
        return x, y

    return Program(step, noise(MANY, 3.0, 9.0, 5.0, 20.0, 7.0))


@program(speculated=7, compiles=4)
def a_loop_in_a_loop():
    def step(x):
        total = torch.zeros(())
        for row in x:
            while row.abs().max() > 0.5:
                row = row * 0.6
            total = total + row.sum()
        return total

    return Program(step, noise(MANY, 3.0, 9.0, 5.0, 20.0, 7.0))


# -- counts --------------------------------------------------------------------------------------------------------


@program(speculated=4, compiles=2)
def numbers_of_iterations_are_both_known():
    """One loop's count changes; what is returned depends on the other's."""

    def step(x, n, m):
        for i in range(n):
            x = torch.sin(x)
        for j in range(m):
            x = torch.cos(x)
        return x, j

    counts = [(5, 4), (6, 4), (7, 4), (8, 4), (5, 4), (9, 4), (6, 5), (5, 6), (5, 5), (4, 4)]
    return Program(step, [(torch.randn(3), n, m) for n, m in counts])


@program(speculated=10, compiles=2)
def a_count_is_returned():
    def step(a):
        x, steps = torch.ones_like(a), 0
        while (x * x / a - 1).abs().max() > 1e-4:
            x = 0.5 * (x + a / x)
            steps += 1
        return x, steps

    return Program(step, positive())


@program(speculated=9, compiles=2)
def counts_are_printed_and_stored():
    net = Net()

    def step(x):
        steps = 10
        for turn in range(40):
            x = x * 0.7
            steps += 2
            if x.norm() < 0.5:
                break
        print("rounds", turn, steps)
        net.steps = steps
        return x, [turn, "turns"]

    return Program(step, noise(), state=net)


@program(speculated=0, compiles=8)
def a_count_is_printed_and_kept():
    net = Net()

    def step(x):
        for turn in range(40):
            x = x * 0.7
            if x.norm() < 0.5:
                break
        print("rounds", turn)
        net.steps = turn
        return x / (turn + 1)

    return Program(step, noise(), state=net)


@program(speculated=0, compiles=8)
def a_count_decides():
    def step(x):
        steps = 0
        while x.norm() > 0.5:
            x = x * 0.7
            steps += 1
        return x if steps % 2 else -x

    return Program(step, noise())


@program(speculated=0, compiles=8)
def a_count_ends_the_loop():
    def step(x):
        steps = 0
        while x.norm() > 0.5 and steps < 12:
            x = x * 0.7
            steps += 1
        return x

    return Program(step, noise())


@program(speculated=0, compiles=8)
def iterations_know_their_number():
    def step(x):
        for turn in range(30):
            x = x * 0.9 if turn % 2 else x * 0.6
            if x.norm() < 0.5:
                break
        return x

    return Program(step, noise())


# -- what falls back ----------------------------------------------------------------------------------------------


@program(speculated=0, compiles=8)
def prints_in_iterations():
    def step(x):
        while x.norm() > 0.5:
            x = x * 0.7
            print("norm", x.norm().item())
        return x

    return Program(step, noise())


@program(speculated=0, compiles=8)
def errors_are_collected():
    def step(x):
        errors = []
        while x.norm() > 0.5:
            x = x * 0.7
            errors.append(x.norm())
        return x, torch.stack(errors)

    return Program(step, noise())


@program(speculated=0, compiles=8)
def a_carried_value_of_the_iteration_before_is_returned():
    def step(x):
        before = x
        while x.norm() > 0.5:
            before, x = x, x * 0.7
        return before

    return Program(step, noise())


@program(speculated=0, compiles=8)
def four_iterations_back():
    def step(x):
        a = b = c = d = x
        while x.norm() > 0.5:
            a, b, c, d, x = b, c, d, x, 0.4 * x + 0.1 * a
        return x

    return Program(step, noise())


@program(speculated=0, compiles=8)
def carried_from_iteration_to_iteration():
    """For four iterations ``a`` is what it was: nothing that an iteration takes shows that it will not stay so."""

    def step(x):
        a = b = c = d = torch.ones(4)
        while x.norm() > 0.5:
            y = 0.6 * x + 0.02 * a
            a, b, c, d, x = b, c, d, x, y
        return x

    return Program(step, noise(MANY, 0.45, 0.7, 0.6, 2.0, 0.8, 7.0))


@program(speculated=0, compiles=8)
def carried_in_a_tuple():
    def step(x, n):
        past = (torch.ones(4),) * 4
        for _ in range(n):
            x = 0.6 * x + 0.02 * past[-1]
            first, *others = past
            past = (x, first, *others[:-1])
        return x

    return Program(step, [(torch.randn(2, 4), n) for n in (3, 4, 3, 4, 3, 4, 9, 12, 5, 6, 7, 8)])


@program(speculated=0, compiles=12)
def carried_for_a_number_of_iterations():
    def step(x, n):
        a = b = c = d = torch.ones(4)
        for _ in range(n):
            y = 0.6 * x + 0.02 * a
            a, b, c, d, x = b, c, d, x, y
        return x

    return Program(step, [(torch.randn(2, 4), n) for n in (3, 4, 3, 4, 3, 4, 9, 12, 5, 6, 7, 8)])


@program(speculated=0, compiles=12)
def parity_of_a_number_of_iterations():
    def step(x, n):
        for turn in range(n):
            x = torch.tanh(x) + 0.1
        return x if turn % 2 else -x

    return Program(step, [(torch.randn(2, 4), n) for n in (4, 6, 4, 8, 6, 4, 5, 7, 8, 9, 6, 3)])


@program(speculated=0, compiles=8)
def parity_of_a_count():
    def step(x, scale):
        for turn in range(40):
            x = x * 0.5
            if x.max() < 1:
                break
        return x if turn % 2 else -x

    return Program(step, [(torch.full((3,), 1.5) * 2.0**n, 1) for n in (4, 6, 4, 8, 6, 4, 5, 7, 8, 9, 6, 3)])


@program(speculated=0, compiles=8)
def random_numbers_in_iterations():
    def step(x):
        while x.norm() > 0.5:
            x = x * 0.7 + 0.01 * torch.randn(4)
        return x

    return Program(step, noise())


@program(speculated=0, compiles=8)
def changed_in_place():
    def step(x):
        y = x.clone()
        while y.norm() > 0.5:
            y.mul_(0.7)
        return y

    return Program(step, noise())


@program(speculated=0, compiles=8)
def an_error_in_an_iteration():
    def step(x, table):
        index = torch.zeros((), dtype=torch.int64)
        while x.norm() > 0.5:
            index = index + 1
            x = x * table[index]
        return x

    table = torch.full((6,), 0.7)
    return Program(step, [(*call, table) for call in noise(MANY, 1.0, 1.5, 0.8, 1.2)])


# -- not a number --------------------------------------------------------------------------------------------------


@program(speculated=9, compiles=2)
def not_a_number_ends_the_loop():
    def step(x):
        while x.abs().max() > 0.5:
            x = x * 0.7
        return x + 1

    calls = noise(MANY, 3.0, 9.0, 5.0, 20.0, 7.0)
    for n in (5, 8, 9):
        calls[n] = (torch.full((2, 4), math.nan),)
    return Program(step, calls)


@program(speculated=9, compiles=3)
def not_a_number_on_the_way():
    def step(x, y):
        while x.max() < 50:
            x = x * 2
            y = y * x
            x = x + (y - y)
        return x

    calls = [(torch.rand(3) + 0.1, torch.rand(3)) for _ in range(MANY)]
    for n in (6, 9, 10):
        calls[n] = (calls[n][0], torch.full((3,), 1e38))
    return Program(step, calls)
