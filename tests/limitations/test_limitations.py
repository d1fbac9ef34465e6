"""docs/limitations.md is true and complete: every message that it quotes is produced, every refusal is quoted."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import torchjanus
from tests.graph.recording import generalise, record
from tests.programs import harness
from tests.sampling import every
from tests.semantics.two_processes import run_both
from tests.test_programs import check
from torchjanus.core.errors import Refused
from torchjanus.execute.compiled import compiling
from torchjanus.execute.cuda_graph.body import aten_body
from torchjanus.execute.cuda_graph.executor import CudaGraph
from torchjanus.graph.ir.program import Input, Node, Program, Ref
from torchjanus.graph.lowering.for_inductor import prepare
from torchjanus.graph.lowering.lower import lower
from torchjanus.graph.tracing.user_code_calls import UserCodeReplay
from torchjanus.runtime.coexecution import runner
from torchjanus.semantics.known.framework_calls import REFUSED
from torchjanus.semantics.watch.objects.finalization import Finalization
from torchjanus.trace.modes import Modes

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "limitations.md").read_text()
SOURCE = ROOT / "torchjanus"
PROGRAMS = Path(__file__).with_name("programs.py")

# Functions that refuse, and which of their arguments is what the report says first.
REFUSING = {"refuse": 1, "Refusal": 1, "refused": 1, "refuse_weak": 0, "refuse_ending": 0, "_weak": 0, "handed": 1}
# Refusals whose words come from somewhere else, and are looked at there.
PASSED_ON = {
    ("runtime/learning/learning.py", "refuse"),  # passes a refusal
    ("runtime/learning/learning.py", "refused"),
    ("runtime/coexecution/runner.py", "refuse"),
    ("runtime/coexecution/recording/recorder.py", "refuse"),
    ("runtime/parts/calls.py", "refuse"),  # of a Refusal made just before
    ("semantics/record/run_record.py", "Refusal"),
    ("semantics/record/run_record.py", "refuse"),
    ("semantics/record/recording.py", "refuse"),
    ("semantics/record/letting_go.py", "refuse"),
}
# Not shown to anybody: it only marks a group of traces.
# A loop that is not rolled up is unrolled: the call is speculated on all the same.
# Recursive calls that cannot be run many at a time are unrolled.
UNSEEN = {
    "torchjanus itself failed",
    "an input lives on as another tensor with gradients",  # no program is known whose results have this state
    "calls \0",  # of collectives: the table of reasons that follows is quoted
    # Why the host makes selections: the report of an entry says so.
    "a number of selected elements is asked for",
    "the size of what is selected is used before, or together with another",
    "the step does something else for some numbers of elements that are selected",
    "the step does something else where another number of elements is selected, and calls native code",
    "\0 returns what holds its own results, of different shapes, and more would come",
    "an operation on tensors depends on a loop-carried number",
    "tensors that iterations of a loop hand out have a backward graph",
    "\0 is called after a loop that calls native code, and its result is used",
    "the first rows of a tensor that requires gradients are taken by a number of iterations",
    "what the first iteration takes for the row of the one before is of another kind",
    "the graph cannot be sent to another process",
    "a graph with recursive calls cannot be sent to another process",
    "a recursive call changes a list that was not found before",
    "what Inductor compiled of \0 disagrees with replay on made-up rows (\0)",
    "calls of \0 write to objects, and \0",
    "\0 \0",
    "a recursion works on another device than the processor",
    "\0 gives gradients to a value that had none when it was watched",
    "the step does not hold \0",
    "calls of \0 write what calls read",
    "a recursive call is given a tensor that none was seen to use",
    "a recursion has no end that was seen",
    "the lists to which recursive calls append change places",
    "the gradients of a loop's iterations depend on the arms that these take",
    "the arms through an iteration of a loop \0",
    "\0 bodies would have to be made for calls of \0",
    "\0 cannot be computed for many calls at a time",
    "\0 variants of \0 have been seen, and there are more",
    "calls of \0 cannot be run many at a time",
    "the sizes of what \0 returns in a recursive call depend on contents",
    "what recursive calls write to objects is used in the same step",
    "an entry was dropped",
    "what a loop's iterations gave is used all together, and their number is no size of a tensor",
    "a loop works on rows whose sizes change",
    "the iterations of a loop that a tensor ends draw random numbers, and have gradients",
    "an iteration of the loop trains by what has a backward graph from before the loop",
    "an iteration of the loop \0",
    "a loop's iterations may raise",
    "the iterations of a loop whose trip count changes are not all alike",
    "the number of a loop's iterations cannot change",
}
# These are reached by way of others that are refused before, or only by those who record without a watch.
UNREACHED = {"numpy", "__array__", "_typed_storage", "__reduce_ex__"}


def quotes() -> list[str]:
    """What the document says that the report says."""
    found = []
    for line in DOCUMENT.splitlines():
        if line.startswith("| `"):
            found += re.findall(r"`([^`]+)`", line.split(" | ")[0])
    return found


def pattern(quote: str) -> str:
    return ".*?".join(re.escape(part) for part in quote.split("..."))


# -- what produces them -------------------------------------------------------------------------------------------


def _program(*nodes: Node) -> Program:
    return Program((Input(torch.ones(3), False, True),), (), nodes, (), (), (), ())


def _other_count() -> None:
    lower(_program(Node(lambda x: (x + 1, x + 2), (Ref(0),), {}, (Ref(1),))))


def _other_aliasing() -> None:
    lower(_program(Node(lambda x: x + 1, (Ref(0),), {}, (Ref(0),))))


def _seeding() -> None:
    lower(_program(Node(torch.manual_seed, (3,), {}, ())))


def _two_default_dtypes() -> None:
    one, two = (Modes(default_dtype=dtype) for dtype in (torch.float32, torch.float64))
    lower(_program(*(Node(torch.relu, (Ref(0),), {}, (Ref(k),), modes) for k, modes in ((1, one), (2, two)))))


def _other_order() -> None:
    UserCodeReplay((), {}, lambda first, last: None)._called(1, ())


def _other_gradient() -> None:
    UserCodeReplay((), {0: torch.ones(3)}, lambda first, last: None)._name(
        (Ref(0),), [torch.ones(3)], Node(None, (), {}, ())
    )


def _lowered(step: Callable[..., Any], *args: Any) -> Any:
    program, _ = generalise([record(step, *args)])
    return lower(program)


def _error_that_inductor_would_lose() -> None:
    compiling._refuse_lost(_lowered(lambda x: (torch.linalg.cholesky(x), x * 2)[1], torch.eye(3)))


def _drawn_into_gaps() -> None:
    prepare(_lowered(lambda x: x.uniform_(), torch.ones(4, 6)[:, ::2]))


def _gradient_unseen() -> None:
    lower(_program(Node(lambda x: (x.requires_grad_() * x).sum().backward(), (Ref(0),), {}, ())))


def _copied_in_inductor() -> None:
    prepare(_lowered(lambda x, y: (y.copy_(x), x.mul_(2)), torch.ones(3) * 1j, torch.ones(3) * 1j))


def _number_that_inductor_cannot_take() -> None:
    runs = [record(lambda x, k: torch.nan_to_num(x, nan=k), torch.ones(3), k) for k in (0.5, 0.7)]
    prepare(lower(generalise(runs)[0]))


def _layer_that_inductor_cannot_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    node = SimpleNamespace(target="aten.mkldnn_rnn_layer.default")
    lowered: Any = SimpleNamespace(
        graph=SimpleNamespace(graph=SimpleNamespace(nodes=[node])), program=None, pinned={}, outputs=(1,), leaves=(),
        mutated=(), lent=None, saves=None,
    )  # fmt: skip
    monkeypatch.setattr(compiling, "lower", lambda program, pinned: SimpleNamespace(outputs=(), leaves=(), mutated=()))
    compiling._without_rnn_kernels(lowered)


def _fault_of_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr("torch._inductor.standalone_compile", fails)
    lowered = _lowered(lambda x: x * 2, torch.ones(3))
    compiling.compile_step(lowered, prepare(lowered), {})


def _nothing_to_capture() -> None:
    CudaGraph.of(_lowered(lambda x: x * 2, torch.ones(3)), None)


def _counted_mask() -> None:
    aten_body(_lowered(lambda x: x.index_put((x > 0,), x.new_ones(())), torch.ones(3)))


def _looked_at_on_the_host() -> None:
    aten_body(_lowered(torch.linalg.inv, torch.eye(3)))


def _waiting_for_the_device() -> None:
    aten_body(_lowered(lambda x: torch.histc(x, 4), torch.eye(3)))


def _fault_in_what_leaves_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr(Finalization, "settle", fails)
    step = torchjanus.speculate(lambda x: x * 2, executor="replay")
    assert step(torch.ones(1)).item() == 2.0
    raise Refused(step.refusals[0])


def _path_that_is_not_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr(runner, "Served", fails)
    step = torchjanus.speculate(lambda x: x * 2, executor="coexecute")
    for call in range(4):
        assert step(torch.full((1,), float(call))).item() == 2 * call
    raise Refused(step.refusals[0])


BY_HAND: tuple[Callable[..., None], ...] = (
    _other_count,
    _other_aliasing,
    _seeding,
    _two_default_dtypes,
    _other_order,
    _other_gradient,
    _error_that_inductor_would_lose,
    _copied_in_inductor,
    _drawn_into_gaps,
    _gradient_unseen,
    _number_that_inductor_cannot_take,
    _layer_that_inductor_cannot_compile,
    _fault_of_inductor,
    _nothing_to_capture,
    _counted_mask,
    _looked_at_on_the_host,
    _waiting_for_the_device,
    _fault_in_what_leaves_the_step,
    _path_that_is_not_traced,
)
# Steps of two processes that are refused.
OF_TWO_PROCESSES = ["hook_beside_a_reducer", "handle_outlives_the_step", "autograd_follows"]


@pytest.mark.parametrize("name", every(2, harness.programs_in(harness.load_file(PROGRAMS))))
def test_program(name: str) -> None:
    check(PROGRAMS, name)


@pytest.fixture(scope="module")
def produced(tmp_path_factory: pytest.TempPathFactory) -> str:
    """All that is reported of the programs marked as refused, here and in the corpus, of steps of two processes, and
    what is made by hand above."""
    both, _ = run_both(OF_TWO_PROCESSES, tmp_path_factory.mktemp("processes"))
    reported = [report for rows in both for *_, report in rows]
    for file in (PROGRAMS, *harness.files().values()):
        module = harness.load_file(file)
        for name in harness.programs_in(module):
            spec = getattr(module, name).spec
            if spec.refused or spec.reported:
                reported += [str(torchjanus.explain(step, detail=True)) for step in _called(file, name)]
    for make in BY_HAND:
        with pytest.MonkeyPatch.context() as monkeypatch, pytest.raises(Refused) as raised:
            make(*[monkeypatch][: make.__code__.co_argcount])
        reported.append(str(raised.value))
    return "\n".join(reported)


def _called(file: Path, name: str) -> list[Any]:
    """The speculated functions of a program, after its calls: nothing is looked at in between."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(harness, "snapshot", lambda root: [])
        return harness.run_in(harness.load_file(file), name, "replay").steps


