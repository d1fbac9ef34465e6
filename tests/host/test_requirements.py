"""Generated guards say what the assumptions say, over many heaps, and change nothing."""

from __future__ import annotations

import collections
import copy
import operator
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchjanus.core.access_path import AccessPath, Step, read_item
from torchjanus.core.errors import NOWHERE
from torchjanus.host.assumption import (
    Arguments,
    Assumption,
    Condition,
    ContainerKeys,
    Emptiness,
    Identity,
    KeyPresence,
    SameObject,
    TypeOf,
    ValueOf,
)
from torchjanus.host.checks import same_keys, same_value
from torchjanus.host.embed import compile_with_constants
from torchjanus.host.requirements import Requirements
from torchjanus.host.source import Source
from torchjanus.trace.values import Apply, Read

MISS = object()
BROKEN = (KeyError, AttributeError, IndexError, TypeError, ValueError, NameError, ReferenceError)


def guard(assumptions: list[Assumption]) -> Any:
    """A function over args and kwargs that says whether all of the assumptions hold, by generated code."""
    source = Source("        ")
    requirements = Requirements(source)
    for assumption in assumptions:
        requirements.require(assumption)
    requirements.require_collected()
    source.flush()
    text = "\n".join(
        ["def check(args, kwargs):", "    try:", *source.lines, "        pass", "    except BROKEN: return MISS",
         "    return True"]
    )  # fmt: skip
    scope: dict[str, Any] = {
        "MISS": MISS,
        "BROKEN": BROKEN,
        "same_keys": same_keys,
        "same_value": same_value,
        "item": read_item,
        "same": operator.is_,
    }
    compile_with_constants(text, "<test>", source.names, scope)
    return lambda args, kwargs: scope["check"](args, kwargs) is True


