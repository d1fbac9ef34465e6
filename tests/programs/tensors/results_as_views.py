"""Results that are views, of each other, of inputs and state, or of what does not leave the step: to autograd, too.

After each call the caller asks what autograd knows of the results, and changes one of them in place by what asks for
gradients: the others follow, or torch raises, as in eager.
"""

from __future__ import annotations

import torch
from torch import nn

from tests.programs.harness import CALLS, Program, program


def inputs(n=CALLS):
    return [(torch.randn(4, 6),) for _ in range(n)]


def about(*tensors):
    """What autograd knows of each: whether it is a view, of which of them or of what other."""
    out = []
    for t in tensors:
        base = t._base
        which = (
            None
            if base is None
            else next((k for k, o in enumerate(tensors) if o is base), (tuple(base.shape), base.requires_grad))
        )
        out.append((t._is_view(), which, t.requires_grad, t.is_leaf, t.grad_fn is None))
    return out


def watched(step, calls=None, state=None, then=None, every=lambda r: r):
    reported = []

    def between(result):
        parts = every(result)
        if result is None:
            return
        reported.append(about(*parts))
        if then is not None:
            reported.append(then(*parts))
            reported.append(about(*parts))

    return Program(step, calls or inputs(), state=(reported, state), between=between)


def change_by_leaf(first, second, *rest):
    """The caller changes the second in place by what asks for gradients; the first follows."""
    w = torch.ones((), requires_grad=True)
    try:
        second.mul_(w)
        first.sum().backward()
        return first.detach().clone(), first.requires_grad, w.grad
    except RuntimeError as e:
        return str(e)


@program()
def half():
    def step(x):
        y = x * 2
        return y, y[:2]

    return watched(step, then=change_by_leaf)


@program()
def half_then_base_changed():
    def step(x):
        y = x * 2
        return y[:2], y

    return watched(step, then=change_by_leaf)


@program()
def transposed_and_diagonal():
    def step(x):
        y = x * 2
        return (
            y,
            y.t(),
            y.t()[1:],
            y.diagonal(),
            y.view(-1),
            y.unfold(1, 2, 2),
            y.expand(2, 4, 6),
            y.unsqueeze(0),
            y.narrow(1, 1, 2),
            y.select(0, 1),
        )

    return watched(step, then=change_by_leaf)


@program()
def without_its_base():
    def step(x):
        y = x * 2
        return y[:2], y[2:]

    return watched(step, then=change_by_leaf)


@program()
def only_a_part():
    def step(x):
        y = x * 2
        return (y[:2], y[:2])

    return watched(step, then=change_by_leaf)


@program()
def single_view():
    def step(x):
        return (x * 2)[:2]

    return watched(step, every=lambda r: (r,))


@program()
def single_reshape():
    def step(x):
        return (x * 2).reshape(-1)

    return watched(step, every=lambda r: (r,))


@program()
def detached():
    def step(x):
        y = x * 2
        return y, y.detach()

    return watched(step, then=change_by_leaf)


@program()
def detached_half():
    def step(x):
        y = x * 2
        return y, y.detach()[:2], y[:2].detach()

    return watched(step, then=change_by_leaf)


@program()
def data():
    def step(x):
        y = x * 2
        return y, y.data, y.data[:2]

    return watched(step, then=change_by_leaf)


@program()
def of_the_input():
    def step(x):
        return x, x[:2], x.t()

    return watched(step, then=change_by_leaf)


@program()
def of_the_input_only():
    reported = []
    calls = inputs()
    it = iter(calls)

    def step(x):
        return x[:2]

    def between(r):
        x = next(it)[0]
        w = torch.ones((), requires_grad=True)
        reported.append(about(r, x))
        r.mul_(w)
        reported.append(about(r, x))
        x.sum().backward()
        reported.append(w.grad)
        x.detach_() if not x._is_view() else None

    return Program(step, calls, state=reported, between=between)


@program()
def of_a_buffer():
    m = nn.BatchNorm1d(6)

    def step(x):
        m(x)
        return m.running_mean, m.running_mean[:2]

    return watched(step, state=m)


