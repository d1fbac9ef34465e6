"""Modules that are imported when they are first used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import torchjanus
from torchjanus import runtime
from torchjanus.core.lazy import deferred, names_of

# What a script of which no step is taken does not need.
HEAVY = ("torchjanus.runtime.entries", "torchjanus.graph", "torchjanus.semantics.watch", "torch._inductor", "sympy")


def test_a_module_is_imported_when_an_attribute_is_read() -> None:
    code = (
        "import sys; from torchjanus.core.lazy import deferred; m = deferred('colorsys'); assert 'colorsys' not in "
        "sys.modules; assert m.rgb_to_hsv(0, 0, 0) == (0, 0, 0); assert 'colorsys' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_a_module_lacks_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError):
        _ = deferred("colorsys").nothing
    with pytest.raises(ModuleNotFoundError):
        _ = deferred("torchjanus.core.nothing").name


def test_names_of_a_package_come_from_their_modules() -> None:
    found = names_of("torchjanus.core", {"colorsys": "rgb_to_hsv hsv_to_rgb"})
    assert found("hsv_to_rgb")(0, 0, 0) == (0, 0, 0)
    with pytest.raises(AttributeError, match=r"module 'torchjanus.core' has no attribute 'other'"):
        found("other")


@pytest.mark.parametrize("package", [torchjanus, runtime], ids=lambda package: package.__name__)
def test_all_names_of_a_package_are_found(package: object) -> None:
    for name in package.__all__:  # type: ignore[attr-defined]
        assert getattr(package, name) is getattr(package, name)


def test_the_command_imports_next_to_nothing() -> None:
    code = f"import sys, torchjanus.cli; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
