"""Outlined loops and functions do what they did: each program is run plainly and with its steps as functions."""

from __future__ import annotations

import ast
import contextlib
import io
import textwrap
import traceback
import types
from typing import Any

import pytest

from torchjanus.cli.discovery import Selection, Step, compiled
from torchjanus.cli.discovery.candidates import candidates
from torchjanus.rewrite.source import find

# Stand-ins for tensors and optimizers: what is tested here is Python.
PRELUDE = """
class Loss:
    def __init__(self, v): self.v = v
    def backward(self): print("backward", self.v)
    def item(self): return self.v
class Opt:
    def step(self, closure=None): print("step"); return closure() if closure else None
    def zero_grad(self): print("zero")
opt = Opt()
"""

IN_A_FUNCTION = {
    "unbound_at_first": """
        def train(data):
            for i, x in enumerate(data):
                for part in x:
                    loss = Loss(part); loss.backward()
                opt.step()
                if i != 1: print(i, loss.item())
            return part
        print(train([[1, 2], [3], []]))
        for data in ([[], [1]], [], [[1], []]):
            try: print(train(data))
            except UnboundLocalError as error: print(error, error.__context__)
    """,
    "unbound_and_left": """
        def train(data):
            while data:
                x = data.pop(0)
                if x > 2: best = x
                elif x < 0: continue
                Loss(x).backward(); opt.step()
                if x == 1: break
                if best == 4: return "four", best
                best += 1
            return x
        for data in ([3, 2, -1, 0, 1, 9], [4], [5, 4], [-1, 1]): print(train(data))
        try: train([2])
        except UnboundLocalError as error: print(error)
    """,
    "unbound_for_good": """
        def train(data, limit=None, quiet=True):
            if limit is not None: top = limit
            if not quiet: word = "loud"
            for x in data:
                if limit is not None: x = min(x, top)
                if x == 7:
                    try: word
                    except UnboundLocalError as error: print(error)
                if x == 8:
                    print(word)
                    word = "new"
                loss = Loss(x); loss.backward(); opt.step()
            return loss.item()
        print(train([1, 2, 7]), train([1, 2], 1), train([7, 8], None, False))
        try: train([8])
        except UnboundLocalError as error: print(error)
    """,
    "deleted": """
        def train(data):
            for x in data:
                loss = Loss(x); loss.backward(); opt.step()
                print(loss.item())
                del loss
            return data
        print(train([1, 2]))
    """,
    "in_an_if": """
        def train(data):
            seen, best = 0, None
            for step, x in enumerate(data):
                seen = seen + x
                if step > 1:
                    y = data[step - 1]
                    loss = Loss(y); loss.backward(); opt.step()
                    if step % 2 == 0: late = Loss(y + 1)
                    print(late.item())
                    if y == 5: break
                    if y == 7: return "seven", best
                    best = y
                elif step: print("second")
                print("end of", step, best)
            return seen, best, loss.item()
        for data in ([1, 2, 3, 4], [1, 2, 5, 6, 7], [1, 2, 7, 8], range(9)): print(train(data))
    """,
    "in_an_elif": """
        def train(data):
            for x in data:
                if x == 1: print("one")
                elif x != 2:
                    loss = Loss(3); loss.backward(); opt.step()
                    n = loss.item()
                else: n = 0
                print(n if x > 1 else None)
        train([3, 2, 1, 4])
    """,
    "repeated": """
        def train(data):
            for x in data:
                for _ in range(2):
                    critic = Loss(x); critic.backward(); opt.step()
                loss = Loss(x + 1); loss.backward(); opt.step()
            return critic.item(), loss.item()
        print(train([1, 2]))
    """,
    "carried": """
        def train(data):
            total, n = 0, 0
            for i, x in enumerate(data):
                loss = Loss(x * 2); loss.backward(); opt.step()
                total += loss.item(); n = i
            return total, n, loss.item()
        print(train([1, 2, 3]))
    """,
    "not_bound_where_nothing_ran": """
        def train(data):
            for x in data:
                loss = Loss(x); loss.backward(); opt.step()
            return loss.item()
        print(train([4]))
        print(train([]))
    """,
    "exits": """
        def train(data):
            best = None
            for x in data:
                if x == 2: continue
                loss = Loss(x); loss.backward(); opt.step()
                if best is None or x < best: best = x
                if x > 5: break
                if x < 0: return "negative", best
            else:
                return "all", best
            return "left", best, x
        for data in ([1, 2, 3], [1, 7, 8], [2, -1, 3], []): print(train(data))
    """,
    "while_loop": """
        def train(n):
            done = False
            while not done:
                loss = Loss(n); loss.backward(); opt.step()
                n -= 1
                done = n <= 0
            return n
        print(train(3))
    """,
    "target_is_changed": """
        def train(data):
            for x in data:
                x = x + 1
                Loss(x).backward(); opt.step()
            return x
        print(train([1, 2]))
    """,
    "set_in_some_iterations_only": """
        def train(data):
            last = 0
            for x in data:
                if x % 2: last = x
                Loss(x + last).backward(); opt.step()
            return last
        print(train([2, 3, 4]))
    """,
    "inner_loops_and_with": """
        import contextlib
        def train(data):
            out = []
            for group in data:
                with contextlib.suppress(ValueError):
                    for x in group:
                        if x == 3: break
                        if x == 5: continue
                        if x == 9: raise ValueError
                        out.append(x)
                    else:
                        out.append("all")
                Loss(len(out)).backward(); opt.step()
            return out
        print(train([[1, 3, 2], [5, 6], [9, 1], []]))
    """,
    "finally_and_handlers": """
        def train(data):
            seen = []
            for x in data:
                try:
                    if x == 2: continue
                    if x == 4: return seen, "early"
                    Loss(1 / x).backward(); opt.step()
                except ZeroDivisionError as error:
                    seen.append(str(error))
                finally:
                    seen.append(x)
            return seen
        print(train([1, 2, 0, 3])); print(train([1, 4, 5]))
    """,
    "a_closure_for_the_optimizer": """
        def train(data):
            total = 0
            for x in data:
                def closure():
                    opt.zero_grad()
                    loss = Loss(x); loss.backward()
                    return loss
                total += opt.step(closure).item()
            return total
        print(train([1, 2]))
    """,
    "global_variables": """
        count = 0
        def train(data):
            global count
            for x in data:
                count += 1
                Loss(x * count).backward(); opt.step()
        train([1, 2]); train([3]); print(count)
    """,
    "parameters_of_all_kinds": """
        def step(a, /, b, *rest, c=3, **more):
            Loss(a + b + c).backward(); opt.step()
            return a, b, rest, c, more
        print(step(1, 2)); print(step(1, b=2, c=4, d=5)); print(step(1, 2, 3, 4, c=0))
    """,
    "methods_and_private_names": """
        class Trainer:
            def __init__(self): self.__n = 0
            def update(self, x):
                "Make one step."
                self.__n += 1
                Loss(x + self.__n).backward(); opt.step()
                return self.__n
            def fit(self, data):
                for x in data:
                    self.__n += 10
                    Loss(self.__n).backward(); opt.step()
        t = Trainer(); print(t.update(1), t.update(x=2), Trainer.update.__doc__); t.fit([1, 2]); print(t.__dict__)
    """,
    "functions_in_functions": """
        def main(scale):
            def step(x):
                Loss(x * scale).backward(); opt.step()
                return x * scale
            print([step(x) for x in (1, 2)])
            def fit(data):
                for x in data:
                    Loss(x + scale).backward(); opt.step()
                return scale
            print(fit([1, 2]))
        main(3); main(4)
    """,
    "an_error_within": """
        def train(data):
            n = 0
            for x in data:
                n += 1
                Loss(1 / x).backward(); opt.step()
            return n
        try: train([1, 0, 2])
        except ZeroDivisionError as error: print("caught", error)
    """,
    "evaluation": """
        class no_grad:
            def __enter__(self): print("in")
            def __exit__(self, *args): print("out")
        def evaluate(model, data):
            right = 0
            with no_grad():
                for x in data:
                    right += model(x)
            return right
        print(evaluate(lambda x: x * 2, [1, 2, 3]))
    """,
    "comprehensions_have_their_own_variables": """
        def train(data):
            x = "outer"
            for batch in data:
                doubled = [x * 2 for x in batch]
                Loss(sum(doubled)).backward(); opt.step()
            return x, doubled
        print(train([[1, 2], [3]]))
    """,
}

