"""Numbers that recursive calls count: the text of what makes the new one."""

import operator

from torchjanus.core.access_path import AccessPath
from torchjanus.graph.recursion.variants.counts import counting_text
from torchjanus.trace.values import Apply, Read

VISITS, DEPTH = AccessPath.parameter("visits"), AccessPath.parameter("depth")


def test_other_numbers_are_those_of_the_call() -> None:
    expr = Apply(max, (Apply(operator.add, (Read(VISITS), 1)), Read(DEPTH)))
    depth = 7
    names = {max: "max", operator.add: "add"}
    text = counting_text(expr, VISITS.token, lambda part: "depth" if part == Read(DEPTH) else repr(part), names.get)
    made = eval(text, {"add": operator.add, "depth": depth})
    assert (made(1), made(9)) == (7, 10)
