"""Sizes that change from call to call: batches, sequences, both, and what programs compute from them in Python."""

import math
import random

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 12  # Each takes a second or two, or is much like the others.

BATCHES = (4, 3, 5, 7, 2, 6, 9, 3, 8, 4)


def batches(*shape, sizes=BATCHES):
    return [(torch.randn(size, *(shape or (5,))),) for size in sizes]


def labelled(sizes=BATCHES):
    return [(torch.randn(size, 5), torch.randint(3, (size,))) for size in sizes]


class Trainer:
    def __init__(self, model=None, optimizer=None):
        self.model = model or nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))
        self.opt = (optimizer or (lambda p: torch.optim.SGD(p, lr=0.1)))(self.model.parameters())

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()


@program(compiles=1)
def batch_changes():
    t = Trainer()

    def step(x, y):
        return t.update(F.cross_entropy(t.model(x), y))

    return Program(step, labelled(), state=t)


@program(compiles=1)
def batch_changes_with_momentum():
    t = Trainer(optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))

    def step(x, y):
        return t.update(F.cross_entropy(t.model(x), y))

    return Program(step, labelled(sizes=(4, *BATCHES)), state=t)


@program(compiles=1)
def batch_changes_with_adam():
    t = Trainer(optimizer=lambda p: torch.optim.Adam(p, lr=0.01))

    def step(x, y):
        return t.update(F.cross_entropy(t.model(x), y))

    return Program(step, labelled(sizes=(4, *BATCHES)), state=t)


@program(speculated=12)
def last_batch_is_partial():
    t = Trainer()

    def step(x, y):
        return t.update(F.cross_entropy(t.model(x), y))

    return Program(step, labelled(sizes=(4, 4, 4, 4, 3) * 4), state=t)


@program(speculated=7, compiles=3)
def sizes_zero_and_one():
    t = Trainer()

    def step(x):
        return t.update(t.model(x).pow(2).sum() / 7), x.sum(0)

    return Program(step, batches(sizes=(4, 3, 1, 5, 0, 1, 6, 0, 1, 0, 1, 2, 0, 7)), state=t)


@program(compiles=1)
def two_inputs_change_together():
    def step(x, y):
        return x @ y.t(), (x * y).sum(1)

    return Program(step, [(torch.randn(n, 4), torch.randn(n, 4)) for n in BATCHES])


@program(compiles=1)
def two_inputs_change_alone():
    def step(x, y):
        return x.sum(0) + y.sum(0), x @ y.t()

    return Program(step, [(torch.randn(n, 4), torch.randn(m, 4)) for n, m in zip(BATCHES, BATCHES[::-1], strict=True)])


@program(speculated=5, compiles=2)
def together_and_then_alone():
    def step(x, y):
        return torch.cat([x, y]).sum(0)

    sizes = [(4, 4), (3, 3), (5, 5), (6, 6), (6, 4), (7, 3), (3, 7), (5, 5), (2, 8)]
    return Program(step, [(torch.randn(n, 4), torch.randn(m, 4)) for n, m in sizes])


@program(compiles=1)
def batch_and_sequence_change():
    embed, gate = nn.Embedding(10, 6), nn.Linear(6, 6)
    opt = torch.optim.SGD([*embed.parameters(), *gate.parameters()], lr=0.1)

    def step(tokens):
        h = gate(embed(tokens))
        b, t, c = h.shape
        loss = (h.view(b * t, c).relu().sum() + h.mean(dim=1).pow(2).sum()) / (b * t)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    sizes = zip(BATCHES, (7, 5, 6, 9, 4, 11, 3, 8, 5, 10), strict=True)
    return Program(step, [(torch.randint(10, size),) for size in sizes], state=(embed, gate))


