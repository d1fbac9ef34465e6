"""Variables that some arms leave bound to nothing: `del`, and `except ... as e`, which Python deletes."""

import torch

from tests.programs.harness import Program, program

RUN_ONE_IN = 3


def rows(seed, count=60):
    made = torch.Generator().manual_seed(seed)
    return [(torch.randn(3, 3, generator=made),) for _ in range(count)]


@program(speculated=15, compiles=30)
def tensors_deleted_by_an_arm():
    def step(x):
        for row in x:
            if row[0] > 0:
                last = row * 2
                if row[1] > 0:
                    del last
        try:
            return x + last
        except NameError:
            return x + 7

    return Program(step, rows(0))


@program(speculated=20, compiles=30)
def numbers_deleted_by_an_arm():
    def step(x):
        n = 3
        for row in x:
            if row[0] > 0.7:
                n = 5
                if row[1] > 0:
                    del n
        try:
            return n, x * n
        except UnboundLocalError:
            return "no"

    return Program(step, rows(1, 80))


@program(speculated=10, compiles=30)
def handlers_that_delete_their_name():
    def step(x):
        error = x[0]
        for row in x:
            if row[0] > 0.0:
                try:
                    if row[1] > 0:
                        raise ValueError("a")
                except ValueError as error:
                    pass
            else:
                error = row
        try:
            return x + error
        except UnboundLocalError as other:
            return x + 7, str(other)

    return Program(step, rows(0))


@program(speculated=10, compiles=30)
def variables_of_the_function_around():
    def step(x):
        last = x[0]

        def look():
            nonlocal last
            for row in x:
                if row[0] > 0:
                    last = row * 2
                    if row[1] > 0:
                        del last

        look()
        try:
            return last
        except NameError as error:
            return str(error)

    return Program(step, rows(2))


@program(speculated=20, compiles=30)
def deleted_by_single_branches():
    def step(x):
        first, second = x[0], x[1]
        if x[0, 0] > 0:
            del first
        if x[0, 1] > 0:
            second = x[2]
        else:
            try:
                raise KeyError
            except KeyError as second:
                pass
        found = []
        try:
            found.append(first)
            found.append(second)
        except NameError as error:
            found.append(str(error))
        return found

    return Program(step, rows(3))
