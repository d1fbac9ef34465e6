"""The Inductor executor: the whole step compiled to native code by torch._inductor.standalone_compile.

An Inductor artifact is not to be believed before it has passed a Trial (see trust). Knows nothing of fx.
"""

from __future__ import annotations

import copy
import pickle
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch._inductor import CompiledArtifact, standalone_compile  # type: ignore[attr-defined]

from torchjanus.errors import NOWHERE, Refusal, Refused
from torchjanus.execute.after_mutation import options
from torchjanus.execute.base import Numbers, Violated
from torchjanus.execute.choice import choices_of
from torchjanus.execute.gate import Ambience, failed
from torchjanus.execute.invoke import invocations_of
from torchjanus.execute.invoke_inductor import (
    CompiledCalls,
    Part,
    PartToCompile,
    assembled,
    calls_to_compile,
    compile_calls,
    compiled_calls,
    parts_to_compile,
)
from torchjanus.execute.loop import loops_of
from torchjanus.execute.loop_inductor import CompiledRounds, Writing, compiled_loops, loops_to_compile, writings
from torchjanus.execute.replay import Replay
from torchjanus.execute.rollback import Rollback
from torchjanus.execute.store import Product, Verdict, fingerprint, store_in_use
from torchjanus.execute.worker import Compilation, Request
from torchjanus.graph.for_inductor import Prepared, prepare
from torchjanus.graph.invoke_halves import Halves as CallHalves
from torchjanus.graph.invoke_writing import Writing as PartWriting
from torchjanus.graph.loop_halves import Halves
from torchjanus.graph.lower import lower
from torchjanus.graph.lowered import Lowered
from torchjanus.graph.risks import Risks, risks_of
from torchjanus.graph.selecting import found_sizes
from torchjanus.graph.shipping import Condition, Geometry, Opened, Sizes, fitting, text_of
from torchjanus.trace.blanks import is_blank, like

__all__ = ["Inductor", "Order", "PendingInductor", "compile_part", "expect", "hand_on", "pack_order", "unpack_order"]


@dataclass(frozen=True, slots=True)
class Compiled:
    """What the compiler has made of a step: right where the ``conditions`` hold of the sizes of its inputs."""

    call: Callable[..., Any]
    conditions: tuple[Condition, ...] = ()


