"""The identity corpus: which of CPython's test modules it holds, how two runs are compared, which differences are
known.

Each run has an interpreter of its own. Knows nothing of how a module is run or rewritten there: ``child`` does that.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.interpreters import bare_environment

__all__ = ["MODULES", "QUICK", "WAYS", "Comparison", "Difference", "compare", "differences", "lacks_tests"]

HERE = Path(__file__).resolve().parent
LIMIT = 1200  # seconds for one run of one module
WAYS = ("twins", "in place")

# Test modules, each with the library modules that it tests; their functions are rewritten in place, too.
MODULES: dict[str, tuple[str, ...]] = {
    # the language
    "test_augassign": (),
    "test_compare": (),
    "test_coroutines": (),
    "test_decorators": (),
    "test_descr": (),
    "test_dictcomps": (),
    "test_exceptions": (),
    "test_fstring": (),
    "test_generators": (),
    "test_grammar": (),
    "test_keywordonlyarg": (),
    "test_listcomps": (),
    "test_named_expressions": (),
    "test_patma": (),
    "test_positional_only_arg": (),
    "test_property": (),
    "test_raise": (),
    "test_scope": (),
    "test_set": (),
    "test_setcomps": (),
    "test_super": (),
    "test_unpack": (),
    "test_unpack_ex": (),
    "test_with": (),
    # libraries written in Python
    "test_collections": ("collections", "_collections_abc"),
    "test_dataclasses": ("dataclasses",),
    "test_difflib": ("difflib",),
    "test_fractions": ("fractions",),
    "test_functools": ("functools",),
    "test_heapq": ("heapq",),
    "test_json": ("json",),
    "test_statistics": ("statistics",),
    "test_textwrap": ("textwrap",),
}
# Done in a second or two, and between them all of the language.
QUICK = (
    "test_dictcomps",
    "test_grammar",
    "test_keywordonlyarg",
    "test_listcomps",
    "test_named_expressions",
    "test_property",
    "test_raise",
    "test_scope",
    "test_super",
    "test_textwrap",
    "test_unpack_ex",
    "test_with",
)


@dataclass(frozen=True)
class Difference:
    """A test that comes out differently when it is rewritten, and why it may."""

    test: str
    reason: str
    python: tuple[str, ...]

    def holds_for(self, version: str) -> bool:
        return version in self.python

    def is_in(self, module: str) -> bool:
        return self.test.startswith(f"test.{module}.")


@functools.cache
def differences() -> tuple[Difference, ...]:
    """The known ones, from ``differences.toml``."""
    listed = tomllib.loads((HERE / "differences.toml").read_text())["difference"]
    return tuple(Difference(each["test"], " ".join(each["reason"].split()), tuple(each["python"])) for each in listed)


@dataclass
class Comparison:
    """How one test module came out as it is and rewritten."""

    module: str
    way: str
    version: str
    tests: int
    passed: int  # as it is
    functions: set[tuple[str, int, str]]  # that were rewritten: file, line, name
    native: dict[str, int]  # how many were not, by reason
    differ: dict[str, tuple[str | None, str | None]]  # by test id: what became of it as it is, and rewritten
    details: dict[str, str] = field(repr=False)

    @property
    def known(self) -> list[Difference]:
        return [each for each in self._listed if each.test in self.differ]

    @property
    def unknown(self) -> str:
        """The differences that are not listed, as text."""
        listed = {each.test for each in self._listed}
        return "\n".join(
            f"{name}: {before} as it is, {after} rewritten {self.way}\n{self.details.get(name, '')}"
            for name, (before, after) in self.differ.items()
            if name not in listed
        )

    @property
    def settled(self) -> list[str]:
        """The tests that are listed and agree."""
        return [each.test for each in self._listed if each.test not in self.differ]

    @property
    def _listed(self) -> list[Difference]:
        return [each for each in differences() if each.is_in(self.module) and each.holds_for(self.version)]


def lacks_tests(interpreter: str = sys.executable) -> str:
    """Why CPython's tests cannot be run by this interpreter, or nothing."""
    asked = [interpreter, "-c", "import test.support, test.test_grammar"]
    ran = subprocess.run(asked, capture_output=True, text=True, check=False, env=bare_environment())
    return f"{interpreter} comes without CPython's test package" if ran.returncode else ""


@functools.cache
def version_of(interpreter: str) -> str:
    asked = [interpreter, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    return subprocess.run(asked, capture_output=True, text=True, check=True, env=bare_environment()).stdout.strip()


@functools.cache
def outcomes(interpreter: str, module: str, way: str) -> dict[str, Any]:
    """What one run gave; where it did not come to its end, that is the outcome of the module itself."""
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder, "outcomes.json")
        child = [interpreter, str(HERE / "child.py"), f"test.{module}", way, str(into)]
        subjects: Iterable[str] = MODULES[module]
        environment = {**bare_environment(), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            ran = subprocess.run(
                [*child, "--subjects", *subjects],
                capture_output=True,
                text=True,
                check=False,
                timeout=LIMIT,
                env=environment,
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            return {"outcomes": {f"test.{module}": f"not done after {LIMIT} seconds"}, "details": {}}
        if into.exists():
            told: dict[str, Any] = json.loads(into.read_text())
            return told
        name = f"test.{module}"
        return {"outcomes": {name: f"ended with status {ran.returncode}"}, "details": {name: ran.stderr[-4000:]}}


def compare(module: str, way: str, interpreter: str = sys.executable) -> Comparison:
    plain, other = outcomes(interpreter, module, "plain"), outcomes(interpreter, module, way)
    before, after = plain["outcomes"], other["outcomes"]
    names = sorted(before.keys() | after.keys())
    return Comparison(
        module,
        way,
        version_of(interpreter),
        tests=len(before),
        passed=sum(set(each.split(", ")) == {"ok"} for each in before.values()),
        functions={(file, line, name) for file, line, name in other.get("rewritten", [])},
        native=other.get("native", {}),
        differ={name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)},
        details={**plain["details"], **other["details"]},
    )
