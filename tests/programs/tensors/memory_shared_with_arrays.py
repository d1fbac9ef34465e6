"""NumPy arrays that share memory with tensors: changed by the host, changed by the graph, read by either in between."""

import numpy as np
import torch
from torch import nn

from tests.programs.harness import CALLS, Program, program

RUN_ONE_IN = 12  # Each takes a second or two, or is much like the others.

HOST_WRITES = "an array is changed in the step, and a tensor that shares its memory is used after that"
GRAPH_WRITES = "a tensor that shares memory with an array is changed in the step"
GIVEN = "a tensor that .numpy was given is changed later in the step"


def inputs(count=CALLS):
    return [(torch.randn(4, 5), number) for number in range(count)]


def model_and_optimizer():
    model = nn.Linear(5, 3)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(opt, loss):
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()


@program(refused=HOST_WRITES)
def changed_between_two_uses():
    model, opt = model_and_optimizer()

    def step(x, number):
        array = np.arange(4.0) + number
        tensor = torch.from_numpy(array)
        before = tensor.sum()
        array *= 2
        after = tensor.sum()
        return before, after, train(opt, model(x).pow(2).mean() * float(before))

    return Program(step, inputs(), state=(model, opt))


@program(refused=HOST_WRITES)
def changed_through_a_view():
    model, opt = model_and_optimizer()

    def step(x, number):
        array = np.arange(4.0) + number
        view = array[1:]
        tensor = torch.as_tensor(array)
        view[0] = 7.0
        return train(opt, model(x).pow(2).mean() * float(tensor.sum()))

    return Program(step, inputs(), state=(model, opt))


@program(refused=HOST_WRITES)
def tensor_of_before_used_after_the_array_is_changed():
    model, opt = model_and_optimizer()
    array = np.ones((6, 5), dtype=np.float32)
    tensor = torch.from_numpy(array)

    def step(x, number):
        array[number % 6] *= 1.5
        return train(opt, model(tensor).pow(2).mean())

    return Program(step, inputs(), state=(model, opt, tensor))


@program()
def tensor_of_before_used_before_the_array_is_changed():
    """The host needs what it makes of the changed array, and still changes it after the graph has read it."""
    model, opt = model_and_optimizer()
    array = np.ones((6, 5), dtype=np.float32)
    tensor = torch.from_numpy(array)

    def step(x, number):
        mean = model(tensor).pow(2).mean()
        array[number % 6] *= 1.5
        return train(opt, mean * float(array.sum()) * 1e-3)

    return Program(step, inputs(), state=(model, opt, tensor))


@program()
def filled_and_then_taken_in():
    model, opt = model_and_optimizer()
    array = np.zeros((6, 5), dtype=np.float32)

    def step(x, number):
        array[number % 6] = x[0].numpy()
        return train(opt, model(torch.from_numpy(array)).pow(2).mean())

    return Program(step, inputs(), state=(model, opt), between=lambda _: array.copy())


@program()
def taken_in_and_then_filled():
    model, opt = model_and_optimizer()
    array = np.zeros((6, 5), dtype=np.float32)

    def step(x, number):
        loss = train(opt, model(torch.from_numpy(array)).pow(2).mean())
        array[number % 6] = x[0].numpy()
        return loss

    return Program(step, inputs(), state=(model, opt), between=lambda _: array.copy())


@program(refused=GRAPH_WRITES)
def changed_by_the_graph_and_read_by_the_host():
    model, opt = model_and_optimizer()

    def step(x, number):
        array = np.arange(4.0) + number
        torch.from_numpy(array).add_(1)
        return train(opt, model(x).pow(2).mean() * float(array.sum()))

    return Program(step, inputs(), state=(model, opt))


@program(refused=GRAPH_WRITES)
def read_by_the_host_and_then_changed_by_the_graph():
    model, opt = model_and_optimizer()
    kept = []

    def step(x, number):
        array = np.arange(4.0) + number
        kept.append(array.sum())
        tensor = torch.from_numpy(array)
        tensor.add_(1)
        return tensor, train(opt, model(x).pow(2).mean())

    return Program(step, inputs(), state=(model, opt), between=lambda _: list(kept))


