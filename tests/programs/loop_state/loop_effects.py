"""Loops of changing trip counts that write, print, call and collect: the host makes the effects in order."""

import collections
import io
import random
import time

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

LENGTHS = (5, 7, 5, 9, 12, 30, 6, 4, 17, 8, 21, 5)
A = torch.eye(3) * 0.9


class Holder:
    """Something with attributes."""

    def __init__(self, **values):
        self.__dict__.update(values)


def rows(*more, lengths=LENGTHS):
    return [(torch.randn(n, 3), *(torch.randn(n, 3) for _ in more)) for n in lengths]


def numbered(lengths=LENGTHS):
    return [(torch.randn(3), n) for n in lengths]


# -- one graph for all trip counts --------------------------------------------------------------------------------


@program(speculated=9, compiles=1)
def numbers_appended():
    history = []

    def step(xs):
        h = torch.zeros(3)
        for x in xs:
            h = torch.tanh(A @ h + x)
            history.append(h.sum().item())
        return h

    return Program(step, rows(), state=history)


@program(speculated=9, compiles=1)
def tensors_appended():
    history = []

    def step(xs):
        h = torch.zeros(3)
        for x in xs:
            h = torch.tanh(A @ h + x)
            history.append(h * 2)
        return h

    return Program(step, rows(), state=history)


@program(speculated=9, compiles=1)
def a_list_of_the_call_is_returned():
    def step(xs):
        h, outs = torch.zeros(3), []
        for x in xs:
            h = torch.tanh(A @ h + x)
            outs.append(h)
        return outs

    return Program(step, rows())


@program(speculated=9, compiles=1)
def the_last_one_is_in_the_list():
    def step(xs):
        h, outs = torch.zeros(3), [xs]
        for x in xs:
            h = torch.tanh(A @ h + x)
            outs.append(h)
        return tuple(outs), h

    return Program(step, rows(), state=None)


@program(speculated=9, compiles=1)
def prints_of_what_iterations_compute():
    def step(xs):
        h = torch.zeros(3)
        print("begin")
        for x in xs:
            h = torch.tanh(A @ h + x)
            print("sum", h.sum().item(), "tensor", h)
        print("end", h.sum().item())
        return h

    return Program(step, rows())


@program(speculated=9, compiles=1)
def prints_of_the_iteration():
    def step(x, n):
        for i in range(n):
            x = torch.sin(x)
            print(i, x.sum().item(), f"{i:>3}/{n}: {x.mean().item():.3f}")
        return x

    return Program(step, numbered())


@program(speculated=9, compiles=1)
def enumerated():
    def step(xs):
        h = torch.zeros(3)
        for i, x in enumerate(xs, 1):
            h = torch.tanh(A @ h + x)
            print(f"round {i}: {h.sum().item():.4f}")
        return h

    return Program(step, rows())


@program(speculated=9, compiles=1)
def zipped_and_enumerated():
    def step(xs, ys):
        h, rest = torch.zeros(3), []
        for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
            h = torch.tanh(A @ h + x)
            rest.append((i, (h - y).abs().max().item()))
        return h, rest

    return Program(step, rows("ys"))


