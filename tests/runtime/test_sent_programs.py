"""Programs of the corpus do what eager does by graphs that were made of what was sent of them, and were sent back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.programs import harness
from tests.test_programs import check
from torchjanus.execute.processes.lowering import pack_made, unpack_made
from torchjanus.graph.ir.program import Program
from torchjanus.graph.lowering.function_bytes import own_functions
from torchjanus.graph.lowering.graph_bytes import keys_of, signature
from torchjanus.graph.lowering.lower import lower_rolled
from torchjanus.graph.lowering.program_bytes import pack_program, unpack_program
from torchjanus.graph.operators.loop_op import are_own, own_keys
from torchjanus.runtime.runs import lowering_cache

# Those with recursive calls, and with iterations in which tensors decide.
OWN = frozenset(
    """recursion labels_of_trees numbered_trees results_of_trees node_classes recursive_numbers branches_in_recursion
    generic_traversals branches_in_loops effects_of_arms appends_in_arms index_conditions iteration_indices
    previous_rows""".split()
)
HERE = frozenset({"sums_of_counts"})  # their graphs hold the contents of tensors
# Each takes as long as five of the others.
LONG = frozenset(
    {"too_deep", "printed_in_each_iteration", "elements_from_the_other_end", "any_number_of_trees_top_down"}
)
INSTEAD = frozenset({"beams_that_a_tensor_ends"})  # of one of these: a short one of its file
OURS = [pair for pair in harness.programs() if pair[0] in OWN]


@pytest.mark.parametrize(
    ("category", "name"),
    [
        pytest.param(*pair, id="-".join(pair), marks=() if pair[1] in INSTEAD or quick else pytest.mark.slow)
        for pair, quick in ((pair, not n % 24 and pair[1] not in LONG) for n, pair in enumerate(OURS))
    ],
)
def test_program(category: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def remote(program: Program) -> Any:
        packed, text = pack_program(program), signature(program)
        if packed is None or text is None:
            assert not own_functions(program), "was not sent"
            return lower_rolled(program)
        other = unpack_program(packed)
        assert signature(other) == text
        with own_keys() as keys:
            lowered = lower_rolled(other)
        made = pack_made(lowered, other, keys, ordered=True)
        if made is None:
            # A loop that this process has made for another graph keeps its key, which a new process would not know.
            assert name in HERE or not are_own(keys_of(lowered), keys)
            return lower_rolled(program)
        return unpack_made(made, program, reserved=True)

    monkeypatch.setattr(lowering_cache, "lower_whole", remote)
    check(harness.files()[category], name)
