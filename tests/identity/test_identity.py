"""CPython's own tests come out alike as they are and rewritten; what does not is listed, and the list only shrinks."""

from __future__ import annotations

import json

import pytest

from tests.identity.child import Reported
from tests.identity.corpus import (
    LATE,
    MODULES,
    QUICK,
    QUICK_WATCHED,
    WAYS,
    Comparison,
    compare,
    differences,
    lacks_tests,
    ways_for,
)
from tests.interpreters import interpreters

LISTED = {False: 12, True: 62}  # rewritten, and watched
QUICK_WAYS = ("in place", "protocols")
# One way a module: each of the two ways is met by half of the modules.
QUICK_RUNS = [(module, QUICK_WAYS[number % 2]) for number, module in enumerate(QUICK)]
FAST = {*QUICK_RUNS, *((module, "watched") for module in QUICK_WATCHED)}
SLOW = [(module, way) for module in MODULES for way in ways_for(module) if (module, way) not in FAST]


def check(module: str, way: str, *interpreter: str) -> None:
    lacking = lacks_tests(*interpreter)
    if lacking:
        pytest.skip(lacking)
    compared = compare(module, way, *interpreter)
    assert not compared.unknown, compared.unknown
    assert not compared.settled, f"agree by now: remove them from differences.toml: {compared.settled}"
    assert not compared.faults, compared.faults
    if way == "watched":
        assert compared.watched > 0.5 * compared.passed
        return
    # Fewer would mean that the tests ran as they are: unittest alone is some sixty functions.
    assert len(compared.functions) > 60
    assert "cannot be rewritten" not in compared.native
    assert compared.passed


@pytest.mark.parametrize(("module", "way"), QUICK_RUNS)
def test_quick_module(module: str, way: str) -> None:
    check(module, way)


@pytest.mark.parametrize("module", QUICK_WATCHED)
def test_quick_module_watched(module: str) -> None:
    check(module, "watched")


@pytest.mark.slow
@pytest.mark.parametrize(("module", "way"), SLOW)
def test_module(module: str, way: str) -> None:
    check(module, way)


@pytest.mark.slow
@pytest.mark.parametrize("interpreter", interpreters())
@pytest.mark.parametrize("module", QUICK)
def test_module_on_other_interpreters(module: str, interpreter: str) -> None:
    check(module, "in place", interpreter)


def test_the_list_of_differences() -> None:
    listed = differences()
    for watched, count in LISTED.items():
        names = [each.test for each in listed if ("watched" in each.ways) is watched]
        assert len(names) == count, "the list only shrinks: a new difference is a fault to be mended"
        assert len(set(names)) == count
    for each in listed:
        assert any(each.is_in(module) for module in MODULES), each.test
        assert each.reason
        assert set(each.python) <= {"3.11", "3.12", "3.13"}
        assert set(each.ways) <= set(WAYS)


def compared(before: dict[str, str], after: dict[str, str]) -> Comparison:
    differ = {name: (before.get(name), after.get(name)) for name in before if before.get(name) != after.get(name)}
    return Comparison("test_descr", "twins", "3.11", len(before), len(before), set(), {}, differ, {})


def test_a_difference_that_is_not_listed_is_reported() -> None:
    name = "test.test_descr.MroTest.test_altmro"
    reported = compared({name: "ok"}, {name: "fail AssertionError"})
    assert reported.unknown.startswith(f"{name}: ok as it is, fail AssertionError rewritten twins")
    assert not reported.known


def test_a_listed_difference_that_is_gone_is_reported() -> None:
    listed = [each for each in differences() if each.holds_for("3.11", "twins")]
    names = [each.test for each in listed if each.is_in("test_descr")]
    agree = compared(dict.fromkeys(names, "ok"), dict.fromkeys(names, "ok"))
    assert agree.settled == names
    differ = compared(dict.fromkeys(names, "ok"), dict.fromkeys(names, "fail AssertionError"))
    assert (differ.settled, differ.unknown) == ([], "")
    assert [each.test for each in differ.known] == names


def lines(*reported: dict[str, object]) -> list[str]:
    return [json.dumps(each) for each in reported]


def test_what_a_fork_tells_of_its_tests_is_put_together() -> None:
    reported = Reported()
    one, other = {"begun": [0, "test.a"]}, {"begun": [1, "test.b"]}
    reported.take(lines(one, {"outcome": ["test.a", "ok", ""]}, {"ended": {"id": "test.a", "watched": 1}}))
    reported.take(lines(other, {"outcome": ["test.b", "error TypeError", "where"]}, {"ended": {"id": "test.b"}}))
    assert reported.outcomes == {"test.a": "ok", "test.b": "error TypeError"}
    assert reported.details == {"test.b": "where"}
    assert reported.all()["watched"] == 1


def test_a_test_that_takes_too_long_is_reported_as_late() -> None:
    reported = Reported()
    begun, parts = {"begun": [0, "test.a"]}, {"outcome": ["test.a (part=1)", "error GeneratorExit", ""]}
    reported.take(lines(begun, parts, {"ended": {"id": "test.a", "too long": True}}))
    assert reported.outcomes == {"test.a": LATE}


def test_a_fork_that_dies_has_said_with_which_test() -> None:
    reported = Reported()
    reported.take(lines({"begun": [3, "test.a"]}))
    assert reported.died("test", "ended with status -11", "why")
    assert reported.outcomes == {"test.a": "ended with status -11"}
    assert set(reported.tests) == {3}
    assert not reported.died("test", "ended with status 1", "its module cannot be imported")
    assert reported.outcomes["test"] == "ended with status 1"
