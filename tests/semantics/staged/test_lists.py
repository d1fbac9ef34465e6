"""Lists of unknown length: what comprehensions keep of which a staged value decides, and what staged loops and arms
append; and tensors that grow in a loop."""

from __future__ import annotations

import pytest
import torch

import torchjanus
from tests.semantics.staged.checking import agree, first_of, grads_agree
from torchjanus import Rep

KNOWN = (Rep(torch.float32, ("N", 3)), Rep(int))
_DRAWN = torch.Generator().manual_seed(0)
INPUTS = [(torch.randn(n, 3, generator=_DRAWN), k) for n in (0, 1, 2, 5) for k in (0, 1, 2, 4)]


def another_variable_of_an_iteration(x, n):
    a = []
    for row in x:
        a.append(row)
        b = a
    a.append(x.sum(0))
    return len(a)


def nested_append(x, n):
    out = []
    for k in range(n):
        for row in x:
            if row.sum() > 0:
                out.append(row * k)
    total = torch.zeros(3)
    for r in out:
        total = total + r
    return total, len(out)


def two_lists(x, n):
    pos, neg = [], []
    for row in x:
        if row[0] > 0:
            pos.append(row)
        else:
            neg.append(row.sum())
    return len(pos), len(neg), pos, neg


def last_element(x, n):
    hs = [torch.zeros(3)]
    for row in x:
        hs.append(torch.tanh(hs[-1] + row))
    return torch.stack(hs), hs[-1], hs[n % 1]


def break_append(x, n):
    out = []
    k = 0
    while True:
        if k >= n:
            break
        out.append(k)
        if k == 2:
            continue_ = True
            k += 2
            continue
        k += 1
    return out


def extend(x, n):
    out = []
    for k in range(n):
        out.extend([k, k * k])
        out += [-k]
    return out


def rebinding(x, n):
    out = []
    for k in range(n):
        out = out + [k]
    out.append(7) if False else None
    return out


def in_if(x, n):
    out = [x.sum()]
    if n > 1:
        out.append(x.sum() / 3)
    out.append(x.sum() * 2)
    return out, len(out)


def helper_append(x, n):
    out = []

    def add(v):
        out.append(v)

    for k in range(n):
        add(k)
    return out


def list_of_lists(x, n):
    outs = []
    for row in x:
        cur = []
        for k in range(n):
            cur.append(row * k)
        outs.append(cur)
    return len(outs)


def stack_then(x, n):
    outs = []
    for row in x:
        outs.append(row * 2)
    y = torch.stack(outs, dim=1)
    return y.sum(0), y.shape[1], torch.cat(outs).shape[0]


def filtered(x, n):
    kept = [row for row in x if row.sum() > 0 if row[0] < 1]
    return len(kept), torch.stack(kept) if kept else torch.zeros(0, 3)


def filtered_numbers(x, n):
    sq = [k * k for k in range(n) if k != 2]
    return sum(sq), sq, max(sq) if False else 0


def filter_known(x, n):
    names = [k for k in range(5) if k < n]
    total = x.sum()
    for k in names:
        total = total + k
    return total, sum(names), len(names), names, [*names] if False else 1


def enumerate_list(x, n):
    kept = [row for row in x if row.sum() > 0]
    total = torch.zeros(3)
    for k, (a, b) in enumerate(zip(kept, kept)):
        total = total + a * k + b
    for r in reversed(kept):
        total = total * 0.5 + r
    return total


def returned_early(x, n):
    out = []
    for row in x:
        if row.sum() > 2:
            return len(out), row
        out.append(row)
    return len(out), torch.zeros(3)


def raises_empty(x, n):
    out = []
    for k in range(n):
        out.append(x)
    return torch.stack(out)


def index_error(x, n):
    out = [k for k in range(n) if k != 1]
    return out[1]


def grow_tensor(x, n):
    y = x.sum(0, keepdim=True)
    while y.shape[0] < n:
        y = torch.cat([y, y[-1:] * 2])
    return y


def grow_two(x, n):
    y, z = x, x
    for k in range(n):
        y = torch.cat([y, x])
        z = y[: k + 1]
    return y, z


def slices(x, n):
    out = [k for k in range(n) if k != 1]
    return out[1:], out[:-1], out[::-1], out + [5], [3] + out


def truth_of_a_list(x, n):
    out = [k for k in range(n) if k > 1]
    if not out:
        return -1
    return out[-1]


def class_of_a_list(x, n):
    out = [k for k in range(n) if k > 1]
    return (1 if type(out) is list else 2), isinstance(out, list)


def outputs_of_a_known_loop(x, n):
    outputs = []
    total = x.sum()
    for k in range(4):
        total = total + k
        outputs.append(total)
        if total > 3 + n:
            break
    else:
        outputs.append(total * 2)
    return outputs, len(outputs)


def known_pairs(x, n):
    outputs = []
    for k, (a, b) in enumerate(zip([1.0, 2.0, 3.0], (n, 1, 2))):
        if a * b > 2:
            continue
        outputs.append(x.sum() * k)
        for j in (1, 2):
            if n > j:
                outputs.append(x.sum() + j)
                if x.sum() > 2:
                    break
    return outputs


def filter_of_rows(x, n):
    """The filter of a comprehension is decided by a staged value for rows of known number, too."""
    total = torch.zeros(())
    for value in [value * n for value in x.sum(0) if value > 0]:
        total = total * 0.5 + value
    return total