@program()
def of_a_parameter():
    m = nn.Linear(6, 3)

    def step(x):
        m.zero_grad()
        m(x).sum().backward()
        with torch.no_grad():
            m.weight.sub_(0.1 * m.weight.grad)
        return m.weight.data, m.weight.detach()[:2], m.weight.data.view(-1), m.weight.grad, m.weight.grad[0]

    return watched(step, state=m)


@program()
def a_part_of_a_parameter_without_gradients():
    m = nn.Linear(6, 3)

    def step(x):
        with torch.no_grad():
            return m.weight[:2], x * 2

    return watched(step, state=m)


@program()
def chunks():
    def step(x):
        y = x * 2
        a, b = y.chunk(2)
        return y, a, b

    return watched(step, then=change_by_leaf)


@program()
def unbound():
    def step(x):
        y = x * 2
        return y, *y.unbind(0)

    return watched(step, then=change_by_leaf)


@program()
def split_only():
    def step(x):
        return (x * 2).split(2)

    return watched(step, then=change_by_leaf)


@program()
def under_no_grad():
    def step(x):
        with torch.no_grad():
            y = x * 2
            return y, y[:2]

    return watched(step, then=change_by_leaf)


@program()
def view_under_no_grad():
    def step(x):
        y = x * 2
        with torch.no_grad():
            return y, y[:2]

    return watched(step, then=change_by_leaf)


@program()
def under_inference():
    def step(x):
        with torch.inference_mode():
            y = x * 2
            return y, y[:2], y.t()

    return watched(step)


@program()
def view_under_inference_of_input():
    def step(x):
        with torch.inference_mode():
            return x[:2], x * 2

    return watched(step)


@program()
def complex_parts():
    def step(x):
        y = torch.complex(x, x * 2)
        return y, torch.view_as_real(y), y.real, y.imag

    return watched(step, then=change_by_leaf)


@program()
def parts_of_a_complex_number_that_does_not_leave():
    def step(x):
        y = torch.complex(x, x * 2)
        return torch.view_as_real(y), y.imag

    return watched(step, then=change_by_leaf)


@program()
def complex_numbers_made_of_parts():
    def step(x):
        y = torch.stack((x, x * 2), -1)
        return torch.view_as_complex(y), y, torch.view_as_complex(y)[1:].conj(), torch.view_as_complex(y[1:]).real

    return watched(step, then=change_by_leaf)


@program()
def parts_of_conjugated_numbers():
    def step(x):
        y = torch.complex(x, x * 2).conj()
        return y, y.imag, y.real, y[1:]

    return watched(step, then=change_by_leaf)


@program()
def parts_of_complex_inputs():
    z = torch.complex(torch.randn(4, 6), torch.randn(4, 6))

    def step(x):
        return torch.view_as_real(z), z[:2].imag, z.conj().real, x * 2

    return watched(step, state=z)


@program()
def parts_under_no_grad():
    def step(x):
        with torch.no_grad():
            y = torch.complex(x, x * 2)
            return y, y.real, torch.view_as_real(y)[:2]

    return watched(step, then=change_by_leaf)


def fill_second(first, second, *rest):
    """The caller changes the second; the others hold the same bytes."""
    second.fill_(3)
    return [one.clone() for one in (first, *rest)]


@program()
def dtype_views():
    def step(x):
        y = x * 2
        return y, y.view(torch.int32), y.view(torch.uint8), y[1:].view(torch.float16)

    return watched(step, then=fill_second)


@program(refused="two results overlap")
def wider_numbers_in_the_memory_of_an_input():
    """Another input may begin where such numbers cannot."""
    x = torch.randn(4, 6)

    def step(y):
        return torch.view_as_complex(x.view(4, 3, 2)), y * 2

    return watched(step, state=x)


@program()
def with_gradients():
    w = torch.randn(6, requires_grad=True)

    def step(x):
        y = x * w
        y.sum().backward()
        w.grad = None
        return y, y[:2], y.detach()

    return watched(step)


@program()
def leaf_and_part():
    def step(x):
        y = (x * 2).requires_grad_()
        return y, y.detach()[:2]

    return watched(step)


@program(refused="backward pass still to come")
def leaf_and_part_live():
    def step(x):
        y = (x * 2).requires_grad_()
        return y, y[:2]

    return watched(step)