IN_A_MODULE = {
    "variables_of_the_module": """
        total, history = 0, []
        for i, x in enumerate([1, 2, 3]):
            y = x * 2
            loss = Loss(y); loss.backward(); opt.step()
            total += loss.item()
            history.append(total)
            if i == 5: break
        print(total, history, i, x, loss.item())
    """,
    "functions_see_them": """
        steps = 0
        def show(): print("steps", steps)
        for x in [1, 2]:
            steps += 1
            show()
            Loss(x).backward(); opt.step()
    """,
    "left_early": """
        for x in range(10):
            Loss(x).backward(); opt.step()
            if x == 2: break
            if x == 1: continue
            print("end of", x)
        else:
            print("never")
        print(x)
    """,
    "carried_within_the_body_only": """
        for x in range(3):
            if x: previous = previous + 1
            else: previous = 10
            Loss(previous).backward(); opt.step()
    """,
    "in_the_main_block": """
        if __name__ == "__main__":
            for epoch in range(2):
                for x in [1, 2]:
                    Loss(x + epoch).backward(); opt.step()
                print("epoch", epoch, x)
    """,
}

NOT_OUTLINED = {
    "yield": ("def f(d):\n for x in d:\n  Loss(x).backward(); opt.step()\n  yield x\n", "suspended"),
    "locals": ("def f(d):\n for x in d:\n  Loss(x).backward(); opt.step(); print(locals())\n", "locals"),
    "locals outside": ("def f(d):\n for x in d:\n  Loss(x).backward(); opt.step()\n return locals()\n", "locals"),
    "a closure that is kept": (
        "def f(d, keep):\n for x in d:\n  y = x\n  keep.append(lambda: y)\n  Loss(x).backward(); opt.step()\n",
        "(line 13) reads variables",
    ),
    "nonlocal": (
        "def f(d):\n n = 0\n def g():\n  nonlocal n\n  n += 1\n for x in d:\n  g(); Loss(n).backward(); opt.step()\n",
        "nonlocal",
    ),
    "maybe unbound": (
        "def f(d):\n for x in d:\n  if x: y = x\n  print(y); Loss(x).backward(); opt.step()\nclass NameError: pass\n",
        "unbound",
    ),
    "deleted": (
        "def f(d):\n for x in d:\n  y = x; Loss(y).backward(); opt.step()\n  if x > 1: del y\n return y\n",
        "deletes",
    ),
    "shared with a function": (
        "def f(d):\n y = 0\n def g(): return y\n for x in d:\n  y = x; Loss(g()).backward(); opt.step()\n",
        "made elsewhere",
    ),
}


