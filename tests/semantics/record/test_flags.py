"""Flags that a step has set, as what tells recursive functions apart."""

from torchjanus.core.access_path import AccessPath
from torchjanus.semantics.record.flags import Flags

MODEL, OTHER = AccessPath.parameter("model"), AccessPath.parameter("other")


def test_order_makes_no_difference_and_values_do() -> None:
    one, other, model = {}, {}, Flags()
    model.store(one, "training", False, MODEL)
    model.store(other, "training", False, OTHER)
    reversed_loops = Flags()
    reversed_loops.store(other, "training", False, OTHER)
    reversed_loops.store(one, "training", False, MODEL)
    assert model.token == reversed_loops.token != ()
    reversed_loops.store(one, "training", True, MODEL)
    assert model.token != reversed_loops.token


def test_numbers_are_no_flags() -> None:
    flags, held = Flags(), {}
    flags.store(held, "rough", True, MODEL)
    flags.store(held, "rough", 1, MODEL)
    assert flags.at(held) == set()
    assert flags.token == ()


def test_what_is_changed_as_a_whole_is_forgotten() -> None:
    flags, held = Flags(), {}
    flags.store(held, "rough", None, MODEL)
    assert flags.at(held) == {"rough"}
    flags.forget(held)
    assert flags.at(held) == set()
    assert flags.token == ()