@program(speculated=8, compiles=1)
def a_training_step_that_logs():
    net = nn.RNNCell(3, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    history = []

    def step(xs, ys):
        h, total = torch.zeros(1, 3), 0
        for i, (x, y) in enumerate(zip(xs, ys)):
            h = net(x[None], h)
            loss = F.mse_loss(h[0], y)
            total = total + loss
            history.append(h.detach().clone())
            print(f"{i}: {loss.item():.5f}")
        opt.zero_grad()
        total.backward()
        opt.step()
        return total.item()

    return Program(step, rows("ys"), state=(net, history))


@program(speculated=8, compiles=1)
def a_sum_made_in_place():
    net = nn.RNNCell(3, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(xs):
        h, total = torch.zeros(1, 3), 0
        for x in xs:
            h = net(x[None], h)
            total += h.pow(2).sum()
        opt.zero_grad()
        total.backward()
        opt.step()
        return total.detach()

    return Program(step, rows(), state=net)


@program(speculated=9, compiles=1)
def a_sum_that_begins_with_a_tensor():
    w = torch.randn(3, 3, requires_grad=True)

    def step(xs):
        total = torch.zeros(())
        for x in xs:
            total += torch.tanh(x @ w).sum()
        total.backward()
        g, w.grad = w.grad, None
        return g, total.item()

    return Program(step, rows(), state=w)


@program(speculated=8, compiles=1)
def numbers_carried():
    def step(xs):
        h, total, mean, best, hits = torch.zeros(3), 0.0, 0.0, -1e9, 0
        for x in xs:
            h = torch.tanh(A @ h + x)
            total += h.sum().item()
            mean = 0.9 * mean + 0.1 * h.sum().item()
            best = max(best, h.max().item())
            hits += int(h.argmax())
        return total, mean, best, hits

    return Program(step, rows())


@program(speculated=9, compiles=1)
def totals_so_far():
    totals = []

    def step(xs):
        h, total = torch.zeros(3), 0.0
        for x in xs:
            h = torch.tanh(A @ h + x)
            total += h.sum().item()
            totals.append(total)
            print(total * 2, f"{total:.2f}")
        return total

    return Program(step, rows(), state=totals)


@program(speculated=9, compiles=1)
def attributes_and_items_are_written():
    holder, log = Holder(last=None, loss=0.0), {}

    def step(x, n):
        for i in range(n):
            x = torch.sin(x)
            holder.last = x.cos()
            holder.loss = x.sum().item()
            log[i] = x.sum().item()
            log["latest"] = i
        return x

    return Program(step, numbered(), state=(holder, log))


@program(speculated=9, compiles=1)
def records_are_collected():
    records = []

    def step(xs):
        h = torch.zeros(3)
        for i, x in enumerate(xs):
            h = torch.tanh(A @ h + x)
            records.append({"round": i, "loss": h.sum().item(), "state": (h + 1, [i, h.tolist()])})
        return len(xs)

    return Program(step, rows(), state=records)


@program(speculated=9, compiles=1)
def a_record_is_held_twice():
    records, latest = [], Holder(record=None)

    def step(xs):
        h = torch.zeros(3)
        for x in xs:
            h = torch.tanh(A @ h + x)
            record = {"loss": h.sum().item(), "state": h + 1}
            records.append(record)
            latest.record = record
        return h

    return Program(step, rows(), state=(records, latest))


@program(speculated=9, compiles=1)
def the_latest_are_kept():
    recent = collections.deque(maxlen=4)

    def step(xs):
        h = torch.zeros(3)
        for x in xs:
            h = torch.tanh(A @ h + x)
            recent.append(h.sum().item())
        return h

    return Program(step, rows(), state=recent)


@program(speculated=9, compiles=1)
def writes_to_a_file():
    file = io.StringIO()

    def step(xs):
        h = torch.zeros(3)
        for x in xs:
            h = torch.tanh(A @ h + x)
            file.write(f"{h.sum().item():.6f}\n")
            print(h.max().item(), file=file)
        return h

    return Program(step, rows(), state=file)


@program(speculated=9, compiles=1)
def random_numbers_and_prints():
    def step(xs):
        h = torch.zeros(3)
        for x in xs:
            h = F.dropout(torch.tanh(A @ h + x), 0.4)
            print(h.sum().item())
        return h

    return Program(step, rows())


@program(speculated=9, compiles=1)
def a_clock_before_the_loop():
    def step(xs):
        time.perf_counter()
        start = random.random()
        h = torch.zeros(3)
        for x in xs:
            h = torch.tanh(A @ h + x)
            print(h.sum().item())
        print("after", start)
        return h

    return Program(step, rows())


@program(speculated=9, compiles=1)
def in_a_method_that_is_called():
    class Model:
        def __init__(self):
            self.w = torch.randn(3, 3, requires_grad=True)
            self.history = []

        def forward(self, xs):
            h = torch.zeros(3)
            for x in xs:
                h = torch.tanh(self.w @ h + x)
                self.log(h)
            return h

        def log(self, h):
            self.history.append(h.norm().item())

    model = Model()

    def step(xs):
        model.forward(xs).sum().backward()
        g, model.w.grad = model.w.grad, None
        return g

    return Program(step, rows(), state=model)


@program(speculated=9, compiles=1)
def two_loops_that_print():
    def step(xs):
        h = torch.zeros(3)
        for x in xs:
            h = torch.tanh(A @ h + x)
            print("up", h.sum().item())
        print("between")
        for i, x in enumerate(xs):
            h = torch.sin(A @ h - x)
            print("down", i, h.sum().item())
        print("after")
        return h

    return Program(step, rows())


@program(speculated=9, compiles=1)
def a_short_loop_within():
    def step(xs):
        h = torch.zeros(3)
        for x in xs:
            for k in range(2):
                h = torch.tanh(A @ h + x)
                print(k, h.sum().item())
        return h

    return Program(step, rows())


@program(speculated=9, compiles=1)
def rows_by_a_number():
    def step(xs, n):
        h, out = torch.zeros(3), []
        for t in range(n):
            h = torch.tanh(A @ h + xs[t])
            out.append(h.sum().item())
        return out

    return Program(step, [(torch.randn(30, 3), n) for n in LENGTHS])


@program(speculated=9, compiles=1)
def many_iterations():
    def step(x, n):
        losses = []
        for i in range(n):
            x = torch.sin(x)
            losses.append((i, x.sum().item()))
        return losses

    return Program(step, numbered((20, 300, 40, 500, 250, 19, 100, 64, 33, 45, 80, 10)))


# -- where it is not known what other trip counts would do --------------------------------------------------------


@program(speculated=0, compiles=6)
def what_is_appended_shares_memory():
    history = []

    def step(xs):
        h = torch.zeros(3)
        for x in xs:
            h = torch.tanh(A @ h + x)
            history.append(h.detach())
        return h

    return Program(step, rows(), state=history)


@program(speculated=0, compiles=6)
def the_same_tensor_is_appended():
    def step(xs):
        total, sums = torch.zeros(3), []
        for x in xs:
            total += x
            sums.append(total)
        return sums

    return Program(step, rows())


@program(speculated=0, compiles=6)
def what_is_appended_has_a_history():
    w, history = torch.randn(3, 3, requires_grad=True), []

    def step(xs):
        h = torch.zeros(3)
        for x in xs:
            h = torch.tanh(w @ h + x)
            history.append(h)
        h.sum().backward()
        g, w.grad = w.grad, None
        return g

    return Program(step, rows(), state=(w, history))


@program(speculated=0, compiles=6)
def keys_made_of_the_iteration():
    log = {}

    def step(x, n):
        for i in range(n):
            x = torch.sin(x)
            log[f"round {i}"] = x.sum().item()
        return x

    return Program(step, numbered(), state=log)


@program(speculated=0, compiles=6)
def how_many_there_are_by_now():
    history = []

    def step(xs):
        h = torch.zeros(3)
        for x in xs:
            h = torch.tanh(A @ h + x)
            history.append(h.sum().item())
            print(len(history))
        return h if len(history) < 60 else h * 2

    return Program(step, rows(), state=history)


@program(speculated=0, compiles=6)
def a_decision_by_the_iteration():
    def step(x, n):
        for i in range(n):
            x = torch.sin(x)
            if f"{i}" == "6":
                x = x * 2
            print(i, x.sum().item())
        return x

    return Program(step, numbered())


@program(speculated=0, compiles=6)
def random_numbers_of_the_host_in_iterations():
    def step(xs):
        h = torch.zeros(3)
        for x in xs:
            h = torch.tanh(A @ h + x) * random.random()
            print(h.sum().item())
        return h

    return Program(step, rows())


@program(speculated=0, compiles=6)
def a_result_of_native_code_after_prints():
    def step(xs):
        h = torch.zeros(3)
        for x in xs:
            h = torch.tanh(A @ h + x)
            print(h.sum().item())
        return h * random.random()

    return Program(step, rows())


@program(speculated=0, compiles=6)
def zips_of_unequal_lengths():
    def step(xs, ys):
        h = torch.zeros(3)
        for x, y in zip(xs, ys):
            h = torch.tanh(A @ h + x - y)
            print(h.sum().item())
        return h

    lengths = ((5, 9), (6, 9), (7, 9), (12, 9), (9, 9), (9, 7), (9, 6), (9, 20), (4, 9), (30, 9))
    return Program(step, [(torch.randn(a, 3), torch.randn(b, 3)) for a, b in lengths])


@program(speculated=0, compiles=6)
def a_value_before_it_is_changed():
    def step(xs):
        total = torch.zeros(3)
        view = total[:2]
        for x in xs:
            total += x
            print(total.sum().item(), view.sum().item())
        return total

    return Program(step, rows())