def two_filters(x, n):
    return [k * k for k in range(n) if k % 2 == 0 if k < 3]


def variable_of_another_function(x, n):
    count = 0

    def tick(y):
        nonlocal count
        count += 1
        if y.sum() > 0:
            count += 10
        return y * 0.5 - 0.1

    x = tick(x)
    for _ in range(n):
        x = tick(x)
    return x, count


def one_way_by_another_function(x, n):
    seen = 0

    def note():
        nonlocal seen
        seen = seen + n

    if n > 1:
        note()
    return seen


def largest(x, n):
    return max(x.sum(), torch.zeros(()) + n), min(n, 3)


def elements(x, n):
    """Indices that are not known, within slices."""
    y = torch.zeros(3, 5)
    if n < 3:
        y[:, n] = 1.0
        y[n, n + 1] = 2.0
        y[n, 1:n] += 1
        return y, y[..., n], y[None, n, :2], y[n][0]
    return y, y[..., 0], y[None, 0, :2], y[0][0]


AGREE = [
    another_variable_of_an_iteration,
    nested_append,
    two_lists,
    last_element,
    break_append,
    extend,
    rebinding,
    in_if,
    helper_append,
    list_of_lists,
    stack_then,
    filtered,
    filtered_numbers,
    filter_known,
    enumerate_list,
    returned_early,
    raises_empty,
    index_error,
    grow_tensor,
    grow_two,
    slices,
    truth_of_a_list,
    class_of_a_list,
    filter_of_rows,
    outputs_of_a_known_loop,
    known_pairs,
    two_filters,
    variable_of_another_function,
    one_way_by_another_function,
    largest,
    elements,
]


@pytest.mark.parametrize("fn", AGREE, ids=lambda fn: fn.__name__)
def test_agrees(fn):
    agree(fn, KNOWN, *INPUTS)


@pytest.mark.parametrize("fn", [last_element, stack_then, filter_of_rows, grow_tensor, nested_append])
def test_gradients(fn):
    grads_agree(first_of(fn), KNOWN, *[(x.clone().requires_grad_(), n) for x, n in INPUTS if len(x)])


# -- what is refused ------------------------------------------------------------------------------------------------


def another_variable(x, n):
    a = []
    b = a
    for row in x:
        a.append(row)
    return len(b), len(a)


def in_a_dictionary(x, n):
    a = []
    box = {"a": a}
    for row in x:
        a.append(row)
    return len(box["a"])


def either_of_two(x, n):
    a = []
    b = a
    if n > 2:
        a.append(x)
        b = [x]
    b.append(x * 2)
    return len(a), len(b)


def compared(x, n):
    return [k for k in range(n) if k > 1] == []


def of_different_kinds(x, n):
    out = []
    for k in range(n):
        out.append(k if n > 2 else k * 0.5)
        out.append(x.sum())
    return out


def of_tuples(x, n):
    out = []
    for k in range(n):
        out.append((k, x))
    return out


class Keeper:
    def __init__(self):
        self.kept = []

    def add(self, v):
        self.kept.append(v)


def of_an_object(x, n):
    keep = Keeper()
    for k in range(n):
        keep.add(k)
    return keep.kept


def fill(out, n):
    for k in range(n):
        out.append(k)


def given_to_a_function(x, n):
    out = []
    fill(out, n)
    return out


def popped(x, n):
    out = []
    for k in range(n):
        out.append(k)
        if k > 2:
            out.pop()
    return out


def advanced_in_an_arm(x, n):
    def numbers():
        for k in range(3):
            yield k

    outputs = []
    for k in numbers():
        outputs.append(x.sum() + k)
        if x.sum() > n:
            break
    return outputs


def known_with_return(x, n):
    outputs = []
    for name in ["a", "b", "c"]:
        if x.sum() > len(name) + 2:
            return outputs, n
        outputs.append(x.sum())
        x = x + 1
    return outputs, n + 1


def sum_of_tensors(x, n):
    return sum([row for row in x.sum(0) if row > 0])


def changed_argument(xs):
    for _ in range(3):
        xs.append(1)
    return len(xs)


REFUSED = {
    another_variable: "staged-mutation", in_a_dictionary: "staged-mutation", either_of_two: "staged-mutation",
    compared: "staged-value", of_different_kinds: "staged-left", of_tuples: "staged-length",
    of_an_object: "staged-mutation", given_to_a_function: "staged-mutation", popped: "staged-value",
    sum_of_tensors: "staged-left", known_with_return: "staged-mutation", advanced_in_an_arm: "staged-mutation",
}  # fmt: skip


@pytest.mark.parametrize("fn", REFUSED, ids=lambda fn: fn.__name__)
def test_is_refused(fn):
    with pytest.raises(torchjanus.NotStaged) as refused:
        torchjanus.staged(fn)(*KNOWN)
    refusal = refused.value.refusal
    assert refusal.reason == REFUSED[fn]
    assert refusal.place.file == __file__
    assert refusal.place.line > 1
    assert refusal.why
    assert refusal.remedy


def test_a_list_from_before_the_call_is_not_changed():
    with pytest.raises(torchjanus.NotStaged) as refused:
        torchjanus.staged(changed_argument)(Rep([1, 2]))
    assert refused.value.refusal.reason == "staged-mutation"
