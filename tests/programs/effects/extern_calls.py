"""Extern calls: NumPy, files, clocks, outside iterators, libraries. Each is made once, in program order."""

import collections
import csv
import datetime
import io
import itertools
import json
import logging
import os
import queue
import random
import re
import tempfile
import threading
import time

import networkx
import numpy as np
import torch
from sklearn.metrics import accuracy_score
from torch import nn

from tests.programs.harness import CALLS, Program, program


def inputs(count=CALLS, *shape):
    return [(torch.randn(*(shape or (4, 5))),) for _ in range(count)]


def model_and_optimizer():
    model = nn.Linear(5, 3)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(model, opt, x):
    opt.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    opt.step()
    return loss


@program()
def file_log():
    log = io.StringIO()
    model, opt = model_and_optimizer()

    def step(x):
        loss = train(model, opt, x)
        log.write(f"{loss.item():.6f}\n")
        return len(log.getvalue())

    return Program(step, inputs(), state=(model, opt), between=lambda _: log.getvalue())


@program()
def file_opened_in_the_step():
    path = os.path.join(tempfile.gettempdir(), f"torchjanus-{os.getpid()}.txt")
    if os.path.exists(path):
        os.remove(path)

    def read():
        with open(path) as file:
            return file.read()

    def step(x):
        loss = x.pow(2).mean()
        with open(path, "a") as file:
            file.write(f"{loss.item():.4f}\n")
        return loss

    return Program(step, inputs(), between=lambda _: print(read()))


@program()
def csv_rows():
    text = io.StringIO()
    writer = csv.writer(text)

    def step(x, epoch):
        writer.writerow([epoch, x.mean().item()])
        return x * 2

    calls = [(torch.randn(3), k // 3) for k in range(CALLS)]
    return Program(step, calls, between=lambda _: print(text.getvalue()))


@program()
def lines_read_from_a_file():
    text = io.StringIO("".join(f"{k * 0.25}\n" for k in range(40)))

    def step(x):
        factor = float(text.readline())
        return x * factor

    return Program(step, inputs(), between=lambda _: print(text.tell()))


@program()
def clock_for_logging():
    seen = []

    def step(x):
        start = time.perf_counter()
        y = (x @ x.T).sum()
        seconds = time.perf_counter() - start
        seen.append(seconds >= 0.0)
        return y

    return Program(step, inputs(), state=seen)


@program()
def duration_is_measured_around_the_graph():
    spent = {"enough": 0, "n": 0}

    def step(x):
        start = time.perf_counter()
        time.sleep(0.001)
        for _ in range(20):
            x = torch.tanh(x) + 1
        took = time.perf_counter() - start
        spent["enough"] += took > 0.0
        spent["n"] += 1
        return x

    return Program(step, inputs(), state=spent)


@program()
def duration_that_decides():
    spent = {"slow": 0}

    def step(x):
        start = time.perf_counter()
        x = (x @ x.T).sum()
        if time.perf_counter() - start > 3600.0:
            spent["slow"] += 1
        return x * 2

    return Program(step, inputs(), state=spent)


@program()
def batches_from_an_outside_iterator():
    data = iter([torch.randn(4, 5) for _ in range(2 * CALLS)])
    model, opt = model_and_optimizer()

    def step():
        return train(model, opt, next(data)).detach()

    return Program(step, state=(model, opt), between=lambda _: print(data.__length_hint__()))


@program()
def generator_of_batches():
    def batches():
        for k in itertools.count():
            yield torch.full((4, 5), float(k)), k

    data = batches()
    model, opt = model_and_optimizer()

    def step():
        x, k = next(data)
        return train(model, opt, x / 10).item() + k

    return Program(step, state=(model, opt))


@program(speculated=5)
def iterator_restarted_when_it_ends():
    batches = [torch.randn(4, 5) for _ in range(4)]
    state = {"it": iter(batches), "epochs": 0}
    model, opt = model_and_optimizer()

    def step():
        try:
            x = next(state["it"])
        except StopIteration:
            state["it"] = iter(batches)
            state["epochs"] += 1
            x = next(state["it"])
        return train(model, opt, x).detach()

    return Program(step, ((),) * 14, state=(model, opt, state["epochs"]))


@program()
def next_with_a_default():
    data = iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0])

    def step(x):
        return x * next(data, 0.0)

    return Program(step, inputs())