def agree(assumptions: list[Assumption], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    expected = all(a.holds(args, kwargs) for a in assumptions)
    assert guard(assumptions)(args, kwargs) is expected, [str(a) for a in assumptions]
    return expected


X = AccessPath.arg(0, "x")
MODEL = SimpleNamespace(rate=0.5, on=True, n=1, parts=[1, 2.0, "three"], table={"a": 1, 2: None}, none=None)
INNER = {"lr": 0.0, "name": "sgd"}


def about(value: Any) -> list[Assumption]:
    """Assumptions on x, such that each holds for ``value`` or not."""
    k, pinned = X.item("k"), AccessPath.const(MODEL).attribute("rate")
    return [
        ValueOf(NOWHERE, k, value),
        TypeOf(NOWHERE, k, type(value)),
        Identity(NOWHERE, k, MODEL.table),
        ValueOf(NOWHERE, pinned, value),
        ValueOf(NOWHERE, X.attribute("k"), value),
    ]


VALUES = [0, 0.0, -0.0, 1, 1.0, True, False, None, "", "a", b"a", float("nan"), float("inf"), 1j, (), (1,), 2**70, 0.5]


@pytest.mark.parametrize("then", VALUES, ids=repr)
@pytest.mark.parametrize("now", VALUES, ids=repr)
def test_values_agree(then: Any, now: Any) -> None:
    for heap in ({"k": now}, collections.OrderedDict(k=now), SimpleNamespace(k=now), {}, None):
        for assumption in about(then):
            agree([assumption], (heap,), {})
    expected = type(now) is type(then) and repr(now) == repr(then)
    assert agree([ValueOf(NOWHERE, X.item("k"), then)], ({"k": now},), {}) is expected


values = st.sampled_from(VALUES)
keys = st.sampled_from(["k", "a", 1, 1.0, True, None])
heaps = st.recursive(
    values,
    lambda inner: st.one_of(
        st.dictionaries(keys, inner, max_size=3),
        st.lists(inner, max_size=3),
        st.builds(lambda v: SimpleNamespace(k=v), inner),
        st.builds(lambda v: collections.defaultdict(list, k=v), inner),
    ),
    max_leaves=6,
)
access_paths = st.recursive(
    st.sampled_from([X, AccessPath.arg(1), AccessPath.kwarg("w")]),
    lambda inner: st.one_of(
        st.builds(lambda o, key: o.item(key), inner, keys),
        st.builds(lambda o: o.attribute("k"), inner),
        st.builds(lambda o: o.then(Step.LEN), inner),
    ),
    max_leaves=3,
)
assumptions = st.one_of(
    st.builds(lambda o, v: ValueOf(NOWHERE, o, v), access_paths.filter(lambda o: o.step is not Step.LEN), values),
    st.builds(lambda o, v: TypeOf(NOWHERE, o, type(v)), access_paths, values),
    st.builds(
        lambda o, key, p: KeyPresence(NOWHERE, o, key, p), access_paths, st.sampled_from(["k", "a"]), st.booleans()
    ),
    st.builds(lambda a, b, s: SameObject(NOWHERE, a, b, s), access_paths, access_paths, st.booleans()),
    st.builds(lambda n, w: Arguments(NOWHERE, n, w), st.integers(1, 2), st.sampled_from([(), ("w",)])),
    st.builds(lambda o, t: Condition(NOWHERE, Apply(operator.lt, (Read(o), 1)), t), access_paths, st.booleans()),
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(assumptions, min_size=1, max_size=5),
    st.lists(heaps, min_size=1, max_size=2),
    st.none() | heaps,
)
def test_guards_agree_with_assumptions(asked: list[Assumption], args: list[Any], word: Any) -> None:
    kwargs = {} if word is None else {"w": word}
    before = repr((args, kwargs))
    agree(asked, tuple(args), kwargs)
    assert repr((args, kwargs)) == before


def watched_heap() -> SimpleNamespace:
    """An optimizer-like heap whose objects are pinned, as guards mostly meet it."""
    groups = [{"lr": 0.1, "on": True, "off": None, "name": f"g{i}", "hooks": {}} for i in range(12)]
    return SimpleNamespace(groups=groups, state={"step": 0.0, "empty": {}, "full": [1]}, names=("a", 1))


def assumptions_on(heap: SimpleNamespace) -> list[Assumption]:
    root = AccessPath.const(heap)
    groups, state = root.attribute("groups"), root.attribute("state")
    made: list[Assumption] = [
        Arguments(NOWHERE, 1, ()),
        Identity(NOWHERE, groups, heap.groups),
        Identity(NOWHERE, state, heap.state),
        ValueOf(NOWHERE, groups.then(Step.LEN), 12),
        ValueOf(NOWHERE, state.item("step"), 0.0),
        Identity(NOWHERE, state.item("empty"), heap.state["empty"]),
        Emptiness(NOWHERE, state.item("empty"), False),
        Identity(NOWHERE, state.item("full"), heap.state["full"]),
        Emptiness(NOWHERE, state.item("full"), True),
        KeyPresence(NOWHERE, state, "other", False),
        ContainerKeys(NOWHERE, state, ("step", "empty", "full")),
        ValueOf(NOWHERE, root.attribute("names").item(1), 1),
    ]
    for index, group in enumerate(heap.groups):
        access_path = groups.item(index)
        made += [
            Identity(NOWHERE, access_path, group),
            ValueOf(NOWHERE, access_path.item("lr"), 0.1),
            ValueOf(NOWHERE, access_path.item("on"), True),
            ValueOf(NOWHERE, access_path.item("off"), None),
            ValueOf(NOWHERE, access_path.item("name"), f"g{index}"),
            KeyPresence(NOWHERE, access_path, "extra", False),
            Identity(NOWHERE, access_path.item("hooks"), group["hooks"]),
            Emptiness(NOWHERE, access_path.item("hooks"), False),
        ]
    return made


CHANGES: dict[str, tuple[bool, Any]] = {
    "nothing": (True, lambda h: None),
    "an equal number": (True, lambda h: h.groups[3].update(lr=float("0.1"))),
    "a number": (False, lambda h: h.groups[3].update(lr=0.2)),
    "an int for a float": (False, lambda h: h.state.update(step=0)),
    "minus zero": (False, lambda h: h.state.update(step=-0.0)),
    "nan": (False, lambda h: h.state.update(step=float("nan"))),
    "1 for True": (False, lambda h: h.groups[11].update(on=1)),
    "True for 1": (False, lambda h: setattr(h, "names", ("a", True))),
    "False for None": (False, lambda h: h.groups[0].update(off=False)),
    "a text": (False, lambda h: h.groups[5].update(name="g4")),
    "an extra key that counts": (False, lambda h: h.groups[7].update(extra=None)),
    "an extra key that does not": (True, lambda h: h.groups[7].update(whatever=None)),
    "a missing key": (False, lambda h: h.groups[8].pop("on")),
    "an equal dictionary": (False, lambda h: h.groups.__setitem__(2, copy.copy(h.groups[2]))),
    "equal hooks": (False, lambda h: h.groups[2].update(hooks={})),
    "a hook": (False, lambda h: h.groups[9]["hooks"].update(a=1)),
    "a longer list": (False, lambda h: h.groups.append({})),
    "a shorter list": (False, lambda h: h.groups.pop()),
    "filled": (False, lambda h: h.state["empty"].update(a=1)),
    "emptied": (False, lambda h: h.state["full"].clear()),
    "other order of keys": (False, lambda h: h.state.update(step=h.state.pop("step"))),
    "an attribute gone": (False, lambda h: delattr(h, "groups")),
    "another key": (False, lambda h: h.state.update(other=1)),
}


@pytest.mark.parametrize(("expected", "change"), CHANGES.values(), ids=CHANGES)
def test_a_pinned_heap(expected: bool, change: Any) -> None:
    heap = watched_heap()
    asked = assumptions_on(heap)
    check = guard(asked)
    assert check((1,), {})
    change(heap)
    assert all(a.holds((1,), {}) for a in asked) is expected
    assert check((1,), {}) is expected


@pytest.mark.parametrize("pinned", [True, False])
def test_a_guard_never_calls_a_default_factory(pinned: bool) -> None:
    held: Any = collections.defaultdict(list)
    held["k"] = 1
    base = AccessPath.const(held) if pinned else X
    asked = [ValueOf(NOWHERE, base.item("k"), 1), TypeOf(NOWHERE, base.item("j"), list)]
    assert not guard(asked)((held,), {})
    del held["k"]
    assert not guard(asked)((held,), {})
    assert not guard([Identity(NOWHERE, base.item("m"), [])])((held,), {})
    assert len(held) == 0


def test_a_relaxed_sequence_is_subscripted_once_its_class_is_known() -> None:
    asked = [TypeOf(NOWHERE, X, list), ValueOf(NOWHERE, X.item(0), 3)]
    check = guard(asked)
    assert check(([3],), {})
    assert not check(((3,),), {})
    assert not check(([],), {})


def test_a_counter_answers_for_missing_keys_to_no_guard() -> None:
    held: Any = collections.Counter()
    assert not guard([ValueOf(NOWHERE, X.item("k"), 0)])((held,), {})
    assert not guard([ValueOf(NOWHERE, AccessPath.const(held).item("k"), 0)])((held,), {})


def test_guards_go_below_methods_written_in_python() -> None:
    class Loud(dict):  # type: ignore[type-arg]
        def answer(self, *_: Any) -> Any:
            raise AssertionError("a guard ran Python code of the user's")

        __getitem__ = __contains__ = __len__ = __iter__ = get = answer

    held = Loud(k=1)
    for base in (X, AccessPath.const(held)):
        asked = [
            ValueOf(NOWHERE, base.item("k"), 1),
            KeyPresence(NOWHERE, base, "z", False),
            KeyPresence(NOWHERE, base, "k", True),
            Emptiness(NOWHERE, base, True),
            ContainerKeys(NOWHERE, base, ("k",)),
            ValueOf(NOWHERE, base.then(Step.LEN), 1),
        ]
        assert all(each.holds((held,), {}) for each in asked)
        assert guard([TypeOf(NOWHERE, X, Loud), *asked])((held,), {})


def test_a_path_is_read_once() -> None:
    class Counting:
        reads = 0

        def __init__(self, **held: Any) -> None:
            self.held = held

        def __getattribute__(self, name: str) -> Any:
            if name == "k":
                Counting.reads += 1
            return object.__getattribute__(self, "held")[name] if name in ("k", "a") else super().__getattribute__(name)

    held = Counting(k=SimpleNamespace(a=1, b=2))
    k = X.then(Step.FIELD, "k")
    asked = [ValueOf(NOWHERE, k.then(Step.FIELD, name), value) for name, value in (("a", 1), ("b", 2))]
    assert guard([*asked, TypeOf(NOWHERE, k, SimpleNamespace)])((held,), {})
    assert Counting.reads == 1


def test_no_code_of_a_users_object_is_run_to_subscript_it() -> None:
    class Loud:
        def __getitem__(self, key: Any) -> Any:
            raise AssertionError("a guard ran Python code of the user's")

    assert not guard([ValueOf(NOWHERE, X.item("k"), 1)])((Loud(),), {})
    assert not ValueOf(NOWHERE, X.item("k"), 1).holds((Loud(),), {})


def test_same_value() -> None:
    assert same_value(float("nan"), float("nan"))
    assert not same_value(0.0, -0.0)
    assert not same_value(True, 1)
    assert not same_value(complex(0, 0.0), complex(0, -0.0))


def test_same_keys_does_not_take_true_for_one() -> None:
    assert same_keys({"a": 0, 1: 0}, ("a", 1))
    assert not same_keys({"a": 0, True: 0}, ("a", 1))
    assert not same_keys({"a": 0, 1.0: 0}, ("a", 1))
    assert not same_keys({1: 0, "a": 0}, ("a", 1))


def test_many_states_that_must_not_be_empty_are_asked_at_once():
    states = [{"step": 1}, {"step": 2}, {}]
    access_paths = [AccessPath.const(state) for state in states]
    lengths = [Apply(operator.eq, (Read(access_path.then(Step.LEN)), 0)) for access_path in access_paths]
    check = guard([Condition(NOWHERE, length, number == 2) for number, length in enumerate(lengths)])
    assert check((), {})
    states[2]["step"] = 3
    assert not check((), {})
    states[2].clear()
    states[1].clear()
    assert not check((), {})


def test_identities_as_numbers_are_compared_without_a_warning() -> None:
    """`is` between a literal and an object would be a SyntaxWarning that the program's user sees."""
    thing, other = SimpleNamespace(), SimpleNamespace()
    held = AccessPath.arg(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check = guard([Identity(NOWHERE, held, thing), ValueOf(NOWHERE, held.then(Step.OF, id), id(thing))])
        wrong = guard([Identity(NOWHERE, held, thing), ValueOf(NOWHERE, held.then(Step.OF, id), id(other))])
    assert check((thing,), {}) is True
    assert check((other,), {}) is False
    assert wrong((thing,), {}) is False


def test_the_items_of_a_sequence_are_compared_by_identity():
    items = [torch.ones(1), torch.ones(1), object()]
    held = list(items)
    access_path = AccessPath.const(held)
    whole = guard([Identity(NOWHERE, access_path.item(at), item) for at, item in enumerate(items)])
    part = guard([Identity(NOWHERE, access_path.item(at), items[at]) for at in (0, 2)])
    assert whole((), {}) and part((), {})
    held[1] = torch.ones(1)
    assert not whole((), {}) and part((), {})
    held[1] = items[1]
    held.append(items[0])
    assert whole((), {}) and part((), {})
    del held[1:]
    assert not whole((), {}) and not part((), {})
