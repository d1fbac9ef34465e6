"""The table of ATen's operators against PyTorch: schemas, tags, and what operators do to OpInfo's samples."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.robustness.torch_databases.loading import operators
from tests.operator_library import aten_operators
from torchjanus.graph.operators.fused_updates import FUSED_UPDATES
from torchjanus.ops import aten
from torchjanus.ops.aten import (
    DATA_ARGUMENTS,
    INDEXED,
    SAMPLERS,
    Operator,
    in_place_form,
    operator_of,
    out_of_place_form,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # what samples warn of is torch's affair

Call = tuple[tuple[Any, ...], dict[str, Any]]
FEW = 2  # calls of one overload that are kept
# Their kernels do not look whether positions are in range, and end the process: eager does so, too.
UNCHECKED = ("backward", "unpool")


class Meeting(TorchDispatchMode):
    """Keeps what each operator is called with."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: dict[Any, list[Call]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        calls = self.calls.setdefault(func, [])
        if len(calls) < FEW:
            calls.append(copied((args, kwargs or {})))
        return func(*args, **(kwargs or {}))


def copied(call: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda one: one.detach().clone(), call)


def tensors_in(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


@pytest.fixture(scope="module")
def calls() -> dict[Any, list[Call]]:
    """For each overload that OpInfo's samples come to, some calls."""
    torch.manual_seed(0)
    meeting = Meeting()
    for entry in operators():
        for dtype in (torch.float32, torch.int64):
            if dtype not in entry.supported_dtypes("cpu") or entry.name.startswith("jiterator"):
                continue
            with torch.no_grad():
                # ``sample_inputs`` itself walks the whole stack, which is deep under pytest.
                for sample in islice(entry.sample_inputs_func(entry, "cpu", dtype, False), 1):
                    with meeting:
                        entry(sample.input, *sample.args, **sample.kwargs)
    return {
        func: kept
        for func, all_ in meeting.calls.items()
        if operator_of(func).aten
        and (kept := [c for c in all_ if all(t.layout is torch.strided for t in tensors_in(c))])
    }


def of_kind(calls: dict[Any, list[Call]], kind: str) -> Iterator[tuple[Any, Call]]:
    """The calls of operators with a property."""
    for func, kept in calls.items():
        if getattr(operator_of(func), kind):
            yield from ((func, copied(call)) for call in kept)


def test_each_row_names_an_operator() -> None:
    known = {name for one in aten_operators() for name in (operator_of(one).name, one.__name__)}
    known |= {f"torchjanus::{kernel.__name__.strip('_')}" for kernel in FUSED_UPDATES}
    rows = [*aten._BY_HAND.values(), INDEXED, DATA_ARGUMENTS, aten._TOTAL_LINALG]
    assert not {name for names in rows for name in names} - known


def test_what_a_schema_does_not_say_is_no_operator() -> None:
    assert operator_of(len) == operator_of("output") == operator_of(torch.add) == Operator()


def test_each_property_is_that_of_schema_and_tags() -> None:
    for one in aten_operators():
        known, schema = operator_of(one), one._schema
        assert bool(known.writes) == schema.is_mutable, one
        assert known.draws == (torch.Tag.nondeterministic_seeded in one.tags), one
        assert known.view or not any(result.alias_info for result in schema.returns), one
        if known.identity or known.same_elements or known.linear or known.cheap:
            assert all(argument.is_out for argument in schema.arguments if argument.name in known.writes), one
        if (form := in_place_form(one)) is not None:
            assert operator_of(form).writes == (schema.arguments[0].name,)


def test_named_arguments_are_in_the_schemas() -> None:
    named: dict[str, set[str]] = {}
    fused = [getattr(torch.ops.torchjanus, kernel.__name__.strip("_")).default for kernel in FUSED_UPDATES]
    for one in (*aten_operators(), *fused):
        named.setdefault(operator_of(one).name, set()).update(argument.name for argument in one._schema.arguments)
    for name, data in DATA_ARGUMENTS.items():
        assert data <= named[name], name
    for name, pair in INDEXED.items():
        assert {*pair} <= named[name], name


def test_samplers_draw_and_their_in_place_forms_write() -> None:
    for functional, in_place in SAMPLERS.items():
        assert operator_of(functional).draws and operator_of(in_place).draws, functional
        assert not operator_of(functional).writes and operator_of(in_place).writes == ("self",), functional


def test_other_forms_take_arguments_of_the_same_types() -> None:
    ops = torch.ops.aten
    assert (
        out_of_place_form(ops.pow_.Scalar) is ops.pow.Tensor_Scalar
    )  # pow.Scalar is a number to the power of a tensor
    assert out_of_place_form(ops.pow_.Tensor) is ops.pow.Tensor_Tensor
    assert in_place_form(ops.pow.Scalar) is None
    for one in aten_operators():
        for form in (in_place_form(one), out_of_place_form(one)):
            if form is not None:
                types = [{part.name: str(part.type) for part in op._schema.arguments} for op in (one, form)]
                assert types[0] == types[1], (one, form)


def test_an_operator_writes_draws_and_shares_what_the_table_says(calls: dict[Any, list[Call]]) -> None:
    assert len(calls) > 300
    for func, kept in calls.items():
        known = operator_of(func)
        for call in kept:
            args, kwargs = copied(call)
            names = [argument.name for argument in func._schema.arguments]
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            versions = {name: [one._version for one in tensors_in(value)] for name, value in given.items()}
            state = torch.get_rng_state()
            made = func(*args, **kwargs)
            changed = {
                name for name, value in given.items() if [t._version for t in tensors_in(value)] != versions[name]
            }
            assert changed <= {*known.writes}, func
            assert known.draws or torch.equal(state, torch.get_rng_state()), func
            memory = {one.untyped_storage().data_ptr() for one in tensors_in(given) if one.numel()}
            shared = any(
                t.untyped_storage().data_ptr() in memory for t in tensors_in(made) if t.layout is torch.strided
            )
            assert not shared or known.view or known.writes, func
            assert not (shared and known.new_memory), func


def test_results_hold_elements_of_the_first_argument(calls: dict[Any, list[Call]]) -> None:
    for kind in ("same_elements", "picks_elements", "joins"):
        for func, (args, kwargs) in of_kind(calls, kind):
            held = torch.cat([one.flatten() for one in tensors_in(args[0])])
            assert all(torch.isin(one, held).all() for one in tensors_in(func(*args, **kwargs))), func
    for func, (args, kwargs) in of_kind(calls, "finds"):
        values, places = func(*args, **kwargs)
        assert torch.isin(values, args[0]).all() and places.dtype == torch.int64, func
    for func, (args, kwargs) in of_kind(calls, "identity"):
        assert torch.equal(func(*args, **kwargs), args[0]), func


def test_what_overwrites_reads_nothing_of_what_was_there() -> None:
    one, other = torch.rand(3), torch.rand(3)
    for func in aten_operators():
        if operator_of(func).overwrites:
            first, rest = (torch.rand(3), [torch.rand(3), 2.0, torch.tensor(2.0)])
            several = operator_of(func).name.startswith("_foreach")
            for value in [[], *([[one], one][not several] for one in rest if isinstance(one, torch.Tensor)), 2.0]:
                given = value if value == [] else [value]
                try:
                    made = [func([one] if several else one, *given) for one in (one, other)]
                except (RuntimeError, TypeError):
                    continue  # it takes something else
                assert torch.equal(*(one[0] if several else one for one in made)), (func, first)


def test_linear_operators_are_linear(calls: dict[Any, list[Call]]) -> None:
    met = set()
    for func, call in of_kind(calls, "linear"):
        if not any(one.is_floating_point() for one in tensors_in(call)) or any(
            one.numel() and not one.is_floating_point() and one.dtype is not torch.bool for one in tensors_in(call)
        ):
            continue
        if any(type(one) in (int, float) for one in call[0][:2]) and operator_of(func).name in ("add", "sub", "rsub"):
            continue  # adding a number is no linear function

        def varied(by: int, call: Call = call) -> Any:
            made = copied(call)
            for number, one in enumerate(tensors_in(made)):
                if one.is_floating_point():
                    one.copy_(torch.randn(one.shape, generator=torch.Generator().manual_seed(by * 100 + number)))
            return made

        one, other = varied(1), varied(2)
        both = copied(one)
        for total, more in zip(tensors_in(both), tensors_in(other), strict=True):
            if total.is_floating_point():
                total.add_(more)
        parts = [tensors_in(func(*args, **kwargs)) for args, kwargs in (one, other, both)]
        for first, second, total in zip(*parts, strict=True):
            if total.is_floating_point():
                torch.testing.assert_close(first + second, total)
                met.add(operator_of(func).name)
    assert len(met) > 10


def test_rectifying_operators_pass_a_gradient_on_or_none() -> None:
    x = torch.tensor([-2.0, -0.0, 0.0, 3.0], requires_grad=True)
    for func in aten_operators():
        if operator_of(func).rectifies and not operator_of(func).writes:
            (gradient,) = torch.autograd.grad(func(x), x, torch.full((4,), 7.0))
            assert {*gradient.tolist()} <= {0.0, 7.0}, func


@pytest.mark.parametrize("extreme", [float("inf"), float("nan"), -1e30, 0.0])
def test_no_contents_make_an_operator_raise_that_may_not(calls: dict[Any, list[Call]], extreme: float) -> None:
    whole = {float("inf"): 1 << 30, -1e30: -(1 << 30), 0.0: 0}.get(extreme, -1)

    def filled(one: torch.Tensor) -> torch.Tensor:
        if one.is_floating_point():
            return torch.full_like(one, extreme)
        if one.is_complex() or one.dtype is torch.bool:
            return torch.full_like(one, extreme == 0)
        bounds = torch.iinfo(one.dtype)
        return torch.full_like(one, min(max(whole, bounds.min), bounds.max))

    for func, kept in calls.items():
        known = operator_of(func)
        if known.may_raise or any(word in known.name for word in UNCHECKED):
            continue
        for call in kept:
            args, kwargs = pytree.tree_map_only(torch.Tensor, filled, call)
            if known.divides and not all(one.is_floating_point() for one in tensors_in(call)):
                continue
            try:
                func(*args, **kwargs)
            except Exception as error:
                raise AssertionError(f"{func} raises for {extreme}") from error