@program()
def several_batches_a_step():
    data = iter([torch.randn(2, 5) for _ in range(3 * CALLS)])
    model, opt = model_and_optimizer()

    def step():
        opt.zero_grad()
        total = 0.0
        for x in itertools.islice(data, 2):
            loss = model(x).pow(2).mean() / 2
            loss.backward()
            total += loss.item()
        opt.step()
        return total

    return Program(step, state=(model, opt))


@program()
def zipped_with_an_outside_iterator():
    numbers = itertools.count(1)

    def step(x):
        total = torch.zeros(5)
        for row, weight in zip([x[0], x[1], x[2]], numbers):
            total = total + row * weight
        return total

    return Program(step, inputs())


@program()
def data_loader():
    data = torch.utils.data.TensorDataset(torch.randn(80, 5), torch.arange(80))
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    it = iter(loader)
    model, opt = model_and_optimizer()

    def step():
        x, y = next(it)
        loss = nn.functional.cross_entropy(model(x), y % 3)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, state=(model, opt))


@program()
def array_in():
    def step(a):
        return torch.from_numpy(a) * 2

    return Program(step, [(np.random.rand(3),) for _ in range(CALLS)])


@program()
def array_of_floats_becomes_a_tensor():
    def step(a):
        x = torch.tensor(a, dtype=torch.float32)
        return (x * x).sum()

    return Program(step, [(np.random.rand(3),) for _ in range(CALLS)])


@program()
def array_arithmetic_before_the_graph():
    def step(a, x):
        b = np.sin(a) * 2 + 1
        return x * torch.from_numpy(b[:3].copy()).float()

    return Program(step, [(np.random.rand(5), torch.randn(3)) for _ in range(CALLS)])


@program()
def loss_to_numpy():
    losses = []
    model, opt = model_and_optimizer()

    def step(x):
        loss = train(model, opt, x)
        losses.append(loss.detach().numpy().copy())
        return np.mean(losses[-1])

    return Program(step, inputs(), state=(model, opt), between=lambda _: print(losses))


@program()
def accuracy_by_numpy():
    model, opt = model_and_optimizer()

    def step(x, y):
        out = model(x)
        loss = nn.functional.cross_entropy(out, torch.from_numpy(y))
        opt.zero_grad()
        loss.backward()
        opt.step()
        predicted = out.detach().numpy().argmax(axis=1)
        return float((predicted == y).mean())

    calls = [(torch.randn(6, 5), np.random.randint(0, 3, 6)) for _ in range(CALLS)]
    return Program(step, calls, state=(model, opt))


@program()
def array_in_the_middle_of_the_graph():
    w = torch.randn(5, 5, requires_grad=True)

    def step(x):
        y = (x @ w).relu()
        scale = np.percentile(y.detach().numpy(), 75)
        loss = (y / float(scale + 1)).sum()
        loss.backward()
        with torch.no_grad():
            w.sub_(w.grad * 0.01)
        w.grad = None
        return loss.detach()

    return Program(step, inputs(), state=w)


@program()
def environment_step():
    rng = np.random.default_rng(3)
    policy = nn.Linear(4, 2)
    opt = torch.optim.SGD(policy.parameters(), lr=0.01)
    state = {"obs": rng.normal(size=4), "reward": 0.0}

    def step():
        obs = torch.as_tensor(state["obs"], dtype=torch.float32)
        probabilities = torch.softmax(policy(obs), 0)
        action = probabilities.argmax().item()
        after = 0.9 * state["obs"] + rng.normal(size=4) * (1 + action)
        reward = float(-np.abs(after).sum())
        state["obs"] = after
        state["reward"] += reward
        loss = -torch.log(probabilities.max()) * reward
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return Program(step, state=(policy, opt), between=lambda _: print(state))


@program()
def numpy_scalar_as_a_factor():
    rates = np.linspace(0.1, 1.0, CALLS)
    state = {"n": 0}

    def step(x):
        rate = rates[state["n"]]
        state["n"] += 1
        return x * rate

    return Program(step, inputs(), state=state)


@program()
def numpy_index():
    order = np.random.permutation(CALLS)
    table = torch.randn(CALLS, 3)

    def step(k):
        row = torch.from_numpy(order[k : k + 1])
        return table[row] * 2

    return Program(step, [(k,) for k in range(CALLS)])


@program(speculated=5)
def branch_on_an_array():
    def step(a, x):
        if a.sum() > 0:
            return x + 1
        return x - 1

    return Program(step, [(np.array([k % 3 - 1.0, 0.5]), torch.randn(3)) for k in range(14)])