@pytest.mark.slow
def test_every_quoted_message_is_produced(produced: str) -> None:
    assert len(quotes()) > 90
    missing = [quote for quote in quotes() if not re.search(pattern(quote), produced)]
    assert missing == []


# -- what the source can say ---------------------------------------------------------------------------------------


def refusals(path: Path) -> Iterator[str]:
    """The words of each refusal in a file, "what: why", with a mark where names go."""
    if path.is_relative_to(SOURCE / "cli") or path.is_relative_to(SOURCE / "semantics" / "staged"):
        return  # the command line's own errors; why a function cannot be staged (docs/staging.md)
    tree = ast.parse(path.read_text())
    where = path.relative_to(SOURCE).as_posix()
    for function in [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]:
        known = {t.id: n.value for n in ast.walk(function) if isinstance(n, ast.Assign)
                 for t in n.targets if isinstance(t, ast.Name)}  # fmt: skip
        for call in ast.walk(function):
            if not isinstance(call, ast.Call):
                continue
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if name not in REFUSING:
                continue
            if len(call.args) <= REFUSING[name]:
                continue  # it marks a run, or passes a refusal that was made before
            written = isinstance(call.args[REFUSING[name]], ast.JoinedStr | ast.Constant)
            if (where, name) in PASSED_ON and not written:
                continue
            at = REFUSING[name]
            parts = [_words(arg, known) for arg in call.args[at : at + 2]]
            if name in ("refuse_weak", "refuse_ending", "_weak", "handed"):
                parts = parts[:1]
            if not "".join(parts).strip("\0"):
                parameters = {arg.arg for arg in function.args.args}
                assert isinstance(call.args[at], ast.Name), f"{path}:{call.lineno}"
                assert call.args[at].id in parameters, f"{path}:{call.lineno}"
                continue  # it passes what it is given
            yield ": ".join(parts)


