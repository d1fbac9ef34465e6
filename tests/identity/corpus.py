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
import threading
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.interpreters import bare_environment

__all__ = [
    "LATE",
    "MODULES",
    "QUICK",
    "WAYS",
    "Comparison",
    "Difference",
    "compare",
    "differences",
    "lacks_tests",
    "version_of",
    "ways_for",
]

HERE = Path(__file__).resolve().parent
LIMIT = 1200  # seconds for one run of one module
CPU, REAL = 20.0, 120.0  # seconds for one test that is watched: of computing, and by the clock
LATE = "not done in time"  # what becomes of a test that takes more
REWRITTEN = ("twins", "in place", "protocols")  # see ``rewriting``
WAYS = (*REWRITTEN, "watched")  # see ``watching``

# Test modules, each with the library modules that it tests; their functions are rewritten in place, too.
MODULES: dict[str, tuple[str, ...]] = {
    # the language and its built-in types
    "test_abc": (),
    "test_asyncgen": (),
    "test_augassign": (),
    "test_binop": (),
    "test_bool": (),
    "test_call": (),
    "test_class": (),
    "test_compare": (),
    "test_contains": (),
    "test_coroutines": (),
    "test_decorators": (),
    "test_defaultdict": (),
    "test_descr": (),
    "test_descrtut": (),
    "test_dict": (),
    "test_dictcomps": (),
    "test_dynamic": (),
    "test_dynamicclassattribute": (),
    "test_enumerate": (),
    "test_except_star": (),
    "test_exception_group": (),
    "test_exception_hierarchy": (),
    "test_exception_variations": (),
    "test_exceptions": (),
    "test_extcall": (),
    "test_float": (),
    "test_fstring": (),
    "test_funcattrs": (),
    "test_generator_stop": (),
    "test_generators": (),
    "test_genericalias": (),
    "test_genexps": (),
    "test_global": (),
    "test_grammar": (),
    "test_index": (),
    "test_int": (),
    "test_isinstance": (),
    "test_iter": (),
    "test_keywordonlyarg": (),
    "test_list": (),
    "test_listcomps": (),
    "test_metaclass": (),
    "test_named_expressions": (),
    "test_opcodes": (),
    "test_patma": (),
    "test_positional_only_arg": (),
    "test_property": (),
    "test_raise": (),
    "test_range": (),
    "test_richcmp": (),
    "test_scope": (),
    "test_set": (),
    "test_setcomps": (),
    "test_slice": (),
    "test_sort": (),
    "test_string_literals": (),
    "test_subclassinit": (),
    "test_super": (),
    "test_tuple": (),
    "test_typechecks": (),
    "test_types": (),
    "test_unary": (),
    "test_unpack": (),
    "test_unpack_ex": (),
    "test_with": (),
    "test_yield_from": (),
    # libraries written in Python
    "test_abstract_numbers": ("numbers",),
    "test_argparse": ("argparse",),
    "test_bisect": ("bisect",),
    "test_calendar": ("calendar",),
    "test_collections": (
        "collections",
        "_collections_abc",
    ),
    "test_configparser": ("configparser",),
    "test_contextlib": ("contextlib",),
    "test_contextlib_async": ("contextlib",),
    "test_copy": ("copy",),
    "test_dataclasses": ("dataclasses",),
    "test_difflib": ("difflib",),
    "test_enum": ("enum",),
    "test_fnmatch": ("fnmatch",),
    "test_fractions": ("fractions",),
    "test_functools": ("functools",),
    "test_getopt": ("getopt",),
    "test_graphlib": ("graphlib",),
    "test_heapq": ("heapq",),
    "test_ipaddress": ("ipaddress",),
    "test_json": ("json",),
    "test_operator": ("operator",),
    "test_optparse": ("optparse",),
    "test_ordered_dict": ("collections",),
    "test_pprint": ("pprint",),
    "test_reprlib": ("reprlib",),
    "test_shlex": ("shlex",),
    "test_statistics": ("statistics",),
    "test_string": ("string",),
    "test_textwrap": ("textwrap",),
    "test_typing": ("typing",),
    "test_userdict": (
        "collections",
        "_collections_abc",
    ),
    "test_userlist": (
        "collections",
        "_collections_abc",
    ),
    "test_weakset": ("_weakrefset",),
}
# Not run with calls made by the semantics: the classes of typing take their module's name from their caller's frame.
DIRECT_ONLY = ("test_typing",)
# Done in a second or two, and between them all of the language.
QUICK = (
    "test_grammar",
    "test_listcomps",
    "test_named_expressions",
    "test_scope",
    "test_super",
    "test_unpack_ex",
    "test_with",
)