def run(code: types.CodeType, bind: Any = None) -> tuple[str, str]:
    """Run a module; what it printed, and the error that ended it."""
    module = types.ModuleType("__main__")
    if bind is not None:
        bind(module.__dict__)
    out = io.StringIO()
    error = ""
    with contextlib.redirect_stdout(out):
        try:
            exec(code, module.__dict__)
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
    return out.getvalue(), error


@pytest.mark.parametrize(
    "program", [*IN_A_FUNCTION.values(), *IN_A_MODULE.values()], ids=[*IN_A_FUNCTION, *IN_A_MODULE]
)
def test_a_program_does_the_same_with_its_steps_outlined(program: str) -> None:
    source = PRELUDE + textwrap.dedent(program)
    found = Selection()
    module = compiled(source, "program.py", found)
    assert found.taken and not found.left, found.reasons()
    expected = run(compile(source, "program.py", "exec"))
    assert run(module.code, module.bind) == expected
    assert "step" in expected[0] or "in" in expected[0]


@pytest.mark.parametrize(("source", "why"), NOT_OUTLINED.values(), ids=NOT_OUTLINED)
def test_what_no_function_can_hold_is_left_as_it_is(source: str, why: str) -> None:
    found = Selection()
    module = compiled(PRELUDE + source, "program.py", found)
    assert not found.taken and not module.steps
    [line] = found.reasons()
    assert why in line
    assert "program.py:" in line


