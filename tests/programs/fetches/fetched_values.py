"""Tensors turned into Python values: numbers, truth values, lists and texts, in mid-step and at its end."""

import logging

import torch
from torch import nn
from torch.nn import functional as F

from tests.programs.harness import CALLS, Program, program


def inputs(count=CALLS, *shape):
    return [(torch.randn(*(shape or (4, 5))),) for _ in range(count)]


# -- texts -----------------------------------------------------------------------------------------------------------


@program()
def print_a_vector():
    def step(x):
        y = x * 2
        print(y)
        return y + 1

    return Program(step, inputs())


@program()
def print_scalars_and_shapes():
    def step(x):
        total = x.sum()
        print(total, x.shape, x.dtype, "and", x[0], sep=" | ")
        return total

    return Program(step, inputs())


@program()
def text_before_a_change_in_place():
    state = torch.zeros(3)

    def step(x):
        before = str(state)
        state.add_(x[0, :3])
        between = f"{state}"
        state.mul_(0.5)
        return before, between, repr(state)

    return Program(step, inputs(), state=state)


@program()
def print_between_changes_in_place():
    def step(x):
        y = x.clone()
        print(y)
        y.zero_()
        print(y)
        y[0] = x[1]
        print("after:", y, flush=True)
        return y

    return Program(step, inputs())


@program()
def format_of_tensors():
    def step(x):
        loss = x.pow(2).mean()
        text = f"loss {loss:.4f} rows {x.sum(1)} {loss!r} {loss!s:>40}"
        other = "{} and {:.2f}".format(loss, loss)
        third = "%s %r %.3f" % (x[0], loss, loss)
        return text, other, third

    return Program(step, inputs())


@program()
def percent_format_of_one_tensor():
    def step(x):
        return "%s" % x.sum(), "%s!" % (x[0],), "%.3e" % x.mean()

    return Program(step, inputs())


@program()
def logging_of_tensors():
    log = logging.getLogger("program")

    def step(x):
        y = x.abs()
        log.info("values %s", y)
        log.info("%s rows of %s", y.shape[0], y.sum(0))
        log.debug("not shown %s", y)
        y.neg_()
        return y

    return Program(step, inputs())


@program()
def print_of_containers():
    def step(x):
        metrics = {"mean": x.mean(), "max": x.max(), "rows": [x[0], x[1]]}
        print(metrics)
        print([x[2], 3, "a"], (x.sum(),))
        return metrics["mean"]

    return Program(step, inputs())


@program()
def text_of_containers():
    def step(x):
        pair = (x.sum(), [x[0]])
        return str(pair), repr({"a": x[1]}), f"{[x.mean()]}"

    return Program(step, inputs())


@program()
def print_with_gradients():
    model = nn.Linear(5, 3)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        out = model(x)
        loss = out.pow(2).mean()
        print(loss)
        print(f"{out}")
        opt.zero_grad()
        loss.backward()
        print(model.weight.grad, loss, sep="\n")
        opt.step()
        print(model.bias)
        return loss.item()

    return Program(step, inputs(), state=model)


@program()
def text_of_views_and_kinds_of_history():
    w = torch.randn(5, requires_grad=True)

    def step(x):
        y = x * w
        texts = [str(y[0]), str(y.relu()), str(y.t()), str(y.detach()), str(y.sum().sqrt()), repr(w)]
        with torch.no_grad():
            texts.append(str(y * 2))
        return texts

    return Program(step, inputs(), state=w)


@program()
def text_of_other_types():
    def step(x):
        return [
            str((x > 0)),
            str(x.argmax(1)),
            str(x.double()),
            str(x.to(torch.bfloat16)),
            str(x[:0]),
            str(torch.complex(x[0], x[1])),
            f"{(x > 0).any()} {x.argmax():03d}",
        ]

    return Program(step, inputs())


@program()
def text_of_a_large_tensor():
    def step(x):
        y = x * 3
        print(y)
        return y.sum()

    return Program(step, inputs(CALLS, 40, 40))


@program()
def text_of_special_values():
    def step(x):
        y = torch.where(x > 1, torch.inf, torch.where(x < -1, torch.nan, x * 1e6))
        return str(y), f"{y[0]}"

    return Program(step, inputs())


@program(speculated=4)
def print_options_changed_between_calls():
    def step(x):
        print(x * 1)
        return x.sum()

    def back():
        torch.set_printoptions(precision=2)

    def reset():
        torch.set_printoptions(profile="default")

    return Program(step, inputs(), before={5: back, 8: reset})


@program()
def text_stored_in_state():
    history = []

    def step(x):
        history.append(f"mean {x.mean()}")
        return len(history)

    return Program(step, inputs(), state=history)


@program()
def text_joined_and_cut():
    def step(x):
        text = "; ".join(f"{v:.2f}" for v in x[0])
        return text, "x=" + str(x.sum())

    return Program(step, inputs())


@program(refused="the text of a tensor decides")
def text_that_decides():
    def step(x):
        text = str(x.sum())
        if len(text) > 14:
            return "long"
        return text

    return Program(step, inputs())


