"""``x.data = y``: tensors that get another tensor's storage, and aliases of the storage they had."""

import copy

import numpy as np
import torch
from torch import nn

from tests.programs.harness import CALLS, Program, program


def inputs(count=CALLS, *shape):
    return [(torch.randn(*(shape or (4, 5))),) for _ in range(count)]


def net():
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))


def weight(*shape):
    return nn.Parameter(torch.ones(*(shape or (5,))))


# -- steps as people write them -------------------------------------------------------------------------------------


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimisation, in the form that is copied most."""

    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        super().__init__(params, {"rho": rho, **kwargs})
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        grad_norm = self._grad_norm()
        for group in self.param_groups:
            scale = group["rho"] / (grad_norm + 1e-12)
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * scale.to(p))
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def step(self, closure=None):
        closure = torch.enable_grad()(closure)
        self.first_step(zero_grad=True)
        closure()
        self.second_step()

    def _grad_norm(self):
        norms = [p.grad.norm(p=2) for group in self.param_groups for p in group["params"] if p.grad is not None]
        return torch.norm(torch.stack(norms), p=2)


@program()
def sam_in_two_steps():
    model = net()
    opt = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)

    def step(x):
        loss = model(x).pow(2).mean()
        loss.backward()
        opt.first_step(zero_grad=True)
        model(x).pow(2).mean().backward()
        opt.second_step(zero_grad=True)
        return loss.item()

    return Program(step, inputs(), state=(model, opt))


@program()
def sam_with_a_closure():
    model = net()
    opt = SAM(model.parameters(), torch.optim.Adam, lr=0.01)

    def step(x):
        def closure():
            loss = model(x).pow(2).mean()
            loss.backward()
            return loss

        loss = closure()
        opt.step(closure)
        opt.zero_grad()
        return loss.item()

    return Program(step, inputs(), state=(model, opt))


@program()
def adversarial_embeddings():
    class FGM:
        def __init__(self, model):
            self.model = model
            self.backup = {}

        def attack(self):
            for name, param in self.model.named_parameters():
                if param.requires_grad:
                    self.backup[name] = param.data.clone()
                    norm = torch.norm(param.grad)
                    if norm != 0 and not torch.isnan(norm):
                        param.data.add_(param.grad / norm)

        def restore(self):
            for name, param in self.model.named_parameters():
                if param.requires_grad:
                    assert name in self.backup
                    param.data = self.backup[name]
            self.backup = {}

    words, model = nn.Embedding(10, 5), net()
    opt = torch.optim.SGD([*words.parameters(), *model.parameters()], lr=0.01)
    fgm = FGM(words)

    def step(x):
        loss = model(words(x)).pow(2).mean()
        loss.backward()
        fgm.attack()
        model(words(x)).pow(2).mean().backward()
        fgm.restore()
        opt.step()
        opt.zero_grad()
        return loss.item()

    return Program(step, [(torch.randint(0, 10, (4,)),) for _ in range(CALLS)], state=(words, model))


@program()
def descent_by_hand():
    model = net()

    def step(x):
        loss = model(x).pow(2).mean()
        loss.backward()
        for p in model.parameters():
            p.data -= 0.1 * p.grad.data
            p.grad.data.zero_()
        return loss.item()

    return Program(step, inputs(), state=model)


@program()
def averages_assigned():
    model = net()
    average = copy.deepcopy(model)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x):
        loss = (model(x) - average(x).detach() + 1).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        for p, q in zip(model.parameters(), average.parameters()):
            q.data = q.data * 0.9 + p.data * 0.1
        return loss.item()

    return Program(step, inputs(), state=(model, average))


@program()
def averages_put_in_for_evaluation():
    model = net()
    shadow = {name: p.data.clone() + 1 for name, p in model.named_parameters()}

    def step(x):
        backup = {}
        for name, p in model.named_parameters():
            backup[name] = p.data
            p.data = shadow[name]
        with torch.no_grad():
            y = model(x)
        for name, p in model.named_parameters():
            p.data = backup[name]
        return y

    return Program(step, inputs(), state=(model, shadow))


@program()
def parameters_from_one_vector():
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        vector = nn.utils.parameters_to_vector(model.parameters()).detach()
        nn.utils.vector_to_parameters(vector + 0.1, model.parameters())
        opt.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        nn.utils.vector_to_parameters(vector, model.parameters())
        opt.step()
        return loss.item()

    return Program(step, inputs(), state=model)


@program()
def gradients_clipped_by_assignment():
    w = weight()
    opt = torch.optim.SGD([w], lr=0.1)

    def step(x):
        opt.zero_grad(set_to_none=False)
        (x * w * w).sum().backward()
        w.grad.data = w.grad.data.clamp(-1, 1)
        opt.step()

    return Program(step, inputs(), state=w)


@program()
def running_mean_assigned():
    norm = nn.BatchNorm1d(5)

    def step(x):
        norm(x)
        norm.running_mean.data = norm.running_mean.data * 0.5
        return norm.running_mean.sum().item()

    return Program(step, inputs(), state=norm)


@program(speculated=20, compiles=1)
def iterations_of_any_number_before():
    cell = nn.RNNCell(3, 3)

    def step(x):
        h = torch.zeros(2, 3)
        for p in cell.parameters():
            p.grad = None
        for t in range(x.shape[0]):
            h = cell(x[t], h)
        h.sum().backward()
        for p in cell.parameters():
            p.data = p.data - 0.1 * p.grad
        return h.sum().item()

    return Program(step, [(torch.randn(i % 7 + 4, 2, 3),) for i in range(24)], state=cell)


# -- who shares memory with whom -------------------------------------------------------------------------------------


@program()
def memory_in_common_afterwards():
    w, kept = weight(), {}

    def step(x):
        kept["old"] = w.data * 0.5 + x[0]
        w.data = kept["old"]
        return (x * w).sum().item()

    before = {5: lambda: kept["old"].add_(3), 8: lambda: w.data.mul_(2)}
    return Program(step, inputs(), before, state=(w, kept))


@program()
def memory_that_somebody_outside_looks_at():
    w = weight()
    outside = [w.data, w.detach()]

    def step(x):
        with torch.no_grad():
            w.add_(1)
        w.data = w.data * 0.5
        return (x * w).sum().item()

    return Program(step, inputs(), state=(w, outside))


@program()
def old_memory_given_out():
    w, kept = weight(), {}

    def step(x):
        kept["backup"] = w.data
        w.data = w.data * 0.5 + x[0]
        kept["part"] = w.detach()[1:]
        return (x * w).sum().item()

    return Program(step, inputs(), state=(w, kept))


@program()
def changed_by_either_name():
    w = weight()

    def step(x):
        y = x[0] * 2
        w.data = y
        y.add_(1)
        first = w.sum().item()
        w.data.mul_(3)
        second = y.sum().item()
        with torch.no_grad():
            w.sub_(1)
        return y, first, second, w.detach(), y[1:]

    return Program(step, inputs(), state=w)


@program()
def fetched_before_and_after():
    w = nn.Parameter(torch.ones(()))

    def step(x):
        first = w.item()
        w.data = w.data * 0.5 + x[0, 0]
        second = w.item()
        with torch.no_grad():
            w.mul_(2)
        return first, second, w.item(), w

    return Program(step, inputs(), state=w)


@program()
def shown_before_and_after():
    w = weight(3)

    def step(x):
        print(w.sum().item(), w.data)
        w.data = w.data * 0.5
        print(w)
        w.data = w.data * 0.5
        return (x[:, :3] * w).sum().detach()

    return Program(step, inputs(), state=w)


@program()
def seen_by_native_code():
    w, log = weight(), []

    def step(x):
        log.append(float(np.sum(w.detach().numpy())))
        w.data = w.data * 0.5 + x[0]
        log.append(float(np.sum(w.detach().numpy())))

    return Program(step, inputs(), state=(w, log))


@program(refused="is changed later in the step")
def given_to_native_code_and_put_elsewhere():
    state = torch.ones(5)

    def step(x):
        total = float(np.linalg.norm(state))
        state.data = state.data * 0.5
        return total

    return Program(step, inputs(), state=state)


@program(speculated=16, compiles=2)
def a_tensor_decides():
    w = weight()

    def step(x):
        if (x * w).sum() > 0:
            w.data = w.data * 0.5 + x[0]
        else:
            w.data.add_(1)
        return (x * w).sum().item()

    return Program(step, inputs(24), state=w)


@program()
def between_forward_and_backward():
    w = weight()

    def step(x):
        w.grad = None
        loss = (x * w * w).sum()
        w.data = w.data * 0.5
        loss.backward()
        return w.grad.clone()

    return Program(step, inputs(), state=w)


def with_a_backward_to_come(step, w):
    held = {}

    def begin():
        held["loss"] = (w * w).sum()

    def end():
        try:
            held.pop("loss").backward()
            held["result"] = w.grad.clone()
        except RuntimeError as error:
            held["result"] = str(error).partition(";")[0]
        w.grad = None

    return Program(step, inputs(), {6: begin, 7: end, 8: begin, 9: end}, state=(w, held))


@program()
def used_by_a_graph_outside():
    w = weight()

    def step(x):
        w.data = w.data * 0.5

    return with_a_backward_to_come(step, w)


@program()
def used_by_a_graph_outside_and_changed():
    w = weight()

    def step(x):
        w.data = w.data * 0.5
        with torch.no_grad():
            w.add_(1)

    return with_a_backward_to_come(step, w)


@program()
def made_in_the_step():
    def step(x):
        one, two = torch.zeros(4, 5), torch.zeros(4, 5)
        one.data = x * 2
        one.add_(1)
        two.data = x
        return one, two * 2

    return Program(step, inputs())


@program(speculated=8)
def passed_in_on_the_same_memory():
    w = weight()

    class Box:
        pass

    box = Box()
    box.x = torch.randn(4, 5)

    def step(x):
        box.x.add_(1)
        y = (box.x[0] * w).sum().item()
        w.data = w.data * 0.9 + x[0]
        return y

    def share():
        box.x = w.data.expand(1, 5)

    def part():
        box.x = torch.randn(4, 5)

    return Program(step, inputs(14), {6: share, 9: part}, state=(w, box))


@program(speculated=6)
def raises_after_it():
    w = weight()

    def step(x, number):
        w.data = w.data * 0.5
        if number == 7:
            raise ValueError("seven")
        return (w * x[0]).sum().item()

    return Program(step, [(torch.randn(4, 5), i) for i in range(CALLS)], state=w)


# -- what is left to Python --------------------------------------------------------------------------------------------


@program(refused="the two differ in size")
def another_dtype():
    w = weight()

    def step(x):
        w.data = w.data.double() if w.dtype is torch.float32 else w.data.float()
        return w.sum().item()

    return Program(step, inputs(), state=w)


@program(refused="leaves a tensor in the memory of another")
def two_change_places():
    one, two = weight(), nn.Parameter(torch.zeros(5))

    def step(x):
        one.data, two.data = two.data, one.data
        with torch.no_grad():
            one.add_(x[0])
        return (one - two).sum().item()

    return Program(step, inputs(), state=(one, two))


@program(refused="shares its memory with another")
def target_on_the_memory_of_a_model():
    one, two = weight(), nn.Parameter(torch.zeros(5))

    def step(x):
        with torch.no_grad():
            one.add_(x[0])
        two.data = one.data
        return (one - two).sum().item()

    return Program(step, inputs(), state=(one, two))


@program(refused="shares its memory with another")
def changed_through_the_other_at_the_next_call():
    w, kept = weight(), {"old": torch.zeros(5)}

    def step(x):
        kept["old"].add_(x[0])
        y = (x * w).sum().item()
        kept["old"] = w.data * 0.5
        w.data = kept["old"]
        return y

    return Program(step, inputs(), state=(w, kept))