@program()
def centred_by_the_host_and_scaled_by_the_graph():
    model, opt = model_and_optimizer()
    source = np.random.RandomState(0)

    def step(x, number):
        array = source.rand(4, 5).astype(np.float32)
        array -= array.mean()
        tensor = torch.from_numpy(array)
        tensor.div_(2.0).add_(1)
        return tensor, train(opt, model(tensor).pow(2).mean())

    return Program(step, inputs(), state=(model, opt))


@program()
def indices_shuffled_twice():
    """What picks rows is a piece of an array that is shuffled again before the graph is run."""
    model, opt = model_and_optimizer()
    indices, source = np.arange(4), np.random.RandomState(0)

    def step(x, number):
        total = 0.0
        for _ in range(2):
            source.shuffle(indices)
            half = indices[:2]
            total = total + (x * x)[half].sum()
        return total, train(opt, model(x).pow(2).mean() * total)

    return Program(step, inputs(), state=(model, opt))


@program()
def indices_shuffled_between_trainings():
    model, opt = model_and_optimizer()
    indices, source = np.arange(4), np.random.RandomState(0)

    def step(x, number):
        total = 0.0
        for _ in range(2):
            source.shuffle(indices)
            for start in range(0, 4, 2):
                part = indices[start : start + 2]
                total = total + train(opt, model(x[part]).pow(2).mean()) * x[part].sum()
        return total

    return Program(step, inputs(), state=(model, opt))


@program(refused=GIVEN)
def returned_and_then_changed():
    model, opt = model_and_optimizer()

    def step(x, number):
        hidden = model(x).detach()
        array = hidden.numpy()
        before = array.sum()
        hidden.mul_(2)
        return before, array.sum(), train(opt, model(x).pow(2).mean() * float(before))

    return Program(step, inputs(), state=(model, opt))


@program(speculated=CALLS, compiles=4)
def draws_beside_arrays_in_the_middle():
    """Whether a row is appended is decided by an array that the graph hands out: what has been drawn for the way that
    is not taken is drawn anew for the one that is."""
    model, opt = model_and_optimizer()
    source = np.random.RandomState(0)

    def step(x, number):
        rows = []
        for _ in range(4):
            array = torch.softmax(model(x), 1)[:, 0].detach().numpy()
            drawn = (array > 0.3).astype(np.float32) + source.rand(4).astype(np.float32)
            if drawn.sum() > 3.2:
                rows.append(torch.tensor(drawn))
            x = x + torch.as_tensor(drawn)[:, None]
        loss = model(x).pow(2).mean()
        if rows:
            loss = loss + torch.stack(rows).mean() * model.bias.sum()
        return train(opt, loss), len(rows)

    return Program(step, inputs(2 * CALLS), state=(model, opt))


@program(speculated=2 * CALLS - 6, compiles=3)
def rows_of_a_buffer_picked_by_chance():
    class Buffer:
        def __init__(self):
            self.rows, self.count = np.zeros((30, 5), np.float32), 0

        def store(self, row):
            self.rows[self.count % 30] = row
            self.count += 1

        def batch(self, places):
            return torch.as_tensor(self.rows[places], dtype=torch.float32)

    buffer, source = Buffer(), np.random.RandomState(0)
    model, opt = model_and_optimizer()

    def step(x, number):
        acted = model(x).argmax(1).numpy()
        buffer.store(x[0].numpy() + acted.mean())
        if buffer.count < 4:
            return None
        places = source.randint(0, min(buffer.count, 30), size=4)
        return train(opt, model(buffer.batch(places)).pow(2).mean())

    return Program(step, inputs(2 * CALLS), state=(model, opt), between=lambda _: (buffer.count, buffer.rows.copy()))


def decided(count=24):
    """Inputs of which some go another way, and not in the calls that are watched."""
    return [(torch.rand(6) + (5.0 if number % 5 == 4 else 0.0), number) for number in range(count)]


def shuffled_twice(rows_of):
    """A step that looks at an array before it is shuffled again, and decides by tensors behind that."""
    order, source = np.arange(6), np.random.RandomState(0)

    def step(x, number):
        source.shuffle(order)
        first = rows_of(x, order).sum()
        source.shuffle(order)
        second = rows_of(x * x, order).sum()
        return first * 2 - second if x.max() > 3 else first - second

    return Program(step, decided(), between=lambda _: order.tolist())


