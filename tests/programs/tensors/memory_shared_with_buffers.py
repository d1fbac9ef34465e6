"""Memory shared with ``array.array``, ``bytearray``, ``memoryview`` and what holds arrays: closures, iterators."""

import array
import functools
import struct

import numpy as np
import torch

from tests.programs.harness import CALLS, Program, program

RUN_ONE_IN = 12  # Each takes a second or two, or is much like the others.

HOST_WRITES = "an array is changed in the step, and a tensor that shares its memory is used after that"
GRAPH_WRITES = "a tensor that shares memory with an array is changed in the step"
NUMBERS = array.array("f", [1.0, 2.0, 3.0, 4.0])
OF_NUMBERS = torch.frombuffer(NUMBERS, dtype=torch.float32)


def inputs(count=CALLS):
    return [(torch.randn(4), number) for number in range(count)]


def floats():
    buffer = array.array("f", [1.0, 2.0, 3.0, 4.0])
    return buffer, torch.frombuffer(buffer, dtype=torch.float32)


def octets(count=16, dtype=torch.float32):
    buffer = bytearray(count)
    return buffer, torch.frombuffer(buffer, dtype=dtype)


@program(refused=HOST_WRITES)
def array_changed_before_its_tensor_is_used():
    buffer, tensor = floats()

    def step(x, number):
        buffer[number % 4] = float(number)
        return (tensor * x).sum()

    return Program(step, inputs(), state=tensor)


@program(refused=HOST_WRITES)
def array_changed_between_two_uses():
    buffer, tensor = floats()

    def step(x, number):
        before = tensor.sum()
        buffer[0] = float(number)
        return before, tensor.sum()

    return Program(step, inputs(), state=tensor)


@program()
def array_changed_after_its_tensor_is_used():
    buffer, tensor = floats()

    def step(x, number):
        total = (tensor * x).sum()
        buffer[number % 4] = float(number)
        return total

    return Program(step, inputs(), state=tensor, between=lambda _: list(buffer))


@program(refused=HOST_WRITES)
def array_of_the_module():
    def step(x, number):
        NUMBERS[number % 4] += 1.0
        return (OF_NUMBERS * x).sum()

    return Program(step, inputs(), state=OF_NUMBERS)


@program(refused=HOST_WRITES)
def array_taken_in_before_it_changes():
    buffer, _ = floats()

    def step(x, number):
        tensor = torch.frombuffer(buffer, dtype=torch.float32)
        before = tensor.sum()
        buffer[0] = float(number)
        return before, tensor.sum()

    return Program(step, inputs(), between=lambda _: list(buffer))


@program()
def array_taken_in_after_it_changes():
    buffer, _ = floats()

    def step(x, number):
        buffer[0] = float(number)
        return (torch.frombuffer(buffer, dtype=torch.float32) * x).sum()

    return Program(step, inputs(), between=lambda _: list(buffer))


@program()
def array_taken_in_before_and_after():
    buffer, _ = floats()

    def step(x, number):
        before = torch.frombuffer(buffer, dtype=torch.float32).sum()
        buffer[0] = float(number)
        return before, torch.frombuffer(buffer, dtype=torch.float32).sum()

    return Program(step, inputs(), between=lambda _: list(buffer))


@program(refused=HOST_WRITES)
def read_between_two_changes_of_the_graph():
    buffer, tensor = floats()

    def step(x, number):
        tensor.add_(1)
        seen = buffer[0]
        tensor.mul_(0.5)
        return seen

    return Program(step, inputs(), state=tensor)


@program(refused=GRAPH_WRITES)
def added_up_by_python():
    buffer, tensor = floats()

    def step(x, number):
        tensor.mul_(0.9).add_(x)
        return sum(buffer)

    return Program(step, inputs(), state=tensor)


@program(refused=HOST_WRITES)
def bytes_changed():
    buffer, tensor = octets(4, torch.uint8)

    def step(x, number):
        before = tensor.sum()
        buffer[number % 4] = number
        return before, tensor.sum()

    return Program(step, inputs(), state=tensor)