@program()
def array_changed_in_place():
    history = np.zeros(CALLS)
    state = {"n": 0}

    def step(x):
        history[state["n"]] = x.mean().item()
        state["n"] += 1
        return x * 2

    return Program(step, inputs(), between=lambda _: print(history))


@program()
def running_array():
    total = np.zeros(5)

    def step(x):
        global_mean = x.mean(0).numpy()
        np.add(total, global_mean, out=total)
        return x - 1

    return Program(step, inputs(), between=lambda _: print(total))


@program()
def random_python():
    def step(x):
        return x * random.random()

    return Program(step, inputs())


@program()
def json_log():
    lines = io.StringIO()

    def step(x, k):
        record = {"step": k, "loss": x.mean().item(), "tags": ["a", str(k)]}
        lines.write(json.dumps(record) + "\n")
        return x + 1

    return Program(step, [(torch.randn(3), k) for k in range(CALLS)], between=lambda _: print(lines.getvalue()))


@program()
def regular_expression():
    def step(name, x):
        found = re.match(r"layer(\d+)", name)
        return x * int(found.group(1))

    return Program(step, [("layer12", torch.randn(3)) for _ in range(CALLS)])


@program()
def date_in_a_message():
    def step(x):
        day = datetime.date(2020, 1, 1) + datetime.timedelta(days=3)
        print(day, "%.3f" % x.mean().item())
        return x

    return Program(step, inputs())


@program()
def queue_between_threads():
    results = queue.Queue()

    def step(x):
        results.put(x.mean().item())
        return x * 2

    return Program(step, inputs(), between=lambda _: print(results.qsize(), results.get()))


@program()
def taken_from_a_queue():
    tasks = queue.Queue()
    for k in range(2 * CALLS):
        tasks.put(k * 0.5)

    def step(x):
        return x * tasks.get()

    return Program(step, inputs(), between=lambda _: print(tasks.qsize()))


@program()
def under_a_lock():
    lock = threading.Lock()
    state = {"n": 0}

    def step(x):
        with lock:
            state["n"] += 1
        return x * 2

    return Program(step, inputs(), state=state, between=lambda _: print(lock.locked()))


@program()
def prints_between_extern_calls():
    source = iter(range(100))

    def step(x):
        print("before")
        k = next(source)
        print("after", k)
        y = x * k
        print("done", y.sum().item())
        return y

    return Program(step, inputs())


@program()
def asked_after_a_print():
    answers = io.StringIO("".join(f"{k}\n" for k in range(50)))

    def step(x):
        print("how much?", end=" ")
        answer = answers.readline()
        print(answer.strip())
        return x + int(answer)

    return Program(step, inputs())


@program()
def environment_variables():
    os.environ["TORCHJANUS_TEST_SCALE"] = "2.5"

    def step(x):
        return x * float(os.environ.get("TORCHJANUS_TEST_SCALE", "1"))

    def change():
        os.environ["TORCHJANUS_TEST_SCALE"] = "3.5"

    return Program(step, inputs(14), before={7: change})


@program()
def sklearn_metric():
    model, opt = model_and_optimizer()

    def step(x, y):
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return accuracy_score(y.numpy(), out.detach().argmax(1).numpy())

    return Program(step, [(torch.randn(6, 5), torch.randint(0, 3, (6,))) for _ in range(CALLS)], state=(model, opt))


@program()
def deque_of_arrays():
    memory = collections.deque(maxlen=4)

    def step(x):
        memory.append(x.mean(0).numpy().copy())
        return x * len(memory)

    return Program(step, inputs(14), between=lambda _: print(list(memory)))


@program(speculated=5)
def assertion_between_extern_calls():
    source = iter(range(100))
    log = io.StringIO()

    def step(x):
        log.write("begin;")
        if x.sum() > 0:
            log.write(f"{next(source)};")
            return x * 2
        log.write("negative;")
        return x - next(source)

    calls = [(torch.full((3,), 1.0 if k % 5 else -1.0) * (k + 1),) for k in range(14)]
    return Program(step, calls, between=lambda _: print(log.getvalue()))


@program(refused="changes a list that it is given")
def list_shuffled_in_place():
    order = [1, 2, 3]

    def step(x):
        random.shuffle(order)
        return x * order[0]

    return Program(step, inputs(), state=order)