@program(speculated=19, compiles=2)
def shuffled_twice_as_an_index_and_then_decided():
    return shuffled_twice(lambda x, order: x[order[:2]])


@program(speculated=19, compiles=2)
def shuffled_twice_as_a_tensor_and_then_decided():
    return shuffled_twice(lambda x, order: x[torch.from_numpy(order)][:2])


@program(speculated=19, compiles=2)
def shuffled_twice_as_a_copy_and_then_decided():
    return shuffled_twice(lambda x, order: x[torch.tensor(order)][:2])


@program(speculated=21)
def pieces_of_an_epoch_and_a_stop_that_a_tensor_decides():
    """The loops of a policy's update: pieces of shuffled places, epoch by epoch, up to a limit."""
    model, opt = model_and_optimizer()

    def step(x, number):
        places, losses = np.arange(6), []
        rows = x.unsqueeze(1).expand(6, 5) * 0.1
        for _ in range(3):
            np.random.shuffle(places)
            for start in range(0, 6, 3):
                losses.append(train(opt, model(rows[places[start : start + 3]]).pow(2).mean()))
            if losses[-1] > 0.04:
                break
        return losses

    return Program(step, decided(), state=(model, opt))


@program(speculated=19, compiles=2)
def sorted_and_filled_in_between_and_then_decided():
    values = np.array([5.0, 2.0, 4.0, 1.0, 3.0, 0.0], dtype=np.float32)

    def step(x, number):
        before = (torch.from_numpy(values) * x).sum()
        values.sort()
        sorted_ = (torch.from_numpy(values) * x).sum()
        values[number % 6] = number
        filled = (torch.from_numpy(values) * x).sum()
        return before * 2 + sorted_ if x.max() > 3 else before - sorted_ * filled

    return Program(step, decided(), between=lambda _: values.tolist())


@program(speculated=17)
def an_error_after_two_shuffles():
    order, source = np.arange(6), np.random.RandomState(0)

    def step(x, number):
        source.shuffle(order)
        first = x[order[:2]].sum()
        source.shuffle(order)
        second = x[order[:2]].sum()
        if x.max() > 3:
            raise ValueError(f"{first:.4f} {second:.4f}")
        return first - second

    return Program(step, decided(), between=lambda _: order.tolist())


@program(compiles=4)
def strides_of_arrays_of_views():
    """In mid-step: what is returned of each array is asked for before the step ends."""
    table = torch.arange(24.0).reshape(4, 6)

    def step(x):
        seen = [
            view.numpy()
            for view in (table[:, 1:4], table.t(), table[::2], x.t(), (x * 2)[:, 1:], x[0].expand(3, -1), x[:, ::2])
        ]
        return x + 1, [(a.strides, a.shape, a.flags.c_contiguous, float(a.sum())) for a in seen]

    return Program(step, [(torch.randn(3, 4 + n % 2),) for n in range(CALLS + 4)])


@program()
def strides_of_an_array_that_the_host_gives():
    table = np.arange(24, dtype=np.float32).reshape(4, 6)

    def step(array):
        tensor = torch.from_numpy(array)
        return tensor * 2, tensor.t().numpy().strides, np.ravel(tensor.t().numpy(), order="K")

    return Program(step, [((table, table[:, 1:4])[n % 2],) for n in range(CALLS)])


@program()
def a_view_that_changes_after_native_code_has_seen_it():
    table = torch.zeros(4, 6)

    def step(x, number):
        view = table[:, 1:4]
        view += x[:, :3]
        shown = view.tolist(), view.sum().item(), np.asarray(view.clone().t()).strides
        view *= 2
        return shown, table.sum()

    return Program(step, inputs(), state=table)


@program(refused="takes a bool")
def numpy_flags_as_operands():
    """Torch takes a NumPy bool for a floating-point number."""
    tensors = [torch.tensor(True), torch.tensor([1, 2]), torch.ones(2)]

    def step(x, flag):
        return x + flag, flag * x, torch.full((2,), flag), torch.tensor(flag)

    return Program(step, [(tensors[n % 3], np.bool_(n % 2)) for n in range(CALLS)])


@program()
def numpy_flags_as_conditions():
    def step(x, number):
        right = np.asarray([number, 1]) == 1
        return x * 2 if right.all() else x * 3, torch.tensor(right.any()), x[0] * int(right[0])

    return Program(step, inputs())