@program()
def print_of_the_input_and_of_parameters():
    model = nn.Linear(3, 2)

    def step(x):
        print(x, model.weight)
        with torch.no_grad():
            model.weight.mul_(0.9)
        print(model.weight)
        return model.weight.sum().item()

    return Program(step, inputs(CALLS, 2, 3), state=model)


@program()
def print_to_standard_error_and_end():
    import sys

    def step(x):
        print("x:", x.mean(), end=";", file=sys.stderr)
        print(end="")
        return x

    return Program(step, inputs())


# -- numbers and truths ----------------------------------------------------------------------------------------------


@program()
def numbers_of_all_kinds():
    def step(x):
        n = (x > 0).sum()
        return x.mean().item(), float(x.sum()), int(n), int(x.sum()), n.item() + 1, round(x.max().item(), 2)

    return Program(step, inputs())


@program()
def numbers_before_and_after_changes():
    counter = torch.zeros(1)

    def step(x):
        a = counter.item()
        counter.add_(x.mean())
        b = counter.item()
        counter.mul_(2)
        return a, b, float(counter), counter.tolist()

    return Program(step, inputs(), state=counter)


@program()
def truth_that_stays():
    def step(x):
        if x.isfinite().all():
            return x.sum()
        return x.new_zeros(())

    return Program(step, inputs())


@program(speculated=3)
def truth_that_changes_now_and_then():
    def step(x):
        if bool((x.sum() > 100)):
            return x * 2
        return x.sum()

    calls = inputs()
    calls[5] = (torch.full((4, 5), 50.0),)
    return Program(step, calls)


@program()
def truth_returned():
    def step(x):
        return bool((x.abs().sum() > 0)), (x.abs() >= 0).all().item(), not x.isnan().any()

    return Program(step, inputs())


@program(speculated=0)
def list_of_truths():
    def step(x):
        return (x > 0).tolist(), (x[0] > 0).any()

    return Program(step, inputs())


@program(speculated=3)
def list_of_truths_decides():
    def step(x):
        total = x.new_zeros(5)
        for row, wanted in zip(x, (x.sum(1) > -100).tolist()):
            if wanted:
                total = total + row
        return total

    calls = inputs()
    calls[5][0][2] = -60.0
    return Program(step, calls)


@program()
def list_decides():
    def step(x, lengths):
        parts = [x[i, :n] for i, n in enumerate(lengths.tolist())]
        return [part.sum() for part in parts]

    return Program(step, [(torch.randn(3, 5), torch.tensor([2, 3, 5])) for _ in range(CALLS)])


@program()
def list_elements_in_arithmetic():
    def step(x):
        a, b = x.sum(1)[:2].tolist()
        return a + b, max(a, b), x * 2

    return Program(step, inputs())


@program()
def nested_lists_stored():
    log = {}

    def step(x):
        log["last"] = x.tolist()
        log["rows"] = [row.mean().item() for row in x]
        return sum(log["rows"])

    return Program(step, inputs(), state=log)


@program()
def item_used_later_in_the_graph():
    def step(x):
        scale = 1.0 / (x.norm().item() + 1e-6)
        return x * scale

    return Program(step, inputs())


@program()
def item_as_a_size():
    def step(x):
        n = int((x > -100).sum().item())
        return torch.zeros(n)

    return Program(step, inputs())


@program()
def bool_item_returned():
    def step(x):
        good = (x * 0 == 0).all().item()
        return good, x.sum()

    return Program(step, inputs())


@program(speculated=0)
def item_of_many_elements():
    def step(x):
        try:
            x.item()
        except RuntimeError as error:
            return str(error)

    return Program(step, inputs())


@program()
def meters_of_an_epoch():
    class Meter:
        def __init__(self):
            self.total, self.count = 0.0, 0

        def update(self, value, n):
            self.total += value * n
            self.count += n

        @property
        def average(self):
            return self.total / max(self.count, 1)

    model = nn.Linear(5, 3)
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    meter = Meter()

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        meter.update(loss.item(), x.size(0))
        print(f"loss {loss:.3f} average {meter.average:.3f} accuracy {(model(x).argmax(1) == y).float().mean()}")
        return meter.average

    return Program(step, [(torch.randn(4, 5), torch.randint(3, (4,))) for _ in range(CALLS)], state=meter)


@program()
def complex_numbers():
    def step(x):
        z = torch.complex(x[0], x[1])
        return z.abs().sum().item(), torch.view_as_real(z).tolist()

    return Program(step, inputs())


@program(refused="item() gives a complex")
def item_of_a_complex_number():
    def step(x):
        z = torch.complex(x[0, 0], x[1, 1])
        return z.item(), x

    return Program(step, inputs())


@program()
def index_of_an_item():
    names = ["a", "b", "c", "d"]

    def step(x):
        best = int((x * 0 + torch.arange(5.0)).argmax(1)[0]) - 2
        return names[best]

    return Program(step, inputs())


@program()
def fetched_number_times_one_that_changes():
    state = {"k": 0.1}

    def step(x):
        scale = x.sum().item() * state["k"]
        state["k"] += 0.1
        return x * scale

    return Program(step, inputs(), state=state)
