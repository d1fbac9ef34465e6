"""``str.format()`` of tensors and changing numbers by name, as meters do, and beside the program's own objects."""

import torch

from tests.programs.harness import CALLS, Program, program


class Meter:
    def __init__(self, name, spec):
        self.name, self.spec, self.owner = name, spec, self
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count

    def __str__(self):
        return ("{name} {val" + self.spec + "} ({avg" + self.spec + "})").format(**self.__dict__)


class Counter:
    def __init__(self):
        self.count = 0

    def __str__(self):
        return f"#{self.count}"

    def __format__(self, spec):
        return f"{self.count}/{spec}"


def inputs():
    return [(number, torch.randn(3)) for number in range(CALLS)]


@program()
def a_meter_of_tensors():
    meter, reported = Meter("Acc", ":6.2f"), []

    def step(number, x):
        meter.update(x.sum(), len(x))
        reported.append(str(meter))
        return meter.avg

    return Program(step, inputs(), state=[meter.val, reported])


@program()
def numbers_by_name():
    def step(number, x):
        known = {"epoch": number, "loss": x.mean().item(), "unused": x}
        return "{epoch:>4} {loss:.4f} {0} {{}} {loss!r}".format(number, **known)

    return Program(step, inputs())


@program()
def widths_by_name():
    def step(number, x):
        return "{x:{width}.{digits}f}".format(x=x.sum(), width=8 + number, digits=3)

    return Program(step, inputs())


@program()
def templates_that_are_wrong():
    def step(number, x):
        reported = []
        for template in ("{x} {y", "{x} {y}", "{x} {0}"):
            try:
                reported.append(template.format(x=x.sum()))
            except (ValueError, KeyError, IndexError) as error:
                reported.append(str(error))
        return reported

    return Program(step, inputs())


@program()
def an_object_that_counts_beside_a_tensor():
    counter = Counter()

    def step(number, x):
        counter.count += 1
        total = x.sum()
        return (
            "{} {:.2f}".format(counter, total),
            "{c!s:>5} {x:.2f} {{}} {c:>7}".format(c=counter, x=total),
            "{1:.3f} {0!s}".format(counter, total.item()),
        )

    return Program(step, inputs(), state=counter)


@program(speculated=0, refused="is turned into text")
def an_attribute_asked_for_by_a_template():
    counter = Counter()

    def step(number, x):
        counter.count += 1
        return "{c.count} {x:.2f}".format(c=counter, x=x.sum())

    return Program(step, inputs(), state=counter)
