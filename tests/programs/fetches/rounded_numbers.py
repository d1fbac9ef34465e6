"""Numbers of the host that are rounded to a tensor's dtype: no two calls have the same ones."""

import torch

from tests.programs.harness import Program, program


def over(step, count=20):
    return Program(step, [(torch.randn(3) + 2 + k % 4 * 0.3, 1.1 + k % 5 * 0.7, 3 + k % 4) for k in range(count)])


@program(speculated=12)
def floats_in_tensors_of_integers():
    weight = torch.ones(3, requires_grad=True)

    def step(x, rate, count):
        made = torch.tensor(rate, dtype=torch.int64), torch.tensor([rate, 2 * rate], dtype=torch.int32)
        loss = (weight * x * made[0]).sum()
        loss.backward()
        return made, torch.as_tensor(rate, dtype=torch.int64), x.long().new_tensor(rate), weight.grad.tolist()

    return over(step)


@program(speculated=12)
def truths_of_numbers():
    def step(x, rate, count):
        kept = torch.tensor([count - 3, rate > 2, count], dtype=torch.bool)
        return x * kept, torch.tensor(count - 4, dtype=torch.bool), torch.as_tensor(count - 5, dtype=torch.bool)

    return over(step)


@program(speculated=12)
def numbers_in_half_precision():
    def step(x, rate, count):
        return x * torch.tensor(rate, dtype=torch.bfloat16), torch.as_tensor([rate, 1.0], dtype=torch.float16)

    return over(step)


@program(speculated=12)
def floats_put_into_integers():
    def step(x, rate, count):
        counts, marks = x.long(), x > 2
        counts[0] = rate
        counts[1:] = rate * 2
        marks[0] = count - 3
        return counts, marks, torch.full((2,), rate, dtype=torch.int64), counts.clone().fill_(rate)

    return over(step)


@program(speculated=12, compiles=3)
def tensors_of_fetched_numbers():
    weight = torch.ones(3, requires_grad=True)

    def step(x, rate, count):
        total, best = x.sum().item(), x.argmax().item()
        loss = (weight * x).sum() * torch.as_tensor(total)
        loss.backward()
        made = torch.as_tensor(total), torch.asarray(best), x.new_tensor(best), x.long().new_tensor(total)
        return made, torch.as_tensor([total, rate]), weight.grad.tolist()

    return over(step)