WHICH = {
    "an if with all of it": (
        "for i in data:\n step(i)\n if i > 2:\n  x = get()\n  loss = f(x)\n  loss.backward()\n  opt.step()",
        ["training block of <module> (line 3)"],
    ),
    "a loss made of what the iteration computes": (
        "for i in data:\n y = f(i)\n if i > 2:\n  loss = g(y)\n  loss.backward()\n  opt.step()",
        ["training loop of <module> (line 1)"],
    ),
    "a backward in one arm only": (
        "for i in data:\n if i > 2:\n  f(i).backward()\n  opt.step()\n else:\n  g(i).backward()",
        ["training loop of <module> (line 1)"],
    ),
    "a step every few iterations": (
        "for i in data:\n loss = f(i)\n loss.backward()\n if i % 4 == 3:\n  opt.step()",
        ["training loop of <module> (line 1)"],
    ),
    "an if that goes on": (
        "for i in data:\n if i > 2:\n  if i == 4:\n   continue\n  f(0).backward()\n  opt.step()",
        ["training loop of <module> (line 1)"],
    ),
    "gradients that are asked for": (
        "for i in data:\n for p, g in zip(ps, torch.autograd.grad(f(i), ps)):\n  p.grad = g\n opt.step()",
        ["training loop of <module> (line 1)"],
    ),
    "an update by hand": (
        "for i in data:\n f(i).backward()\n for p in ps:\n  p.data.add_(p.grad, alpha=-1)",
        ["training loop of <module> (line 1)"],
    ),
    "a closure that is a method": (
        "class A:\n def loss(self):\n  f().backward()\n def fit(self):\n  for i in data:\n   self.opt.step(self.loss)",
        ["training loop of A.fit (line 5)"],
    ),
    "a step that is given no closure": ("def loss():\n f().backward()\nfor i in data:\n schedule.step(value)", []),
    "gradients that nothing reads": ("for i in data:\n x.grad = None\n (g,) = torch.autograd.grad(f(i), x)", []),
    "an average of weights": (
        "@torch.no_grad()\ndef update(a, b):\n for k, v in b.items():\n  a[k].mul_(d).add_(v.detach(), alpha=1 - d)",
        [],
    ),
    "an evaluation": (
        "@torch.no_grad()\ndef test(data):\n for x, y in data:\n  total.add_(net(x).sum())",
        ["evaluation loop of test (line 3)"],
    ),
    "weights that are drawn": (
        "with torch.no_grad():\n for p in net.parameters():\n  p.copy_(torch.randn(p.shape, generator=g) * 0.3)",
        [],
    ),
    "numbers that are sorted into lists": (
        "with torch.no_grad():\n for s, t in zip(scores, tokens):\n  (done if len(q) > 6 else more).append((s, t))",
        [],
    ),
    "a gradient function": ("for i in data:\n g = grad(f)(i)\n opt.step()", []),
    "repetitions beside a training": (
        "for i in data:\n for _ in range(5):\n  f(i).backward()\n  a.step()\n g(i).backward()\n b.step()",
        ["training loop of <module> (line 1)"],
    ),
    "repetitions in an if": (
        "for i in data:\n a(i)\n if i:\n  f().backward()\n  o.step()\n  if i % 2:\n   for _ in range(2):\n"
        "    g().backward()\n    o.step()",
        ["training block of <module> (line 3)"],
    ),
    "batches beside a training": (
        "for i in data:\n for x in loader:\n  f(x).backward()\n  a.step()\n g(i).backward()\n b.step()",
        ["training loop of <module> (line 2)"],
    ),
    "numbers that count": (
        "for i in data:\n for k in range(5):\n  f(x[k]).backward()\n  a.step()\n g(i).backward()\n b.step()",
        ["training loop of <module> (line 2)"],
    ),
    "repetitions alone": (
        "for i in data:\n for _ in range(5):\n  f(i).backward()\n  a.step()\n print(i)",
        ["training loop of <module> (line 2)"],
    ),
}