@program(refused="native code is given the function")
def callback_given_to_native_code():
    def step(x):
        found = re.sub("a", lambda match: "b", "banana")
        return x * len(found)

    return Program(step, inputs())


@program(refused="raised JSONDecodeError")
def error_of_native_code_is_caught():
    def step(x):
        try:
            k = json.loads("{")
        except ValueError:
            k = 2
        return x * k

    return Program(step, inputs())


# -- in code that autograd calls --------------------------------------------------------------------------------------


@program()
def hook_draws_a_number():
    weight = torch.randn(5, 3, requires_grad=True)

    def step(x):
        weight.grad = None
        y = (x @ weight).tanh()
        y.register_hook(lambda grad: grad * random.random())
        y.sum().backward()
        return weight.grad.clone()

    return Program(step, inputs(), state=weight)


@program()
def hook_decides_by_a_number():
    weight = torch.randn(5, 3, requires_grad=True)
    seen = []

    def step(x):
        def hook(grad):
            seen.append(grad.sum().item())
            return None if random.random() > 2 else grad * 2

        weight.grad = None
        y = (x @ weight).tanh()
        y.register_hook(hook)
        y.sum().backward()
        return weight.grad.clone()

    return Program(step, inputs(), state=(weight, seen))


class Jittered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.by = random.random()
        return x * ctx.by

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.by * random.random()


@program()
def function_draws_in_both_directions():
    weight = torch.randn(5, 3, requires_grad=True)

    def step(x):
        weight.grad = None
        Jittered.apply((x @ weight).tanh()).sum().backward()
        return weight.grad.clone()

    return Program(step, inputs(), state=weight)


@program()
def hook_clips_by_numpy():
    weight = torch.randn(5, 3, requires_grad=True)

    def step(x):
        weight.grad = None
        y = (x @ weight).tanh()
        y.register_hook(lambda grad: torch.from_numpy(np.clip(grad.detach().numpy(), -0.1, 0.1)))
        y.sum().backward()
        return weight.grad.clone()

    return Program(step, inputs(), state=weight)


@program()
def environment_asked_by_its_methods():
    def step(x):
        if os.environ.get("TORCHJANUS_NOT_SET", "1") == "1":
            x = x * 2
        if "TORCHJANUS_NOT_SET" in os.environ:
            x = x + 1
        return x

    return Program(step, inputs())


@program()
def weights_saved_now_and_then():
    model, opt = model_and_optimizer()
    out = io.StringIO()
    rows = csv.writer(out)
    count = [0]

    def step(x):
        count[0] += 1
        loss = train(model, opt, x)
        rows.writerow([count[0], f"{loss.item():.5f}"])
        if count[0] % 9 == 0:
            saved = io.BytesIO()
            torch.save(model.state_dict(), saved)
            print("saved", len(saved.getvalue()) > 0)
        return loss.detach()

    return Program(step, inputs(12, 4, 5), state=(model, opt, count))


@program()
def log_lines_bear_the_programs_line():
    text = io.StringIO()
    log = logging.getLogger("program.lines")
    log.propagate = False
    log.handlers[:] = [logging.StreamHandler(text)]
    log.handlers[0].setFormatter(logging.Formatter("%(filename)s:%(lineno)d:%(funcName)s %(message)s"))
    adapter = logging.LoggerAdapter(log, {})

    def tell(value):
        log.warning("value %.4f", value)

    def step(x):
        log.warning("begin")
        tell(x.sum().item())
        adapter.warning("through an adapter")
        return x * 2

    return Program(step, inputs(), between=lambda _: print(text.getvalue()))


@program(speculated=14, compiles=3)
def names_from_an_iterator_as_new_keys():
    names = (f"epoch {k // 3}" for k in itertools.count())
    totals = {"steps": 0}

    def step(x):
        name = next(names)
        totals["steps"] += 1
        if name not in totals:
            totals[name] = totals["steps"]
            print("begins", name)
        return x * totals["steps"]

    return Program(step, inputs(20), state=totals)


@program()
def a_callable_that_has_no_hash():
    """``edges`` is an object with ``__call__`` and ``__eq__``, so it is no key of a table."""
    graph = networkx.path_graph(4)

    def step(x):
        total = 0.5 if x.sum() < 100 else 1.5
        for _, _, data in graph.edges(data=True):
            total += data.get("weight", 1.0)
        return x * total

    return Program(step, inputs(14), before={7: lambda: graph.add_edge(0, 3, weight=2.5)})