@program()
def squeezed_argmax():
    def step(x):
        v, i = x.max(1, keepdim=True)
        return v.squeeze(1), i.squeeze(1)

    return watched(step)


@program()
def stored_state():
    kept = {}

    def step(x):
        y = x * 2
        kept["all"] = y
        kept["last"] = y[-1]
        return kept["all"], kept["last"]

    return watched(step, then=change_by_leaf)


@program()
def versions():
    def step(x):
        y = x * 2
        y.add_(1)
        y[0].mul_(3)
        return y, y[:2]

    return watched(step, then=change_by_leaf)


@program()
def reshaped_input():
    def step(x):
        return x.view(2, 12), x.flatten(), x.reshape(4, 6), x.contiguous(), x.to(torch.float32)

    return watched(step)


@program()
def swapped_views():
    def step(x):
        h = x.new_zeros(2, 4, 6)
        h[0] = x
        h[1] = x * 2
        return h, h[0], h[1, 2:]

    return watched(step, then=change_by_leaf)


@program()
def concatenated_outputs_of_a_loop():
    w = torch.randn(6, 6)

    def step(x, n):
        outs = []
        for _ in range(n):
            x = torch.tanh(x @ w)
            outs.append(x)
        return torch.cat(outs), torch.stack(outs), torch.cat(outs, 1), x

    return watched(step, calls=[(torch.randn(4, 6), 4 + n % 4) for n in range(CALLS)])


@program()
def tensors_of_fetched_numbers():
    def step(x):
        number = x.sum().item()
        return torch.tensor([[number, 1.0], [2.0, number]]), torch.tensor([number]), x.new_tensor([[number]])

    return watched(step)


@program()
def gradients_of_packed_layers():
    layer, lengths = nn.GRU(6, 3, bidirectional=True), torch.tensor([2, 4])
    reported = []

    def step(x):
        layer.zero_grad()
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        layer(packed)[0].data.sum().backward()

    def between(_):
        reported.append([(p.grad._is_view(), p.grad._base is None) for p in layer.parameters()])

    return Program(step, [(torch.randn(2, 4, 6),) for _ in range(CALLS)], state=(reported, layer), between=between)


# -- with the backward pass to come ----------------------------------------------------------------------------------


def live(view, then, width=3):
    """The step returns views of what a model gives; the caller looks at them, and ``then`` makes a backward pass."""
    model, reported = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, width)), []

    def between(result):
        parts = result if isinstance(result, tuple) else (result,)
        reported.append([(*row[:4], tuple(part.shape)) for row, part in zip(about(*parts), parts, strict=True)])
        model.zero_grad()
        reported.append(then(*parts))

    return Program(lambda x: view(model(x)), inputs(), between=between, state=(reported, model))


def squared(*parts):
    sum(part.square().mean() for part in parts).backward()


def summed(*parts):
    sum(part.sum() for part in parts).backward()


def changed(first, *rest):
    first.mul_(2)
    squared(first, *rest)


def watched_by_hooks(first, *rest):
    seen = []
    first.register_hook(lambda gradient: seen.append(gradient.clone()))
    first.retain_grad()
    squared(first, *rest)
    return seen, first.grad


@program()
def live_column():
    return live(lambda h: h[:, 0], summed)


@program()
def live_squeezed():
    return live(lambda h: h.squeeze(-1), squared, width=1)


@program()
def live_transposed_and_cut():
    return live(lambda h: h.t()[1:].unsqueeze(0), squared)


@program()
def live_and_changed():
    return live(lambda h: h[:, 0], changed)


@program()
def live_beside_its_base():
    return live(lambda h: (h[:, 0], h), changed)


@program()
def live_several():
    return live(lambda h: (h[:, 0], h[:, 1:], h.t(), h.unfold(0, 2, 1)), squared)


@program()
def live_with_hooks():
    return live(lambda h: (h[:, 0], h), watched_by_hooks)


@program()
def live_beside_what_is_computed_from_the_base():
    return live(lambda h: (h[:, 0], h.square().mean()), watched_by_hooks)


@program()
def live_beside_what_is_detached():
    return live(lambda h: (h, h.detach()[0], h[0]), squared)


@program(refused="several views that one operation gives")
def live_chunks():
    return live(lambda h: h.chunk(3, 1), squared)