@program(compiles=1)
def attention():
    qkv, out = nn.Linear(8, 24), nn.Linear(8, 8)
    opt = torch.optim.SGD([*qkv.parameters(), *out.parameters()], lr=0.1)

    def step(x):
        b, t, c = x.size()
        q, k, v = qkv(x).view(b, t, 3, 2, c // 6 * 2 + 2).permute(2, 0, 3, 1, 4)
        score = q @ k.transpose(-2, -1) / math.sqrt(4)
        mask = torch.triu(torch.ones(t, t, dtype=torch.bool), diagonal=1)
        weight = score.masked_fill(mask, float("-inf")).softmax(-1)
        h = (weight @ v).transpose(1, 2).reshape(b, t, -1)
        loss = out(h).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    sizes = zip(BATCHES, (7, 5, 6, 9, 4, 11, 3, 8, 5, 10), strict=True)
    return Program(step, [(torch.randn(*size, 8),) for size in sizes], state=(qkv, out))


@program(compiles=1)
def scaled_dot_product_attention():
    proj = nn.Linear(8, 8)
    opt = torch.optim.SGD(proj.parameters(), lr=0.1)

    def step(x):
        h = proj(x).unflatten(-1, (2, 4)).transpose(1, 2)
        loss = F.scaled_dot_product_attention(h, h, h).flatten(2).pow(2).sum() / x.shape[1]
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return Program(step, [(torch.randn(3, t, 8),) for t in BATCHES], state=proj)


@program(compiles=1)
def convolutions():
    t = Trainer(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)))

    def step(x):
        return t.update(t.model(x).pow(2).mean())

    return Program(step, batches(1, 8, 8), state=t)


@program(compiles=1)
def batch_norm():
    t = Trainer(nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)))

    def step(x):
        return t.update(t.model(x).pow(2).mean())

    return Program(step, batches(), state=t)


@program(compiles=1)
def dropout():
    t = Trainer(nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.4), nn.Linear(6, 3)))

    def step(x):
        return t.update(t.model(x).pow(2).mean())

    return Program(step, batches(), state=t)


@program(compiles=1)
def layer_norm_and_gelu():
    t = Trainer(nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 3)))

    def step(x):
        return t.update(t.model(x).pow(2).mean())

    return Program(step, batches(4, 5), state=t)


@program(compiles=1)
def view_by_batch():
    def step(x):
        b = x.shape[0]
        return x.view(b, -1), x.reshape(b * 2, -1), x.flatten(1), x.view(b, 2, -1).transpose(1, 2)

    return Program(step, batches(4, 6))


@program(compiles=1)
def cat_stack_and_split():
    def step(x):
        n = x.size(0)
        both = torch.cat([x, x * 2])
        one, other = both.split(n)
        return torch.stack([one, other]), both.split([n, n])[1] + 1, both[:n] * 2, both[n:], both.narrow(0, 1, n).sum()

    return Program(step, batches())


@program(compiles=1)
def made_by_size():
    def step(x):
        b, c = x.shape
        ones = torch.ones(b, 1)
        index = torch.arange(b)
        return torch.zeros(b, 8), x + ones, torch.full((b,), 2.5), index * 2, x.new_zeros(c, b), torch.zeros_like(x)

    return Program(step, batches())


@program(compiles=1)
def drawn_by_size():
    def step(x):
        noise = torch.randn(x.shape) + torch.rand(x.size(0), 1)
        return x + noise, torch.randperm(len(x)), torch.randint(0, 5, (x.shape[0],)), torch.randn_like(x)

    return Program(step, batches())