@program(refused=HOST_WRITES)
def slice_of_bytes_changed():
    buffer, tensor = octets()

    def step(x, number):
        buffer[0:4] = struct.pack("f", number)
        return (tensor * x).sum()

    return Program(step, inputs(), state=tensor)


@program(refused="uses a memoryview of memory whose size may change")
def bytes_changed_through_a_view():
    buffer, tensor = octets(4, torch.uint8)
    view = memoryview(buffer)[1:]

    def step(x, number):
        before = tensor.sum()
        view[0] = number
        return before, tensor.sum()

    return Program(step, inputs(), state=tensor)


@program(refused=HOST_WRITES)
def packed_into_bytes():
    buffer, tensor = octets()

    def step(x, number):
        struct.pack_into("f", buffer, 4, float(number))
        return (tensor * x).sum()

    return Program(step, inputs(), state=tensor)


@program(refused=HOST_WRITES)
def packed_by_a_struct():
    buffer, tensor = octets()
    layout = struct.Struct("2f")

    def step(x, number):
        layout.pack_into(buffer, 0, float(number), 1.0)
        return (tensor * x).sum()

    return Program(step, inputs(), state=tensor)


@program(refused=HOST_WRITES)
def unpacked_between_two_changes_of_the_graph():
    buffer, tensor = octets()

    def step(x, number):
        tensor.add_(1)
        (seen,) = struct.unpack_from("f", buffer, 0)
        tensor.mul_(0.5)
        return seen

    return Program(step, inputs(), state=tensor)


@program(refused=GRAPH_WRITES)
def view_of_a_tensor_read():
    tensor = torch.zeros(4)
    view = memoryview(tensor.numpy())

    def step(x, number):
        tensor.add_(x)
        return view[number % 4], view.tolist()

    return Program(step, inputs(), state=tensor)


@program(refused=HOST_WRITES)
def view_of_a_tensor_changed():
    tensor = torch.zeros(4)
    view = memoryview(tensor.numpy())

    def step(x, number):
        before = tensor.sum()
        view[number % 4] = float(number)
        return before, tensor.sum()

    return Program(step, inputs(), state=tensor)


@program(refused=GRAPH_WRITES)
def flat_array_read():
    tensor = torch.zeros(2, 2)
    flat = tensor.numpy().flat

    def step(x, number):
        tensor.add_(1)
        seen = float(flat[1])
        tensor.mul_(0.5)
        return seen

    return Program(step, inputs(), state=tensor)


@program(refused=HOST_WRITES)
def flat_array_changed():
    tensor = torch.zeros(2, 2)
    flat = tensor.numpy().flat

    def step(x, number):
        before = tensor.sum()
        flat[number % 4] = number
        return before, tensor.sum()

    return Program(step, inputs(), state=tensor)


@program(refused=HOST_WRITES)
def iterator_kept():
    tensor = torch.zeros(4 * CALLS)
    numbers = iter(tensor.numpy())

    def step(x, number):
        tensor.add_(1)
        seen = float(next(numbers))
        tensor.mul_(0.5)
        return seen

    return Program(step, inputs(), state=tensor)


@program(refused=GRAPH_WRITES)
def places_and_elements_kept():
    tensor = torch.zeros(4 * CALLS)
    numbers = np.ndenumerate(tensor.numpy())

    def step(x, number):
        tensor.add_(1)
        place, seen = next(numbers)
        tensor.mul_(0.5)
        return place, float(seen)

    return Program(step, inputs(), state=tensor)


@program(refused=HOST_WRITES)
def closed_over_by_a_function_of_elements():
    tensor = torch.zeros(4)
    numbers = tensor.numpy()
    look = np.vectorize(lambda place: numbers[place])

    def step(x, number):
        tensor.add_(1)
        seen = look(np.arange(2)).sum()
        tensor.mul_(0.5)
        return float(seen)

    return Program(step, inputs(), state=tensor)


@program(refused=HOST_WRITES)
def changed_by_a_function_of_elements():
    tensor = torch.zeros(4)
    numbers = tensor.numpy()

    def put(place):
        numbers[place] += 1.0
        return place

    put_each = np.frompyfunc(put, 1, 1)

    def step(x, number):
        before = tensor.sum()
        put_each(number % 4)
        return before, tensor.sum()

    return Program(step, inputs(), state=tensor)