def _words(node: ast.expr, known: dict[str, ast.expr]) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_words(v, known) for v in values)
        case ast.Name(id=name) if name in known:
            return _words(known[name], {})
    return "\0"


def test_every_refusal_in_the_source_is_quoted() -> None:
    patterns = [pattern(quote) for quote in quotes()]
    found = [words for path in sorted(SOURCE.rglob("*.py")) for words in refusals(path)]
    assert len(found) > 70
    unquoted = {w for w in found if not any(re.search(p, w) for p in patterns)}
    assert {w.replace("\0", "...") for w in unquoted if w.partition(":")[0] not in UNSEEN} == set()


def test_every_refused_function_of_torch_is_quoted() -> None:
    for name in REFUSED.keys() - UNREACHED:
        assert f"`Tensor.{name} inside" in DOCUMENT or f"`Tensor.{name}.__get__ inside" in DOCUMENT, name


def test_every_line_has_a_reason_and_a_remedy() -> None:
    rows = [line for line in DOCUMENT.splitlines() if line.startswith("| `")]
    for row in rows:
        cells = [cell.strip() for cell in row.strip().strip("|").split(" | ")]
        assert len(cells) == 3 and all(cells), row


def test_what_is_not_there_is_missed() -> None:
    assert not re.search(pattern("reads a ... moon"), "reads a weak reference")
    assert re.search(pattern("calls ...()"), "calls locals(): it")