@program(compiles=1)
def arithmetic_with_sizes():
    def step(x):
        b = x.shape[0]
        return x * b, x / b, x.sum() * (1.0 / b), x.sum() / x.numel(), x + (b // 2) * 3, x - b % 3, b**2 / 2

    return Program(step, batches())


@program(compiles=1)
def length_of_a_tensor():
    def step(x):
        return x.sum() / len(x), len(x) + 1

    return Program(step, batches())


@program(compiles=1)
def negative_dimensions():
    def step(x):
        return x.sum(-1) / x.size(-2), x.shape[-2] * 2, x.size(dim=-1)

    return Program(step, batches(3))


@program(compiles=1)
def sizes_returned():
    def step(x):
        return x.shape, x.size(), x.shape[:1], list(x.shape), tuple(x.size()), x.numel(), {"n": x.shape[0]}

    return Program(step, batches())


@program(compiles=1)
def sizes_stored():
    state = {"seen": 0, "shapes": []}

    def step(x):
        state["seen"] += x.shape[0]
        state["last"] = x.shape
        state["shapes"].append(x.size(0))
        return x.sum() / state["seen"]

    return Program(step, batches(sizes=(4, *BATCHES)), state=state)


@program(compiles=1)
def sizes_printed():
    def step(x):
        print(x.shape, x.shape[0], len(x))
        print(f"batch of {x.shape[0]:3d}, {tuple(x.shape)}, {x.size()}")
        return f"{x.shape}", "%d rows" % x.shape[0], str(x.shape)

    return Program(step, batches())


@program(speculated=5, compiles=2)
def size_decides():
    def step(x):
        if x.shape[0] > 3:
            return x * 2
        return x - 1

    return Program(step, batches(sizes=(4, 5, 6, 7, 3, 2, 8, 3, 2, 9, 2)))


@program(compiles=1)
def condition_that_holds():
    def step(x):
        if x.shape[0] < 100 and x.dim() == 2 and x.shape[1] == 5:
            return x.mean(0)
        raise ValueError(x.shape)

    return Program(step, batches())


@program(compiles=1)
def shapes_compared():
    def step(x, y):
        if x.shape != y.shape or x.shape[0] != y.shape[0]:
            raise ValueError("shapes")
        assert x.size() == y.size()
        assert x.shape == (len(y), 4)
        return x + y

    return Program(step, [(torch.randn(n, 4), torch.randn(n, 4)) for n in BATCHES])


@program(compiles=1)
def product_of_sizes():
    def step(x):
        return math.prod(x.shape), x.shape.numel(), sum(x.shape), x.reshape(math.prod(x.shape[:2]), -1)

    return Program(step, batches(3, 4))


@program(compiles=1)
def in_place():
    def step(x):
        x.mul_(2)
        x[0] = 1
        x[:, 1] += x[:, 0]
        return x.sum()

    return Program(step, batches())


@program(speculated=6, compiles=1)
def views_of_inputs():
    def step(x):
        b = x.shape[0]
        return x.t(), x[1:], x[:, :2], x.view(-1), x[b // 2 :], x.unsqueeze(1)

    return Program(step, batches())


@program(speculated=6, compiles=1)
def views_of_results():
    def step(x):
        y = x * 2
        return y, y[1:], y.t(), y.view(-1)

    return Program(step, batches())


@program(speculated=6, compiles=1)
def size_of_a_result():
    def step(x):
        y = torch.cat([x, x[1:]])
        n = y.shape[0]
        return y / n, y.view(n, -1, 1).sum() / y.numel(), n, torch.arange(n)

    return Program(step, batches())


@program(speculated=5, compiles=2)
def size_of_a_result_decides():
    def step(x):
        y = torch.cat([x, x])
        return y * 2 if y.shape[0] > 7 else y - 1

    return Program(step, batches(sizes=(4, 5, 6, 3, 2, 8, 3, 2, 9, 2)))


@program(compiles=1)
def masks():
    def step(x, lengths):
        mask = torch.arange(x.size(1))[None, :] < lengths[:, None]
        return (x * mask).sum(1) / lengths, torch.where(mask, x, 0.0), mask.float().mean()

    sizes = zip(BATCHES, (7, 5, 6, 9, 4, 11, 3, 8, 5, 10), strict=True)
    return Program(step, [(torch.randn(b, t), torch.randint(1, t, (b,))) for b, t in sizes])


@program(compiles=1)
def broadcast_by_expand():
    bias = torch.randn(5)

    def step(x):
        return x + bias.expand(x.shape), bias.expand_as(x).sum(0), bias.repeat(x.size(0), 1), bias.unsqueeze(0) * x

    return Program(step, batches())


@program(compiles=1)
def loss_summed_and_divided():
    t = Trainer()

    def step(x, y):
        return t.update(F.cross_entropy(t.model(x), y, reduction="sum") / x.shape[0])

    return Program(step, labelled(), state=t)


@program(compiles=1)
def running_average_over_examples():
    t = Trainer()
    seen = {"loss": 0.0, "count": 0}

    def step(x, y):
        loss = t.update(F.cross_entropy(t.model(x), y))
        seen["loss"] += loss.item() * x.size(0)
        seen["count"] += x.size(0)
        return seen["loss"] / seen["count"]

    return Program(step, labelled(), state=(t, seen))


@program(compiles=1)
def accuracy():
    model = nn.Linear(5, 3)

    def step(x, y):
        with torch.no_grad():
            right = (model(x).argmax(1) == y).sum().item()
        return right / len(y), 100.0 * right / y.size(0)

    return Program(step, labelled())


@program(compiles=1)
def sizes_of_one_and_many():
    def step(x, y):
        return x + y, (x * y).sum()

    return Program(step, [(torch.randn(n, 4), torch.randn(1, 4)) for n in BATCHES])


@program(speculated=6, compiles=1)
def row_by_index():
    def step(x):
        n = x.shape[0]
        return x[0] * 1, x[n - 1] * 2, x.select(0, 1) + 1, x[:, n - n] * 1, x[torch.arange(n)], x[1:, n * 0 + 1].sum()

    return Program(step, batches())


@program(compiles=1)
def channels_last():
    conv = nn.Conv2d(3, 4, 3)

    def step(x):
        with torch.no_grad():
            return conv(x).relu().mean((2, 3))

    calls = [(torch.randn(n, 3, 6, 6).to(memory_format=torch.channels_last),) for n in BATCHES]
    return Program(step, calls)


@program(speculated=4, compiles=3)
def strides_change():
    def step(x):
        return x * 2, x.sum(0)

    calls = [(torch.randn(n, 4),) for n in (3, 5, 6)] + [(torch.randn(4, n).t(),) for n in (3, 5, 6, 7, 8)]
    return Program(step, [*calls, *((torch.randn(n, 4),) for n in (3, 5, 6, 7))])


@program(compiles=1)
def slices_of_a_wide_tensor():
    data = torch.randn(20, 30)

    def step(x):
        return (x * 2).sum(1), x.t() @ x

    return Program(step, [(data[:n, :m],) for n, m in zip(BATCHES, BATCHES[::-1], strict=True)])


@program(compiles=1)
def pairwise_distances():
    def step(x):
        n = x.size(0)
        square = x.pow(2).sum(1)
        far = square[:, None] + square[None, :] - 2 * x @ x.t()
        return far[~torch.eye(n, dtype=torch.bool)].view(n, n - 1) if False else far.masked_fill(torch.eye(n) > 0, 9.0)

    return Program(step, batches())


@program(compiles=1)
def lstm_of_varying_batch():
    lstm, head = nn.LSTMCell(4, 6), nn.Linear(6, 2)
    opt = torch.optim.SGD([*lstm.parameters(), *head.parameters()], lr=0.1)

    def step(x):
        h, c = torch.zeros(x.shape[0], 6), x.new_zeros(x.size(0), 6)
        for t in range(3):
            h, c = lstm(x[:, t], (h, c))
        loss = head(h).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return Program(step, batches(3, 4), state=(lstm, head))


@program(speculated=2, compiles=3)  # a loop's iterations are compiled for one size of the batch
def loop_over_a_size():
    def step(x):
        total = 0
        for t in range(x.size(1)):
            total = total + x[:, t] * t
        return total

    sizes = [(3, 4), (4, 4), (5, 4), (6, 4), (3, 5), (4, 5), (7, 5), (8, 4), (9, 5)]
    return Program(step, [(torch.randn(*size),) for size in sizes])


@program(compiles=1)
def model_reads_sizes():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.position = nn.Parameter(torch.randn(12, 5))
            self.out = nn.Linear(5, 2)

        def forward(self, x):
            b, t, c = x.shape
            h = x + self.position[:t].unsqueeze(0).expand(b, t, c)
            return self.out(h.mean(1)) / t

    t = Trainer(Net())

    def step(x):
        return t.update(t.model(x).pow(2).sum())

    sizes = zip(BATCHES, (7, 5, 6, 9, 4, 11, 3, 8, 5, 10), strict=True)
    return Program(step, [(torch.randn(*size, 5),) for size in sizes], state=t)


@program(compiles=1)
def gradient_to_the_input():
    def step(x):
        x = x.clone().requires_grad_()
        (x.sigmoid().sum() / len(x)).backward()
        return x.grad

    return Program(step, batches())


@program(compiles=1)
def attribute_that_is_replaced():
    class Holder:
        pass

    holder = Holder()
    holder.x = torch.randn(4, 5)
    sizes = (3, 5, 7, 2, 6, 9, 3, 8, 4)

    def step():
        return holder.x.sum(0) / holder.x.shape[0]

    def put(n):
        return lambda: setattr(holder, "x", torch.randn(n, 5))

    return Program(step, before={call + 1: put(n) for call, n in enumerate(sizes)}, state=holder)


@program(compiles=1)
def sizes_given_to_numpy():
    import numpy as np

    def step(x):
        weights = np.linspace(0.0, 1.0, x.shape[0])
        return x * torch.from_numpy(weights).float()[:, None] if False else (x.sum(), weights.sum())

    return Program(step, batches())


@program(compiles=1)
def rnn_cells():
    gru, rnn = nn.RNNCell(4, 6, nonlinearity="relu"), nn.RNNCell(6, 3)
    opt = torch.optim.SGD([*gru.parameters(), *rnn.parameters()], lr=0.1)

    def step(x):
        h, r = torch.zeros(x.shape[0], 6), x.new_zeros(x.size(0), 3)
        for t in range(3):
            h = gru(x[:, t], h)
            r = rnn(h, r)
        loss = r.pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return Program(step, batches(3, 4), state=(gru, rnn))


@program(compiles=1)
def lstm_of_varying_length():
    embed, lstm, head = nn.Embedding(10, 4), nn.LSTM(4, 6, 2, batch_first=True, bidirectional=True), nn.Linear(12, 2)
    opt = torch.optim.SGD([*embed.parameters(), *lstm.parameters(), *head.parameters()], lr=0.1)

    def step(tokens):
        out, (h, c) = lstm(embed(tokens))
        loss = head(out[:, -1]).pow(2).mean() + h.sum() * 0.1 + c.mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    sizes = zip(BATCHES, (7, 5, 6, 9, 4, 11, 3, 8, 5, 10), strict=True)
    return Program(step, [(torch.randint(10, size),) for size in sizes], state=(embed, lstm, head))


@program(compiles=1)
def lstm_with_dropout_and_batches():
    lstm = nn.LSTM(5, 6, 3, dropout=0.3)
    opt = torch.optim.Adam(lstm.parameters(), lr=0.01)

    def step(x):
        out, _ = lstm(x)
        loss = out.pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return Program(step, [(torch.randn(4, n, 5),) for n in (4, *BATCHES)], state=lstm)


@program(compiles=1)
def learning_rate_and_batch_change():
    t = Trainer(optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))

    def step(x, y, lr):
        t.opt.param_groups[0]["lr"] = lr * len(x) / 8
        return t.update(F.cross_entropy(t.model(x), y))

    calls = [(*call, 0.1 / (k + 1)) for k, call in enumerate(labelled(sizes=(4, *BATCHES)))]
    return Program(step, calls, state=t)


@program(compiles=1)
def custom_function():
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x.shape[0]

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * x.shape[0] / x.size(1)

    t = Trainer()

    def step(x):
        return t.update(Scaled.apply(t.model(x)).pow(2).mean())

    return Program(step, batches(), state=t)


@program(compiles=2)
def gradients_accumulate_over_batches():
    model = nn.Linear(5, 3)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, last):
        loss = model(x).pow(2).sum() / len(x)
        loss.backward()
        if last:
            opt.step()
            opt.zero_grad()
        return loss.detach()

    calls = [(torch.randn(n, 5), k % 2 == 1) for k, n in enumerate((*BATCHES, *BATCHES))]
    return Program(step, calls, state=model)


