"""CPython's own tests come out alike as they are and rewritten; what does not is listed, and the list only shrinks."""

from __future__ import annotations

import pytest

from tests.identity.corpus import MODULES, QUICK, WAYS, compare, differences, lacks_tests
from tests.interpreters import interpreters

SLOW = [module for module in MODULES if module not in QUICK]


def check(module: str, way: str, *interpreter: str) -> None:
    lacking = lacks_tests(*interpreter)
    if lacking:
        pytest.skip(lacking)
    compared = compare(module, way, *interpreter)
    assert not compared.unknown, compared.unknown
    assert not compared.settled, f"agree by now: remove them from differences.toml: {compared.settled}"
    # Fewer would mean that the tests ran as they are: unittest alone is some sixty functions.
    assert len(compared.functions) > 60
    assert "cannot be rewritten" not in compared.native
    assert compared.passed


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("module", QUICK)
def test_quick_module(module: str, way: str) -> None:
    check(module, way)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("module", SLOW)
def test_module(module: str, way: str) -> None:
    check(module, way)


@pytest.mark.slow
@pytest.mark.parametrize("interpreter", interpreters())
@pytest.mark.parametrize("module", QUICK)
def test_module_on_other_interpreters(module: str, interpreter: str) -> None:
    check(module, "in place", interpreter)


def test_every_listed_difference_is_in_the_corpus() -> None:
    for each in differences():
        assert any(each.is_in(module) for module in MODULES), each.test
        assert each.reason
        assert each.python
