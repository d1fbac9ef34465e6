"""Gradients asked for in unusual ways, in-place operations, views, numbers fetched in mid-step."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.programs.harness import CALLS, Program, program


def inputs(count=CALLS, *shape):
    return [(torch.randn(*(shape or (4, 5))),) for _ in range(count)]


@program()
def autograd_grad():
    model = nn.Linear(5, 3)

    def step(x):
        loss = model(x).pow(2).sum()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads):
                p -= 0.01 * g
        return grads

    return Program(step, inputs())


@program()
def gradient_penalty():
    critic = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1))
    opt = torch.optim.Adam(critic.parameters(), lr=0.01)

    def step(x):
        x = x.clone().requires_grad_(True)
        score = critic(x).sum()
        (g,) = torch.autograd.grad(score, x, create_graph=True)
        penalty = ((g.norm(dim=1) - 1) ** 2).mean()
        opt.zero_grad()
        (score + 10 * penalty).backward()
        opt.step()
        return penalty.item()

    return Program(step, inputs())


@program()
def input_gradient():
    model = nn.Linear(5, 3)

    def step(x):
        x = x.detach().requires_grad_()
        model(x).sum().backward()
        return x.grad, x.grad.sign()

    return Program(step, inputs())


@program()
def two_backwards_retained():
    model = nn.Linear(5, 3)

    def step(x):
        model.zero_grad()
        out = model(x)
        out.sum().backward(retain_graph=True)
        first = model.weight.grad.clone()
        out.pow(2).sum().backward()
        return first, model.weight.grad

    return Program(step, inputs())


@program()
def two_losses_two_graphs():
    model = nn.Linear(5, 3)

    def step(x):
        model.zero_grad()
        model(x).sum().backward()
        model(x * 2).pow(2).sum().backward()
        return model.weight.grad.norm().item()

    return Program(step, inputs())


@program()
def backward_with_gradient():
    model = nn.Linear(5, 3)

    def step(x):
        model.zero_grad()
        out = model(x)
        out.backward(torch.ones_like(out) * 0.5)
        return out.detach()

    return Program(step, inputs())


@program()
def retained_gradient_of_an_intermediate():
    model = nn.Linear(5, 3)

    def step(x):
        model.zero_grad()
        out = model(x)
        out.retain_grad()
        out.pow(2).sum().backward()
        return out.grad

    return Program(step, inputs())


@program()
def detach_and_stop_gradient():
    one, two = nn.Linear(5, 5), nn.Linear(5, 5)
    opt = torch.optim.SGD([*one.parameters(), *two.parameters()], lr=0.1)

    def step(x):
        target = two(x).detach()
        with torch.no_grad():
            weight = one(x).abs().mean()
        loss = (one(x) - target).pow(2).mean() * weight + (two(x) - one(x).detach()).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, inputs())


@program()
def partly_frozen():
    model = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 3))
    model[0].requires_grad_(False)
    opt = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.1)

    def step(x):
        opt.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        opt.step()
        return loss.item(), [p.grad is None for p in model.parameters()]

    return Program(step, inputs())


@program()
def requires_grad_switched_inside():
    model = nn.Linear(5, 3)

    def step(x):
        for p in model.parameters():
            p.requires_grad_(False)
        out = model(x).sum()
        for p in model.parameters():
            p.requires_grad_(True)
        return out, out.requires_grad

    return Program(step, inputs(), state=model)


@program()
def custom_function():
    class Clip(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.clamp(-1, 1)

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * (x.abs() < 1)

    model = nn.Linear(5, 3)

    def step(x):
        model.zero_grad()
        Clip.apply(model(x)).sum().backward()
        return model.weight.grad

    return Program(step, inputs())


@program()
def in_place_through_views():
    def step(x):
        y = x * 1
        y[0].zero_()
        y[:, 1] = 7
        y.view(-1)[3:5].mul_(2)
        y[1:3] += 1
        y.t()[2].neg_()
        return y

    return Program(step, inputs())


@program()
def in_place_in_the_graph():
    w = torch.randn(5, requires_grad=True)

    def step(x):
        y = x * w
        y[0] = 0
        y.mul_(2)
        y[:, 2].add_(1)
        y.relu_()
        y.sum().backward()
        g = w.grad.clone()
        w.grad = None
        return y.detach(), g

    return Program(step, inputs())


@program(refused="shares its memory")
def state_through_views():
    table = torch.zeros(6, 5)
    row = table[2]

    def step(x):
        table[1:3].add_(x[:2])
        row.mul_(0.5)
        return table.sum(), row

    return Program(step, inputs(), state=(table, row))


@program()
def out_arguments():
    buffer = torch.empty(4, 5)

    def step(x):
        torch.mul(x, 2, out=buffer)
        torch.add(buffer, x, out=buffer)
        return buffer, torch.empty(4).copy_(buffer[:, 0])

    return Program(step, inputs(), state=buffer)


@program()
def copies_and_fills():
    a, b = torch.zeros(5), torch.zeros(4, 5)

    def step(x):
        a.copy_(x[0])
        b.fill_(2.0)
        b[1].copy_(x[1])
        b.index_add_(0, torch.tensor([0, 2]), x[:2])
        b.masked_fill_(x > 1, 0)
        a.clamp_(min=-1, max=1).add_(x.mean(0), alpha=0.5).lerp_(x[1], 0.1)
        return b.sum()

    return Program(step, inputs(), state=(a, b))


@program()
def masks_and_where():
    def step(x):
        y = torch.where(x > 0, x, x * 0.1)
        z = x.masked_fill(x < -1, 0)
        return y, z, x.clamp(0, 1), torch.tril(x), (x > 0).sum(1), x.cumsum(0)

    return Program(step, inputs())


@program()
def einsum_and_friends():
    def step(x):
        a = torch.einsum("ij,kj->ik", x, x)
        b = torch.bmm(x.unsqueeze(0), x.t().unsqueeze(0))
        c = x @ x.t() + torch.outer(x[0], x[1]).sum()
        d = torch.cat([x, x * 2], 1).split(5, 1)[1]
        return a, b, c, d, x.norm(), torch.stack([x, x]).permute(1, 0, 2).contiguous()

    return Program(step, inputs())


@program()
def indexing_with_tensors():
    def step(x, index):
        return (
            x[index],
            x.index_select(0, index),
            x.gather(1, index.unsqueeze(1)),
            x[:, [0, 2]],
            x[..., -1],
            x[None, 1],
            x[index, index],
        )

    return Program(step, [(torch.randn(4, 5), torch.randint(4, (4,))) for _ in range(CALLS)])


@program()
def boolean_indexing():
    def step(x):
        return x[x > 0].sum(), torch.nonzero(x > 1)

    return Program(step, inputs())


@program()
def item_in_later_arithmetic():
    w = torch.randn(5, requires_grad=True)

    def step(x):
        loss = (x * w).pow(2).mean()
        scaled = loss * (1 / loss.item())
        scaled.backward()
        with torch.no_grad():
            w.sub_(w.grad * 0.01)
        w.grad = None
        return loss.item(), scaled.item()

    return Program(step, inputs())


@program(speculated=7)
def item_as_a_scalar_argument():
    def step(x):
        m = x.abs().max().item()
        return x / m, x.clamp(max=m), torch.add(x, x, alpha=m), x * (m + 1) - m * 2

    return Program(step, inputs())


@program(speculated=0, compiles=6)
def item_decides_a_branch():
    def step(x):
        if x.sum().item() > 0:
            return x * 2
        return x * 3

    return Program(step, inputs(20))


@program(speculated=5, compiles=6)
def item_decides_a_rare_branch():
    def step(x):
        total = x.sum().item()
        if total > 1000:
            return x * 0
        return x * 3

    calls = inputs(20)
    calls[12] = (torch.full((4, 5), 100.0),)
    return Program(step, calls)


@program(speculated=5, compiles=6)
def tensor_decides_a_rare_branch():
    w = torch.zeros(5)

    def step(x):
        w.add_(x.sum(0))
        if (x.abs() > 50).any():
            w.zero_()
            return None
        if torch.isnan(x).any():
            raise ValueError("nan")
        return w.sum()

    calls = inputs(20)
    calls[9] = (torch.full((4, 5), 100.0),)
    calls[12] = (torch.full((4, 5), torch.nan),)
    return Program(step, calls)


@program(speculated=5, compiles=4)
def skip_the_update_when_not_finite():
    model = nn.Linear(5, 3)
    opt = torch.optim.Adam(model.parameters(), lr=0.1)
    skipped = {"n": 0}

    def step(x):
        opt.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        if torch.isfinite(loss):
            opt.step()
        else:
            skipped["n"] += 1
        return loss.item()

    calls = inputs(16)
    calls[8] = (torch.full((4, 5), torch.inf),)
    return Program(step, calls)


@program()
def tensors_made_of_changing_numbers():
    state = {"n": 0}

    def step(x):
        state["n"] += 1
        n = state["n"]
        a = torch.tensor(n)
        b = torch.tensor(n * 0.5)
        c = torch.full((3,), n)
        d = torch.full((2, 2), n / 3)
        e = torch.tensor([1.0, n])
        f = torch.tensor(float(n), dtype=torch.float64)
        return a, b, c, d, e, f, x * n

    return Program(step, inputs())


@program(speculated=0, compiles=12)
def arange_of_changing_length():
    state = {"n": 0}

    def step(x):
        state["n"] += 1
        return torch.arange(state["n"]), torch.zeros(state["n"], 2)

    return Program(step, inputs(12))


@program()
def factories():
    def step(x):
        n = x.shape[0]
        return (
            torch.zeros_like(x),
            torch.arange(n),
            torch.eye(n),
            torch.linspace(0, 1, 5),
            x.new_ones(3),
            torch.empty(0),
            torch.tensor([[1, 2], [3, 4]]),
            torch.ones(n, dtype=torch.bool),
        )

    return Program(step, inputs())


@program()
def random_numbers():
    def step(x):
        a = torch.rand(3)
        b = torch.randn_like(x)
        c = F.dropout(x, 0.4)
        d = torch.randint(0, 10, (3,))
        e = torch.randperm(6)
        f = torch.empty(4).uniform_(-1, 1)
        g = torch.bernoulli(torch.full((5,), 0.3))
        h = torch.empty(3).normal_()
        return a, b, c, d, e, f, g, h

    return Program(step, inputs())


@program()
def multinomial_and_distributions():
    def step(x):
        idx = torch.multinomial(x.softmax(-1), 2)
        noise = torch.distributions.Normal(x, 1.0).rsample()
        return idx, noise

    return Program(step, inputs())


@program(speculated=0)
def own_generator():
    gen = torch.Generator().manual_seed(3)

    def step(x):
        return torch.rand(3, generator=gen)

    return Program(step, inputs())


@program(speculated=0)
def seeded_inside():
    def step(x):
        torch.manual_seed(7)
        return torch.rand(3)

    return Program(step, inputs())


@program()
def integer_and_bool_tensors():
    def step(x):
        i = (x * 10).long()
        return i // 3, i % 4, i.float() / 2, (i > 0) & (i < 5), ~(i > 0), i.bitwise_and(3), i.sum(), i.float().mean()

    return Program(step, inputs())


@program()
def dtype_promotion_with_numbers():
    def step(x, k):
        return x * k, x.long() * k, x + k, k - x, k / (x + 10), x**k

    return Program(step, [(torch.rand(3), i + 1) for i in range(CALLS)])


@program()
def float_promotion_with_numbers():
    def step(x, k):
        return x * k, x.long() * k, x.double() + k, k - x.half(), x.pow(k)

    return Program(step, [(torch.rand(3), i * 0.37 + 0.1) for i in range(CALLS)])


@program()
def numpy_inside():
    def step(x):
        return float(x.numpy().sum())

    return Program(step, inputs())


@program()
def float_int_of_tensors():
    def step(x):
        return float(x.sum()), int(x.abs().sum()), float(x.mean()) * 2

    return Program(step, inputs())


@program()
def data_read_and_written_in_place():
    w = torch.randn(5, requires_grad=True)

    def step(x):
        before = w.sum().item()
        w.data.mul_(0.9)
        after = w.sum().item()
        w.data[0] = 1.0
        w.data.add_(x[0], alpha=0.1)
        return before, after, w.data.clone(), w.data.requires_grad

    return Program(step, inputs(), state=w)


@program()
def number_fetched_before_data_changes():
    state = torch.ones(())

    def step(x):
        before = state.item()
        state.data.add_(x.sum())
        return before, state.item()

    return Program(step, inputs(), state=state)


@program()
def elements_fetched_before_data_changes():
    """``x.data`` counts its changes for itself."""
    state = torch.ones(1)

    def step(x):
        before = state.item()
        state.data.add_(x.sum())
        between = f"{state.item():.3f}"
        state.data.copy_(x.flatten()[:1])
        return before, between, state.item()

    return Program(step, inputs(), state=state)


@program()
def data_assigned():
    w = torch.randn(5, requires_grad=True)

    def step(x):
        w.data = w.data * 0.9
        return (x * w).sum().item()

    return Program(step, inputs(), state=w)


@program()
def gradients_written_and_deleted():
    model = nn.Linear(5, 3)

    def step(x):
        model.weight.grad = torch.ones_like(model.weight)
        model.bias.grad = None
        model(x).sum().backward()
        kept = model.weight.grad
        del model.bias.grad
        model.weight.grad = kept * 0.5
        return kept, model.bias.grad is None, model.weight.grad.sum().item()

    return Program(step, inputs(), state=model)


@program()
def gradients_accumulated_over_four_calls():
    model = nn.Linear(5, 3)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    count = [0]

    def step(x):
        (model(x).pow(2).mean() / 2).backward()
        count[0] += 1
        if count[0] % 2 == 0:
            opt.step()
            opt.zero_grad()
        return count[0]

    return Program(step, inputs(16), state=model)


@program()
def zero_grad_both_ways():
    one, two = nn.Linear(5, 3), nn.Linear(5, 3)

    def step(x):
        one.zero_grad(set_to_none=True)
        two.zero_grad(set_to_none=False)
        (one(x) * two(x)).sum().backward()
        return one.weight.grad.norm().item(), two.weight.grad.norm().item()

    return Program(step, inputs(), state=(one, two))


@program()
def requires_grad_toggled_inside():
    w = torch.randn(5)

    def step(x):
        w.requires_grad_()
        (x * w).pow(2).sum().backward()
        g, w.grad = w.grad, None
        w.requires_grad_(False)
        w.sub_(0.01 * g)
        return g, w.requires_grad

    return Program(step, inputs(), state=w)


@program()
def third_derivative():
    def step(x):
        x = x.clone().requires_grad_()
        y = x.pow(4).sum()
        for _ in range(3):
            (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y.detach()

    return Program(step, inputs())


@program()
def grad_of_several_outputs_unused_allowed():
    a, b = torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True)

    def step(x):
        y, z = (x * a).sum(), (x * a).pow(2).sum()
        return torch.autograd.grad([y, z], [a, b], grad_outputs=[torch.ones(()), torch.tensor(2.0)], allow_unused=True)

    return Program(step, inputs())


@program()
def backward_to_chosen_inputs():
    a, b = torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True)

    def step(x):
        (x * a * b).sum().backward(inputs=[a])
        g, a.grad = a.grad, None
        return g, b.grad

    return Program(step, inputs(), state=(a, b))


@program()
def out_into_rows_and_slices():
    table = torch.zeros(4, 5)

    def step(x):
        torch.add(x[0], 1, out=table[0])
        torch.mm(x, x.t())
        torch.clamp(x, -1, 1, out=table)
        table[1:3, ::2] = x[:2, ::2] * 2
        table[..., -1] = 0
        table.view(-1)[::7].fill_(3)
        return table.sum(), table.t()[1]

    return Program(step, inputs(), state=table)


@program(speculated=7)
def results_changed_that_a_backward_would_need():
    """Nobody asks for the gradients that cannot be computed any more."""
    w = torch.randn(3, 3, requires_grad=True)

    def step(x):
        y = torch.tanh(x @ w)
        total = y.sum()
        y.mul_(0.5)
        return total.item(), y.detach().clone()

    return Program(step, [(torch.randn(2, 3),) for _ in range(10)])


@program()
def gradients_of_any_iterable():
    net, weights = nn.Linear(5, 3), nn.ParameterList([nn.Parameter(torch.randn(5)) for _ in range(2)])

    def step(x):
        net.zero_grad()
        loss = net(x).square().mean()
        named = dict(net.named_parameters())
        first = torch.autograd.grad(loss, net.parameters(), create_graph=True)
        second = torch.autograd.grad(first, named.values(), grad_outputs=(torch.ones_like(g) for g in first))
        kept = torch.autograd.grad((x * weights[0] * weights[1]).sum(), weights)
        net(x).sum().backward(inputs=(p for p in net.parameters() if p.dim() > 1))
        return [g.detach() for g in first], second, kept, net.bias.grad

    return Program(step, inputs(), state=(net, weights))