@pytest.mark.parametrize(("source", "which"), WHICH.values(), ids=WHICH)
def test_a_step_is_all_of_the_training_of_an_iteration(source: str, which: list[str]) -> None:
    assert [*map(str, candidates(ast.parse(source)))] == which


def test_where_the_outer_step_cannot_be_outlined_the_inner_ones_are_taken() -> None:
    source = """
        def train(data):
            for x in data:
                for _ in range(2):
                    Loss(x).backward(); opt.step()
                class Late(Loss): pass
                Late(x).backward(); opt.step()
        train([1, 2])
    """
    source = PRELUDE + textwrap.dedent(source)
    found = Selection()
    module = compiled(source, "program.py", found)
    assert [step.description for step in found.taken] == ["training loop of train (line 13) of program.py"]
    assert "defines a class" in found.reasons()[0]
    assert run(module.code, module.bind) == run(compile(source, "program.py", "exec"))


def test_lines_and_names_are_the_programs() -> None:
    source = (
        PRELUDE
        + "def train(data):\n    for x in data:\n        Loss(1 / x).backward()\n        opt.step()\ntrain([0])\n"
    )
    module = compiled(source, "program.py", Selection())
    line = source.splitlines().index("        Loss(1 / x).backward()") + 1
    namespace: dict[str, Any] = {"__name__": "__main__"}
    module.bind(namespace)
    with pytest.raises(ZeroDivisionError) as raised:
        exec(module.code, namespace)
    inner = traceback.extract_tb(raised.value.__traceback__)[-1]
    assert (inner.filename, inner.lineno, inner.name) == ("program.py", line, "train")


def test_only_the_wanted_steps_are_taken() -> None:
    source = PRELUDE + "def one(x):\n Loss(x).backward(); opt.step()\ndef two(x):\n Loss(x).backward(); opt.step()\n"
    for selection, names in (
        (Selection(only=["one"]), ["one"]),
        (Selection(exclude=["one"]), ["two"]),
        (Selection(only=["program.py:*"]), ["one", "two"]),
        (Selection(only=["other"]), []),
    ):
        compiled(source, "program.py", selection)
        assert [step.name for step in selection.taken] == names


@pytest.mark.parametrize("behind", [0, 1])
def test_a_loop_is_named_by_its_own_line_or_the_first_of_its_body(behind: int) -> None:
    source = PRELUDE + "for x in [1, 2]:\n    Loss(x).backward()\n    opt.step()\n"
    selection = Selection(only=[f"program.py:{source[: source.index('for x')].count(chr(10)) + 1 + behind}"])
    compiled(source, "program.py", selection)
    assert len(selection.taken) == 1


def test_a_program_that_marks_its_step_is_left_alone() -> None:
    source = "import torchjanus\n" + PRELUDE + "def one(x):\n Loss(x).backward(); opt.step()\n"
    assert not compiled(source, "program.py", Selection()).steps


def test_functions_that_call_steps_can_still_be_rewritten() -> None:
    source = PRELUDE + "def train(data):\n    for x in data:\n        Loss(x).backward(); opt.step()\n"
    module = compiled(source, "program.py", Selection())
    namespace: dict[str, Any] = {}
    module.bind(namespace)
    exec(module.code, namespace)
    assert any(isinstance(value, Step) for value in namespace["train"].__code__.co_consts)
    assert "backward" in ast.unparse(find(namespace["train"]).node)
