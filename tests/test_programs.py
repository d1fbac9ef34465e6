"""Every program of the corpus does the same speculated as eagerly, and is speculated or refused as it says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import torchjanus
from tests.programs import harness

EVERY = harness.programs()
# Bodies of recursive functions, rounds in which tensors decide and graphs found by trying take a second or more to be
# made: the first program of each of these is for each run, and every twenty-fourth after it.
THOROUGH = frozenset(
    """recursion forest_labels forest_numbers forest_results node_classes recursive_numbers lists_of_numbers
    numbers_as_sizes effects_of_ways lists_of_ways deciding_loops deciding_regions rows_before selections
    rounds_by_number rounds_by_length counting_loops
    recurrent_layers decided_nodes generic_walks few_rows windows_in_rounds
    ragged_lists set_in_rounds while_loops meant_after_loops packed_sequences
    numbers_gone_through counts_of_trees lists_along_trees any_arguments sums_in_calls
    results_in_part decided_by_chance modes_in_loops sizes_in_loops backward_loops tensor_loops counting_in_calls
    loop_effects lookups_in_loops nested_loops enclosing_variables
    counting_down while_rounds changed_in_rounds
    sums_in_variables rows_of_steps loops_left_early few_rounds selections_within filled_and_looked_at
    left_by_ways""".split()
)
# These are served only when many loops, or calls, have been told alike: every sixteenth.
PATIENT = frozenset(
    """reckoned training_in_rounds optimizers_in_rounds optimizers_of_steps modules_of_steps times_as_tensors
    parts_picked_by_nodes objects_from_calls filled_in_rounds growing_in_rounds handed_on""".split()
)
# So many of one kind, or of a second or two each, that every sixth is enough for each run.
MANY = frozenset(
    """attributes_that_come
    branches changes flags_of_calls lists_by_number loops modes modules optimizers put_by_tensors replay_buffers
    schedules set_by_numbers shapes shared_with_arrays shared_with_buffers types until_limits until_reckoned
    which_object
    deep_copies distributions_in_rounds drawn_until_tensors_end fetched_factors list_loops parts_by_counts
    picked_by_tensors put_in_place rows_of_nodes windows_by_tensors zipped_with_rounds""".split()
)
# Very long each.
LONG = frozenset({
    ("while_rounds", "in_a_function_that_calls_itself"), ("found", "recursion_without_end"),
    ("reckoned", "the_limit_is_used_after_the_loop"), ("modules", "bert_classifier"),
    ("filled_in_rounds", "written_from_a_place_that_changes"), ("any_arguments", "states_as_further_arguments"),
    ("rounds_by_length", "every_second_and_last"), ("deciding_regions", "with_random_numbers"),
    ("effects_of_ways", "two_numbers_swapped"), ("decided_nodes", "module_with_a_gate"),
    ("until_reckoned", "trained_for_as_long_as_it_takes"), ("optimizers_in_rounds", "a_critic_and_a_maker"),
})  # fmt: skip


def slow_ones(every: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Those that only ``make test-all`` runs: all but every nth of a category. At least one is for each run."""
    often = {category: 2 for category, programs in Counter(category for category, _ in every).items() if programs > 24}
    often |= {category: nth for group, nth in ((THOROUGH, 24), (PATIENT, 16), (MANY, 6)) for category in group}
    seen: Counter[str] = Counter()
    for category, name in every:
        if (category, name) in LONG or seen[category] % often.get(category, 1):
            yield category, name
        seen[category] += (category, name) not in LONG


SLOW = frozenset(slow_ones(EVERY))


def test_each_category_has_a_program_for_each_run() -> None:
    assert {category for category, _ in EVERY} == {category for category, _ in set(EVERY) - SLOW}


@pytest.mark.parametrize(
    ("category", "name"),
    [pytest.param(*pair, id="-".join(pair), marks=pytest.mark.slow if pair in SLOW else ()) for pair in EVERY],
)
def test_program(category: str, name: str) -> None:
    check(harness.CORPUS / f"{category}.py", name)


def check(file: Path, name: str) -> None:
    """Run a program of a file both ways: it does the same, and is speculated or refused as it says."""
    spec = getattr(harness.load_file(file), name).spec
    eager = harness.run_in(harness.load_file(file), name, None)
    other = harness.run_in(harness.load_file(file), name, "replay")
    assert harness.compare(eager, other, spec.close) == []
    counts = [step.statistics() for step in other.steps]
    told = [str(torchjanus.explain(step)) for step in other.steps]
    events = [event for step in other.steps for event in step.events]
    assert [event.text for event in events if event.kind == "fault"] == []
    assert spec.told in "\n".join(told)
    speculated = sum(c.speculated for c in counts)
    if spec.refused:
        # Where that comes first, Python makes it, and what follows may be speculated on.
        assert speculated == 0 or any(event.kind == "cut" for event in events), "was speculated: pin it"
        assert spec.refused in "\n".join(told)
    else:
        assert speculated >= spec.speculated, "\n".join(told)
        assert sum(c.compiles for c in counts) <= spec.compiles
