"""Whether a call's error might be handled where it stands."""

import contextlib
import dis
import io
import sys
import threading
import warnings
from types import CodeType

import pytest
import torch

from torchjanus.semantics.external.handling import is_handled, may_raise, may_suppress
from torchjanus.semantics.known.own_code import Reach

HANDLED = {
    "try": "try:\n  ask()\nexcept ValueError:\n  pass",
    "finally": "try:\n  ask()\nfinally:\n  done = 1",
    "group": "try:\n  ask()\nexcept* ValueError:\n  pass",
    "inner": "try:\n  try:\n    pass\n  except KeyError:\n    pass\n  ask()\nexcept ValueError:\n  pass",
    "in another handler": "try:\n  try:\n    int('a')\n  except ValueError:\n    ask()\nexcept KeyError:\n  pass",
    "in iterations": "for n in range(2):\n  try:\n    ask()\n  except ValueError:\n    continue",
    "in a comprehension": "try:\n  [ask() for n in range(2)]\nexcept ValueError:\n  pass",
    "through a function": "def f():\n  ask()\ntry:\n  f()\nexcept ValueError:\n  pass",
    "in a with statement": "try:\n  with lock:\n    ask()\nexcept ValueError:\n  pass",
    "far away": "try:\n" + "  x = [1]\n" * 400 + "  ask()\nexcept ValueError:\n  pass",
}
LEFT = {
    "nothing": "ask()",
    "before": "ask()\ntry:\n  pass\nexcept ValueError:\n  pass",
    "after": "try:\n  pass\nexcept ValueError:\n  pass\nask()",
    "in a handler": "try:\n  int('a')\nexcept ValueError as error:\n  ask()",
    "else": "try:\n  pass\nexcept ValueError:\n  pass\nelse:\n  ask()",
    "a comprehension": "n = 3\n[ask() for n in range(2)]\nn",
    "a generator": "list(ask() for n in range(2))",
    "a with statement": "with lock:\n  ask()",
}


def asked(text: str, suppressing: bool) -> set[bool]:
    """What is said at each call of ``ask`` in these lines."""
    answers = set()
    code = compile(text, "lines", "exec")

    def until() -> None:
        namespace = {"ask": lambda: answers.add(is_handled(stop, suppressing)), "lock": threading.Lock()}
        exec(code, namespace)

    stop: CodeType = until.__code__
    until()
    return answers


@pytest.mark.parametrize("name", HANDLED)
def test_what_is_around_a_line_is_read_off_the_code(name: str) -> None:
    assert asked(HANDLED[name], False) == {True}


@pytest.mark.parametrize("name", LEFT)
def test_what_only_tidies_up_handles_nothing(name: str) -> None:
    assert asked(LEFT[name], False) == {False}


def test_a_with_statement_handles_errors_if_what_it_enters_may() -> None:
    assert asked(LEFT["a with statement"], True) == {True}


def test_the_names_of_instructions_are_those_of_this_python() -> None:
    assert {"PUSH_EXC_INFO", "WITH_EXCEPT_START", "CHECK_EXC_MATCH", "CHECK_EG_MATCH"} <= set(dis.opmap)


def test_which_contexts_may_suppress() -> None:
    @contextlib.contextmanager
    def timing():
        yield

    @contextlib.contextmanager
    def closing():
        try:
            yield
        finally:
            done.append(1)

    @contextlib.contextmanager
    def quiet():
        with contextlib.suppress(ValueError):
            yield

    @contextlib.contextmanager
    def catching():
        try:
            yield
        except ValueError:
            pass

    @contextlib.contextmanager
    def catching_all():
        try:
            yield
        except:  # noqa: E722
            pass

    class Own:
        def __getattr__(self, name):
            done.append(name)
            raise AttributeError(name)

    done = []
    letting = [timing(), closing(), torch.no_grad(), threading.Lock(), io.StringIO(), contextlib.nullcontext(),
               warnings.catch_warnings(), torch.random.fork_rng()]  # fmt: skip
    assert [may_suppress(one) for one in letting] == [False] * len(letting)
    holding = [contextlib.suppress(KeyError), contextlib.ExitStack(), quiet(), catching(), catching_all(), Own()]
    assert [may_suppress(one) for one in holding] == [True] * len(holding)
    assert not done


def test_files_are_not_compared() -> None:
    class File:
        def __eq__(self, other):
            raise AssertionError

    assert may_raise(print, {"file": File()}, Reach())
    assert not may_raise(print, {"file": sys.stderr}, Reach())
    assert may_raise(len, {}, Reach())