@program(refused=GRAPH_WRITES)
def method_of_an_array_kept_in_part():
    tensor = torch.zeros(4)
    total = functools.partial(np.add.reduce, tensor.numpy())

    def step(x, number):
        tensor.add_(1)
        seen = float(total())
        tensor.mul_(0.5)
        return seen

    return Program(step, inputs(), state=tensor)


@program(refused=HOST_WRITES)
def subclass_of_an_array():
    tensor = torch.zeros(2, 2)
    matrix = np.ma.masked_array(tensor.numpy())

    def step(x, number):
        before = tensor.sum()
        matrix[0, 1] = number
        return before, tensor.sum()

    return Program(step, inputs(), state=tensor)


@program(refused=HOST_WRITES)
def record_of_a_structured_array():
    rows = np.zeros(3, dtype=[("place", "f4", (2,)), ("weight", "f4")])
    places, row = torch.from_numpy(rows["place"]), rows[1]

    def step(x, number):
        before = places.sum()
        row["place"] = number
        return before, places.sum()

    return Program(step, inputs(), state=places)


@program()
def read_and_not_changed_by_anybody():
    buffer, tensor = floats()
    view = memoryview(tensor.numpy())

    def step(x, number):
        total = (tensor * x).sum()
        return total * buffer[0], view[number % 4]

    return Program(step, inputs(), state=tensor)


@program()
def memory_that_nobody_shares():
    buffer = bytearray(16)

    def step(x, number):
        struct.pack_into("f", buffer, 0, float(number))
        x.add_(1)
        return x * struct.unpack_from("f", buffer, 0)[0]

    return Program(step, inputs(), between=lambda _: bytes(buffer))


@program(refused="uses a memoryview of memory whose size may change")
def view_made_in_the_step():
    buffer, tensor = octets()

    def step(x, number):
        view = memoryview(buffer).cast("f")
        before = tensor.sum()
        view[0] = float(number)
        return before, tensor.sum()

    return Program(step, inputs(), state=tensor)


@program(refused=HOST_WRITES)
def used_between_a_change_and_being_taken_in_anew():
    numbers = np.zeros(4, np.float32)
    tensor = torch.from_numpy(numbers)

    def step(x, number):
        before = tensor.sum()
        numbers[0] = number
        between = tensor.sum()
        return before, between, torch.from_numpy(numbers).sum()

    return Program(step, inputs(), state=tensor)


@program(refused=HOST_WRITES)
def used_after_another_was_taken_in_anew():
    numbers = np.zeros(4, np.float32)

    def step(x, number):
        first = torch.from_numpy(numbers)
        before = first.sum()
        numbers[0] = number
        second = torch.from_numpy(numbers)
        return before, first.sum(), second.sum()

    return Program(step, inputs())


@program(refused=HOST_WRITES)
def filled_again_by_an_iterator():
    numbers = np.zeros(4, np.float32)

    class Filling:
        def __iter__(self):
            return self

        def __next__(self):
            numbers[:] += 1
            return torch.from_numpy(numbers)

    batches = map(lambda batch: batch, Filling())

    def step(x, number):
        first = next(batches)
        before = first.sum()
        second = next(batches)
        return before, first.sum(), second.sum()

    return Program(step, inputs())


@program(refused=GRAPH_WRITES)
def text_of_an_array_that_the_graph_changes():
    tensor = torch.zeros(3)
    numbers = tensor.numpy()

    def step(x, number):
        tensor.add_(1)
        text = f"{numbers}"
        tensor.mul_(2)
        return text

    return Program(step, inputs(), state=tensor)


@program()
def texts_between_changes_of_the_host():
    numbers = np.zeros(3)

    def step(x, number):
        first = f"{numbers}"
        numbers[0] += 1
        second = str(numbers)
        numbers[1] += 1
        third = "%s" % numbers
        numbers[2] += 1
        return first, second, third, f"{numbers!r}", x * 2

    return Program(step, inputs(), between=lambda _: numbers.copy())