# Of these the watched way is run each time: a part of the object model, in some ten seconds.
QUICK_WATCHED = ("test_augassign", "test_property", "test_unpack")


def ways_for(module: str) -> tuple[str, ...]:
    return tuple(way for way in WAYS if way != "protocols" or module not in DIRECT_ONLY)


@dataclass(frozen=True)
class Difference:
    """A test that comes out differently when it is rewritten, and why it may."""

    test: str
    reason: str
    python: tuple[str, ...]
    ways: tuple[str, ...] = REWRITTEN

    def holds_for(self, version: str, way: str) -> bool:
        return version in self.python and way in self.ways

    def is_in(self, module: str) -> bool:
        # The examples in the docstrings of a library are named after that.
        return self.test.startswith((f"test.{module}.", *(f"{library}." for library in MODULES[module])))


@functools.cache
def differences() -> tuple[Difference, ...]:
    """The known ones, from ``differences.toml``."""
    listed = tomllib.loads((HERE / "differences.toml").read_text())["difference"]
    return tuple(
        Difference(test, " ".join(each["reason"].split()), tuple(each["python"]), tuple(each.get("ways", REWRITTEN)))
        for each in listed
        for test in each.get("tests") or [each["test"]]
    )


@functools.cache
def too_long() -> frozenset[str]:
    """The tests, and classes of tests, that are not watched, since that takes too long; listed with the reason."""
    listed = tomllib.loads((HERE / "differences.toml").read_text()).get("too_long", [])
    return frozenset(test for each in listed for test in each["tests"])


@dataclass
class Comparison:
    """How one test module came out as it is and rewritten."""

    module: str
    way: str
    version: str
    tests: int
    passed: int  # as it is
    functions: set[tuple[str, int, str]]  # that were rewritten: file, line, name
    native: dict[str, int]  # how many were not, by reason; of tests, how many were not watched
    differ: dict[str, tuple[str | None, str | None]]  # by test id: what became of it as it is, and rewritten
    details: dict[str, str] = field(repr=False)
    watched: int = 0  # tests, and examples of doctests
    refused: int = 0  # of those, how many no graph can be made of
    faults: dict[str, list[str]] = field(
        default_factory=dict
    )  # of torchjanus itself while it learnt from them, by test
    late: list[str] = field(default_factory=list)  # the tests that were broken off, since they took too long watched

    @property
    def equal(self) -> int:
        """How many tests came out as they are."""
        differ = {name for name, (before, _) in self.differ.items() if before is not None}
        return self.tests - len(differ.union(self.late))

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
        return [each for each in differences() if each.is_in(self.module) and each.holds_for(self.version, self.way)]


@functools.cache
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
        if way == "watched":
            return _watched(module, into)
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
            reported: dict[str, Any] = json.loads(into.read_text())
            return reported
        name = f"test.{module}"
        return {"outcomes": {name: f"ended with status {ran.returncode}"}, "details": {name: ran.stderr[-4000:]}}


@functools.cache
def _server() -> subprocess.Popen[str]:
    """What runs modules watched, one at a time: a process that has imported torch, and forks for each of them."""
    asked = [sys.executable, str(HERE / "child.py"), "serve"]
    environment = {**bare_environment(), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(asked, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


_serving = threading.Lock()


def _watched(module: str, into: Path) -> dict[str, Any]:
    native = [name for name in too_long() if name.startswith(f"test.{module}.")]
    request = {"module": f"test.{module}", "into": str(into), "cpu": CPU, "real": REAL, "native": native}
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    with _serving:
        print(json.dumps(request), file=server.stdin, flush=True)
        said = server.stdout.readline()
    assert said, "the process that runs modules watched has ended"
    reported: dict[str, Any] = json.loads(into.read_text())
    return reported


def compare(module: str, way: str, interpreter: str = sys.executable) -> Comparison:
    plain, other = outcomes(interpreter, module, "plain"), outcomes(interpreter, module, way)
    before, after = plain["outcomes"], other["outcomes"]
    late = [name for name, word in after.items() if word == LATE]
    # What was broken off may leave parts that end later.
    names = sorted(
        n for n in before.keys() | after.keys() if not any(n == one or n.startswith(f"{one} ") for one in late)
    )
    return Comparison(
        module,
        way,
        version_of(interpreter),
        tests=len(before),
        passed=sum(set(each.split(", ")) == {"ok"} for each in before.values()),
        functions={(file, line, name) for file, line, name in other.get("rewritten", [])},
        native=other.get("not watched", other.get("native", {})),
        differ={name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)},
        details={**plain["details"], **other["details"]},
        watched=other.get("watched", 0),
        refused=other.get("refused", 0),
        faults=other.get("faults", {}),
        late=late,
    )
