"""Programs in the style of public scripts: equal to eager, bitwise, and served wholly or in parts."""

from __future__ import annotations

import importlib.util

import pytest

from benchmarks.robustness.outside import compared
from tests.outside import PROGRAMS

NEEDS = {
    "bert_pairs": "transformers", "callback_fitting": "scipy", "graph_messages": "networkx", "gym_policy": "gymnasium",
    "sklearn_report": "sklearn", "sparse_citations": "networkx", "tabular_epochs": "sklearn", "tree_sentiment": "nltk",
}  # fmt: skip
# Some take long; in sparse_citations and conflicting_tasks the parts that pay are chosen by their measured times.
SLOW = {
    "adversarial_pictures", "attentive_translation", "bayes_by_backprop", "beam_captions", "bert_pairs",
    "callbacks_and_checkpoints", "clipped_policy", "conflicting_tasks", "crf_tagger", "detection_head",
    "evolved_policy", "flow_density", "gym_policy", "mixture_of_experts", "model_agnostic_meta",
    "momentum_contrast", "neural_ode", "packed_names", "quantised_training", "sklearn_report", "sparse_citations",
    "tabular_epochs", "tree_sentiment", "tree_similarity",
}  # fmt: skip
CASES = [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in PROGRAMS]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_results_are_eagers_and_most_calls_are_served(name: str) -> None:
    needed = NEEDS.get(name)
    if needed is not None and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    one = compared(name)
    assert one.equal
    assert one.served >= PROGRAMS[name] * one.late, one
