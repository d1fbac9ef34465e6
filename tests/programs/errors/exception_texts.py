"""Exception texts with numbers and tensors: they are made again at each call."""

import logging
import warnings

import torch

from tests.programs.harness import CALLS, Program, program

logger = logging.getLogger("reported")


def alike_and_then_not():
    """The first calls are all the same: what they said is no constant."""
    return [(torch.full((2,), float(0 if k < 5 else k)),) for k in range(CALLS)]


def catching(make, reported):
    log = []

    def step(x):
        try:
            raise make(x)
        except (ArithmeticError, LookupError, RuntimeError, ValueError, OSError) as error:
            log.append(reported(error))
        return x + 1

    return Program(step, alike_and_then_not(), state=log)


@program()
def text_of_a_text():
    return catching(lambda x: ValueError(f"v {x.sum().item():.2f}"), str)


@program()
def text_of_a_number():
    return catching(lambda x: ValueError(x.sum().item()), str)


@program()
def text_of_several():
    return catching(lambda x: RuntimeError("too large", x.sum().item(), [x.mean().item()]), str)


@program()
def text_of_a_key():
    return catching(lambda x: KeyError(f"{x.sum().item():.1f}"), lambda error: f"{error} {error!r}")


@program()
def text_of_a_tensor():
    return catching(lambda x: ValueError("tensor", x), lambda error: (str(error), repr(error), f"{error!s:>40}"))


@program()
def text_in_a_template():
    return catching(
        lambda x: ValueError(x.sum().item()),
        lambda error: ("%s" % error, "{}".format(error), "{e} {e!r}".format(e="x"), f"{error}", "a " + str(error)),
    )


@program(speculated=2)
def text_by_keyword():
    return catching(lambda x: ValueError(x.sum().item()), lambda error: "{e}".format(e=error))


@program()
def text_of_a_list_of_them():
    return catching(lambda x: ValueError(x.sum().item()), lambda error: f"{[error]} {(error,)} { {'e': error} }")


@program()
def text_of_the_cause():
    def make(x):
        error = RuntimeError("outer")
        error.__cause__ = ValueError(x.sum().item())
        return error

    return catching(make, lambda error: f"{error}: {error.__cause__}")


class Own(ValueError):
    def __init__(self, value):
        super().__init__(f"own {value:.2f}")
        self.value = value


class Reporting(ValueError):
    def __init__(self, value):
        super().__init__("telling", value)
        self.value = value

    def __str__(self):
        return f"reported {self.value:.1f}"


@program()
def text_of_a_class_of_ones_own():
    return catching(lambda x: Own(x.sum().item()), lambda error: (str(error), error.value, error.args))


@program(speculated=2)
def text_of_a_class_that_tells_its_own():
    return catching(lambda x: Reporting(x.sum().item()), lambda error: (str(error), repr(error)))


@program(refused="is formatted by a ProcessLookupError")
def text_of_an_error_of_the_system():
    return catching(lambda x: OSError(3, f"no {x.sum().item():.1f}"), str)


@program()
def errors_that_are_logged_and_warned_of():
    def step(x):
        try:
            raise ValueError(f"v {x.sum().item():.2f}")
        except ValueError as error:
            logger.warning("failed: %s", error)
            print("failed:", error, [error])
            warnings.warn(f"failed: {error}", stacklevel=1)
        return x + 1

    return Program(step, alike_and_then_not())


@program()
def texts_that_are_collected():
    def step(x):
        reported = []
        for row in x:
            try:
                if row > 3:
                    raise Own(row.item())
                reported.append("fine")
            except Own as error:
                reported.append(str(error).upper())
        return reported

    return Program(step, [(torch.tensor([5.0, 1.0, 4.0 + k // 5]),) for k in range(CALLS)])


# -- numbers by keyword ------------------------------------------------------------------------------------------------


@program()
def dictionaries_made_by_keywords():
    import collections

    def step(x):
        loss = x.sum().item()
        made = dict(loss=round(loss, 3), parts=[loss], n=x.shape[0])
        other = collections.OrderedDict(a=loss, b=2)
        third = collections.defaultdict(float, q=loss)
        third["missing"] += loss
        return made, other, third, dict({"k": loss}, m=loss + 1), dict(**made, c=1), dict([("a", loss)], a=2)

    return Program(step, [(torch.full((2 + k % 3, 2), float(0 if k < 4 else k)),) for k in range(CALLS)])


# -- tensors without sizes ---------------------------------------------------------------------------------------------


@program(speculated=0)
def nested_tensors_that_are_made_where_a_loop_was_gone_through():
    encoder = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=True
    ).eval()

    def step(x, padding):
        total = 0
        with torch.no_grad():
            out = encoder(x, src_key_padding_mask=padding)
            for row in out:
                total = total + row.sum()
        return out, total

    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[0, -2:] = True
    return Program(step, [(torch.randn(3, 5, 8), padding.clone()) for _ in range(CALLS)], state=encoder)