@program(compiles=1)
def noise_from_numpy_by_size():
    import numpy as np

    generator = np.random.default_rng(0)

    def step(x):
        noise = torch.as_tensor(generator.standard_normal(x.shape[0]), dtype=torch.float32)
        return (x * noise[:, None]).sum(0)

    return Program(step, batches(), state=generator)


@program(compiles=1)
def length_from_outside_and_size():
    def step(x, n):
        return x[:n] * 2, x[:, : n // 2].sum(), n * x.shape[0]

    return Program(step, [(torch.randn(size, 12), 2) for size in BATCHES])


@program(compiles=1)
def transposed_in_place():
    def step(x):
        y = x * 2
        y.t_()
        return y + 1, y.shape, y.shape[0] * 2 + y.numel()

    return Program(step, batches())


@program(compiles=1)
def under_inference_mode_and_autocast():
    model = nn.Linear(5, 3)

    def step(x):
        with torch.inference_mode():
            a = model(x).softmax(-1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            b = model(x).detach()
        return a, b, a.shape[0]

    return Program(step, batches())


@program(compiles=1)
def sizes_as_keys_and_texts():
    seen = {}

    def step(x):
        seen["last"] = f"{x.shape[0]}x{x.shape[1]}"
        return x.sum() / x.shape[0]

    return Program(step, batches(sizes=(4, *BATCHES)), state=seen)


@program(speculated=6, compiles=1)
def tensors_made_of_sizes():
    def step(x):
        n = x.shape[0]
        return (
            torch.tensor(n),
            torch.tensor([n, 3]),
            torch.tensor(1.0 / n),
            x[: int(n / 2)] * 1,
            x[: math.ceil(n * 0.5)],
        )

    return Program(step, batches(sizes=(4, 5, 6, 7, 8, 9, 10, 7, 12)))


@program(speculated=4, compiles=3)
def size_given_to_a_dictionary():
    cache = {4: 1.0, 3: 2.0, 5: 3.0}

    def step(x):
        return x * cache[x.shape[0]]

    return Program(step, batches(sizes=(4, 3, 5, 4, 3, 5, 4, 3, 5, 4)), state=cache)


@program(compiles=1)
def images_made_larger():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.up = nn.Conv2d(1, 3, 3, stride=2, padding=1), nn.Conv2d(3, 1, 3, padding=1)

        def forward(self, x):
            small = self.down(x).relu()
            large = F.interpolate(small, scale_factor=2)
            return self.up(large) + F.interpolate(small.mean(1, keepdim=True), size=x.shape[2:])

    t = Trainer(Net())

    def step(x):
        return t.update(F.mse_loss(t.model(x), x)), F.interpolate(x, scale_factor=1.5, mode="bilinear")

    return Program(step, batches(1, 8, 8), state=t)


@program(speculated=49, compiles=4)
def sizes_that_have_changed_on_other_paths():
    torch.manual_seed(0)
    blocks = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))

    def step(x, y):
        for block in blocks:
            if random.random() < 0.4:
                continue
            x = x + block(x).relu()
        loss = (x * blocks[0].bias - y).pow(2).mean()
        loss.backward()
        return loss.detach()

    return Program(step, [(torch.randn(k % 5 + 2, 3), torch.randn(k % 5 + 2, 3)) for k in range(60)], state=blocks)


@program(speculated=20, compiles=3)
def sizes_that_stay_what_they_are_on_each_path():
    net = nn.Linear(3, 2)

    def step(x):
        return (net(x).relu() if net.training else net(x).flatten()).detach()

    def mode(train):
        return lambda: net.train(train)

    change = {k: mode(k % 8 != 4) for k in range(4, 36, 4)}
    return Program(
        step, [(torch.randn((7 if k < 20 else 6) if k % 8 >= 4 else 4, 3),) for k in range(36)], change, state=net
    )


@program(speculated=20, compiles=3)
def sizes_that_decide_which_path_it_is():
    net = nn.Linear(3, 2)

    def step(x):
        if x.shape[0] > 4:
            return net(x).relu().detach()
        return net(x).flatten().detach()

    return Program(step, [(torch.randn(2 + k * 5 % 7, 3),) for k in range(28)], state=net)