class Inductor:
    """Runs a lowered graph as one compiled artifact, which updates the mutated inputs in place under its flags."""

    name = "inductor"
    kept = False  # whether an earlier run has compiled it
    verdict: Verdict | None = None  # where it can be kept that it agrees with replay

    def __init__(self, lowered: Lowered, *, cpp_wrapper: bool = True, rewrite_alpha: bool = True) -> None:
        """Compile, in this thread: seconds to minutes. Raises Refused where Inductor cannot take the graph."""
        _refuse_lost(lowered)
        prepared = prepare(_without_rnn_kernels(lowered), rewrite_alpha=rewrite_alpha)
        patches = _patches(cpp_wrapper and _can_wrap(lowered))
        loops, wanted = [], loops_to_compile(lowered)
        with Ambience(lowered):
            step = _compile_step(lowered, prepared, patches)
            for halves, counts in wanted:
                made = writings(halves, counts)
                calls = [_compile(w.prepared, [*w.examples, *w.prepared.constants], patches) for w in made]
                loops.append(CompiledRounds(halves, made, calls))
            recursions = [compile_calls(one, compile_part) for one in calls_to_compile(lowered)]
        self._fill(lowered, prepared, step, loops, recursions)

    @classmethod
    def order(cls, lowered: Lowered, *, cpp_wrapper: bool = True) -> Order:
        """All that another process has to know to compile it. Raises Refused where Inductor cannot take the graph."""
        if (ordered := _ORDERED.pop(lowered.graph, None)) is not None:
            return unpack_order(ordered, lowered)
        _refuse_lost(lowered)
        prepared = prepare(_without_rnn_kernels(lowered))
        patches, loops = _patches(cpp_wrapper and _can_wrap(lowered)), []
        dtype = lowered.default_dtype
        requests = [_request(prepared, _examples(lowered, prepared), patches, dtype)]
        for halves, counts in loops_to_compile(lowered):
            made = writings(halves, counts)
            requests += [_request(w.prepared, [*w.examples, *w.prepared.constants], patches, dtype) for w in made]
            loops.append((halves, made))
        recursions = []
        for recursion in calls_to_compile(lowered):
            parts = [(part, _PARTS.get(_part_key(part.writing))) for part in parts_to_compile(recursion)]
            for part, known in parts:
                if known is None:
                    requests.append(_part_request(part.writing))
            recursions.append((recursion, tuple(parts)))
        return Order(lowered, prepared, tuple(requests), tuple(loops), tuple(recursions))

    @classmethod
    def start(cls, lowered: Lowered, *, cpp_wrapper: bool = True) -> PendingInductor:
        """Compile in another process. Raises as ``order`` does."""
        return cls.order(lowered, cpp_wrapper=cpp_wrapper).start()

    @classmethod
    def loaded(
        cls,
        lowered: Lowered,
        prepared: Prepared,
        step: Compiled,
        loops: Sequence[CompiledRounds] = (),
        recursions: Sequence[CompiledCalls] = (),
        *,
        kept: bool = False,
        verdict: Verdict | None = None,
    ) -> Inductor:
        """An executor around what another process has compiled of ``prepared``, of loops and of recursions. ``kept``:
        long ago."""
        made = cls.__new__(cls)
        made.kept, made.verdict = kept, verdict
        made._fill(lowered, prepared, step, loops, recursions)
        return made

    def _fill(
        self,
        lowered: Lowered,
        prepared: Prepared,
        step: Compiled,
        loops: Sequence[CompiledRounds],
        recursions: Sequence[CompiledCalls] = (),
    ) -> None:
        self.lowered = lowered
        self._call = step.call
        risks = _risks(lowered)
        # Where sizes do not keep to what rules out that an operation raises, replay raises what eager does.
        sizes = risks.sizes if lowered.mutated else ()
        self._fits = fitting([*map(Geometry.of, _fakes(lowered))], [*step.conditions, *sizes])
        self._otherwise = None if self._fits is None else Replay(lowered)
        self._loops = compiled_loops(lowered, loops)
        self._calls = compiled_calls(lowered, recursions)
        self._pack = _packer(prepared)
        self._copies = prepared.copies
        self._bounds = risks.bounds if lowered.mutated else ()
        self._undone = lowered.mutated if risks.open else ()
        self._constants = prepared.constants
        self._rollback = Rollback(lowered)

    def fits(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether the artifact is right for inputs of these sizes: the compiler may have decided by those it was shown.
        Others are run by replay."""
        return self._fits is None or self._fits(inputs)

    def run(self, inputs: Sequence[torch.Tensor], slots: Numbers) -> list[torch.Tensor] | Violated:
        """See Executable.run. Versions of the mutated inputs rise even where a violation leaves their contents."""
        lowered = self.lowered
        if self._otherwise is not None and not self.fits(inputs):
            return self._otherwise.run(inputs, slots)
        for bound in self._bounds:
            if not bound.holds(inputs):
                raise IndexError(f"input {bound.index} has an element that is no index below {bound.limit}")
        # An operation may raise after the artifact has updated inputs.
        saved = self._rollback.save([inputs[index] for index in self._undone])
        try:
            with Ambience(lowered):
                values = self._call(*inputs, *self._pack(slots), *self._constants)
                if self._copies:
                    values = list(values)
                    for position, source in self._copies:
                        values.insert(position, values[source].clone())
            violated = None if lowered.flags is None else failed(values[lowered.flags])
        except BaseException:
            self._rollback.restore(saved)
            raise
        if violated is not None:
            self._rollback.generators.restore(saved.generators)
            return violated
        return list(values[: lowered.fresh])


def _risks(lowered: Lowered) -> Risks:
    return risks_of(lowered, loops_of(lowered.program), choices_of(lowered.program))


def _refuse_lost(lowered: Lowered) -> None:
    """Inductor drops operations that are there only to raise, and its integer division by zero ends the program."""
    lost = _risks(lowered).lost
    if lost:
        what = f"{lost} raises on some values, and Inductor would not"
        raise Refused(Refusal(NOWHERE, what, "The error would be lost.", "Replay is used."))


def _without_rnn_kernels(lowered: Lowered) -> Lowered:
    """The same program on plain ATen where it uses oneDNN's recurrent layer, which Inductor cannot call in training."""
    if not any("mkldnn_rnn_layer" in str(node.target) for node in lowered.graph.graph.nodes):
        return lowered
    if lowered.lent is not None:
        what = "a part of the step uses oneDNN's recurrent layer"
        raise Refused(Refusal(NOWHERE, what, "Inductor cannot compile that layer.", "Replay is used."))
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # torch.backends.mkldnn.flags() warns about settings it is not asked to touch
    try:
        other = lower(lowered.program, lowered.pinned)
    finally:
        torch._C._set_mkldnn_enabled(enabled)
    if (other.outputs, other.leaves, other.mutated) != (lowered.outputs, lowered.leaves, lowered.mutated):
        what = "without oneDNN's recurrent layer the step has other results"
        raise Refused(Refusal(NOWHERE, what, "Inductor cannot compile that layer.", "Replay is used."))
    return other


def _packer(prepared: Prepared) -> Callable[[Numbers], list[torch.Tensor]]:
    """A function from slot values to the packed tensors."""
    parts = []
    if prepared.floats:
        parts.append(f"frombuffer(array('d', ({', '.join(prepared.floats)},)), dtype=float64)")
    if prepared.ints:
        parts.append(f"frombuffer(array('q', ({', '.join(prepared.ints)},)), dtype=int64)")
    names = {"frombuffer": torch.frombuffer, "array": array, "float64": torch.float64, "int64": torch.int64}
    made: Callable[[Numbers], list[torch.Tensor]] = eval(f"lambda slots: [{', '.join(parts)}]", names)
    return made


def _taken(prepared: Prepared) -> list[torch.Tensor]:
    """What the prepared graph takes, as it was traced."""
    return [node.meta["val"] for node in prepared.graph.graph.nodes if node.op == "placeholder"]


def _examples(lowered: Lowered, prepared: Prepared) -> list[torch.Tensor]:
    """One tensor for each argument of the artifact; fake ones where sizes change."""
    if any(not dimension.made for dimension in lowered.program.dimensions):
        return _taken(prepared)
    given = [entry.example for entry in lowered.program.inputs]
    examples = [like(example) if is_blank(example) else example.detach() for example in given]
    if prepared.floats:
        examples.append(torch.zeros(len(prepared.floats), dtype=torch.float64))
    if prepared.ints:
        examples.append(torch.zeros(len(prepared.ints), dtype=torch.int64))
    return [*examples, *prepared.constants]


def _can_wrap(lowered: Lowered) -> bool:
    """Whether the code around the kernels may be C++: not where an operator of ours returns a list of one tensor, which
    ended the program, nor for other devices, whose kernels are launched from Python."""
    graph = lowered.graph.graph
    nodes = (node for node in graph.nodes if getattr(node.target, "namespace", "") == "torchjanus")
    if any(isinstance(value := node.meta.get("val"), list | tuple) and len(value) == 1 for node in nodes):
        return False
    return all(entry.example.device.type == "cpu" for entry in lowered.program.inputs)


def _patches(cpp_wrapper: bool) -> dict[str, Any]:
    return {"fallback_random": True, "cpp_wrapper": cpp_wrapper}


def _fakes(lowered: Lowered) -> list[torch.Tensor]:
    """What the graph takes, in symbols where sizes change."""
    placeholders = [node for node in lowered.graph.graph.nodes if node.op == "placeholder"]
    return [node.meta["val"] for node in placeholders[: len(lowered.program.inputs)]]


def _request(
    prepared: Prepared, examples: Sequence[torch.Tensor], patches: dict[str, Any], dtype: torch.dtype
) -> Request:
    shapes = tuple(Geometry.of(tensor) for tensor in examples)
    sizes, text = Sizes.of(examples, found_sizes(prepared.graph)), text_of(prepared)
    return Request(prepared, shapes, patches, torch.get_num_threads(), dtype, sizes, text)


def _part_request(writing: PartWriting) -> Request:
    fakes = _taken(writing.prepared)
    prepared = replace(writing.prepared, graph=_bare(writing.prepared))
    return _request(prepared, fakes, _part_patches(writing), torch.get_default_dtype())


def _compile_step(lowered: Lowered, prepared: Prepared, patches: dict[str, Any]) -> Compiled:
    examples = _examples(lowered, prepared)
    if not Sizes.of(examples, found_sizes(prepared.graph)).symbols:
        return Compiled(_compile(prepared, examples, patches))
    return Compiled(*_compile_for_sizes(prepared, examples, patches))


def _compile_for_sizes(
    prepared: Prepared, fakes: Sequence[torch.Tensor], patches: dict[str, Any]
) -> tuple[CompiledArtifact, tuple[Condition, ...]]:
    """The artifact, and what must hold of the sizes."""
    sizes = Sizes.of(fakes, found_sizes(prepared.graph))
    with Opened([Geometry.of(fake) for fake in fakes], sizes) as opened:
        artifact = _compiled(_bare(prepared), opened.examples, patches, opened.shapes)
        return artifact, opened.conditions()


_PARTS: dict[Any, Part] = {}
_MOST_KEPT = 64


def compile_part(writing: PartWriting) -> Part:
    """A part of a recursion's cell, for any number of calls. Raises Refused.

    A recursion that has learnt one more way has its other cells as they were: they are not compiled again.
    """
    key = _part_key(writing)
    found = _PARTS.get(key)
    if found is None:
        fakes = _taken(writing.prepared)
        with torch.no_grad():
            call, conditions = _compile_for_sizes(writing.prepared, fakes, _part_patches(writing))
        found = Part(call, fitting(writing.taken, conditions))
    _keep_part(key, found)
    return found


def _part_key(writing: PartWriting) -> Any:
    return writing.text(), torch.get_num_threads(), torch.get_default_dtype()


def _keep_part(key: Any, part: Part) -> None:
    _PARTS.pop(key, None)
    _PARTS[key] = part  # the last used are the last
    for old in list(_PARTS)[:-_MOST_KEPT]:
        _PARTS.pop(old, None)


def _part_patches(writing: PartWriting) -> dict[str, Any]:
    # What a forest says of its own rows need not be checked.
    return {**_patches(cpp_wrapper=True), "assert_indirect_indexing": writing.checked}


def _bare(prepared: Prepared) -> torch.fx.GraphModule:
    """The graph without what is known of its values: their symbols are others where it is compiled."""
    graph = copy.deepcopy(prepared.graph)
    for node in graph.graph.nodes:
        node.meta.clear()
    return graph


def _loaded_part(writing: PartWriting, product: Product) -> Part:
    part = Part(product.load(), fitting(writing.taken, product.conditions))
    _keep_part(_part_key(writing), part)
    return part


def _compile(
    prepared: Prepared, given: Sequence[Any], patches: dict[str, Any], shapes: Any = "from_example_inputs"
) -> CompiledArtifact:
    graph = _bare(prepared) if found_sizes(prepared.graph) else prepared.graph
    return _compiled(graph, given, patches, shapes)


def _compiled(
    graph: torch.fx.GraphModule, given: Sequence[Any], patches: dict[str, Any], shapes: Any
) -> CompiledArtifact:
    examples: list[Any] = [*given]
    try:
        return standalone_compile(graph, examples, dynamic_shapes=shapes, options=options(patches))
    except Exception as error:
        what = f"Inductor cannot compile the step ({type(error).__name__}: {str(error).splitlines()[0][:200]})"
        raise Refused(Refusal(NOWHERE, what, "The fault is Inductor's.", "Replay is used.")) from error


@dataclass(frozen=True, slots=True)
class Order:
    """An Inductor executor that is to be made in another process: of the step, of ``loops``' blocks of rounds, of parts
    of ``recursions``' cells (but for those that this process has already)."""

    lowered: Lowered
    prepared: Prepared
    requests: tuple[Request, ...]
    loops: tuple[tuple[Halves, list[Writing]], ...]
    recursions: tuple[tuple[CallHalves, tuple[tuple[PartToCompile, Part | None], ...]], ...] = ()

    def start(self) -> PendingInductor:
        """Look for what an earlier run has kept, and start the process for the rest."""
        store = store_in_use()
        found = [None if store is None else store.get(request.key()) for request in self.requests]
        missing = [request for request, product in zip(self.requests, found, strict=True) if product is None]
        return PendingInductor(self, found, Compilation(missing) if missing else None)

    def verdict(self) -> Verdict | None:
        """Where it can be kept that what has been compiled agrees with replay."""
        store = store_in_use()
        parts = [_part_key(part.writing) for _, some in self.recursions for part, _ in some]
        keys = [request.key() for request in self.requests]
        return None if store is None else Verdict(store, fingerprint(("agrees with replay", *keys, *parts)))


# What another process has prepared of graphs: that is taken instead of preparing them here.
_ORDERED: WeakKeyDictionary[torch.fx.GraphModule, bytes] = WeakKeyDictionary()


def expect(lowered: Lowered, order: bytes) -> None:
    """``Inductor.order`` need not be made of this graph: it has been, see pack_order."""
    _ORDERED[lowered.graph] = order


def hand_on(whole: Lowered, part: Lowered) -> None:
    """What is expected of the whole graph is expected of its last part."""
    if (order := _ORDERED.pop(whole.graph, None)) is not None:
        _ORDERED[part.graph] = order


def pack_order(order: Order) -> bytes | None:
    """An order, for another process that has the same graph. None where it holds tensors, or what is compiled
    already."""
    parts = [pair for _, some in order.recursions for pair in some]
    writings = [writing for _, made in order.loops for writing in made]
    prepared = [order.prepared, *(one.prepared for one in writings), *(part.writing.prepared for part, _ in parts)]
    if any(known is not None for _, known in parts) or any(one.constants for one in prepared):
        return None
    requests = tuple(request.packed() for request in order.requests)
    program = order.lowered.program
    places = [*loops_of(program)]
    loops = [(_place(halves, places), [writing.bare() for writing in made]) for halves, made in order.loops]
    calls = [*invocations_of(program)]
    recursions = [(_place(halves, calls), [part.bare() for part, _ in some]) for halves, some in order.recursions]
    return pickle.dumps((order.prepared.bare(), requests, loops, recursions))


def _place(halves: object, places: Sequence[object]) -> int:
    return next(place for place, one in enumerate(places) if one is halves)


def unpack_order(packed: bytes, lowered: Lowered) -> Order:
    """The order, of this graph."""
    prepared, asked, loops, recursions = pickle.loads(packed)
    threads, places = torch.get_num_threads(), [*loops_of(lowered.program)]
    calls = [*invocations_of(lowered.program)]
    requests = [replace(request, threads=threads) for request in asked]
    known = [
        (calls[place], tuple((part, _PARTS.get(_part_key(part.writing))) for part in some))
        for place, some in recursions
    ]
    # Those of recursions are the last.
    there = [one is not None for _, some in known for _, one in some]
    first = len(requests) - len(there)
    left = [request for request, one in zip(requests[first:], there, strict=True) if not one]
    made = tuple((places[place], made) for place, made in loops)
    return Order(lowered, prepared, (*requests[:first], *left), made, tuple(known))


@dataclass(frozen=True, slots=True)
class PendingInductor:
    """An Inductor executor in the making. ``found``: what there is already."""

    order: Order
    found: list[Product | None]
    compilation: Compilation | None

    def ready(self) -> bool:
        """Whether ``result`` would not have to wait for the compiler (it still has to load the artifact)."""
        return self.compilation is None or self.compilation.ready()

    def result(self, timeout: float | None = None) -> Inductor:
        """The executor. Raises Refused if the compiler failed, TimeoutExpired if it is not ready in time."""
        made = [] if self.compilation is None else self.compilation.result(timeout)
        store = store_in_use()
        missing = [request for request, product in zip(self.order.requests, self.found, strict=True) if product is None]
        for request, product in zip(missing, made, strict=True):
            if store is not None:
                store.put(request.key(), product)
        new = iter(made)
        products = iter([product or next(new) for product in self.found])
        first = next(products)
        step = Compiled(first.load(), first.conditions)
        loops = [
            CompiledRounds(halves, writings, [next(products).load() for _ in writings])
            for halves, writings in self.order.loops
        ]
        recursions = []
        for recursion, parts in self.order.recursions:
            compiled = [known or _loaded_part(part.writing, next(products)) for part, known in parts]
            recursions.append(assembled(recursion, [part for part, _ in parts], compiled))
        order, kept = self.order, self.compilation is None
        return Inductor.loaded(
            order.lowered, order.prepared, step, loops, recursions, kept=kept, verdict=order.verdict()
        )

    def kill(self) -> None:
        """Give the compilation up: whoever waits for the result is told so."""
        if self.compilation is not None:
            self.compilation.kill()

    def cancel(self) -> None:
        """Give the compilation up, and leave nothing behind."""
        if self.compilation is not None:
            self.compilation.cancel()
