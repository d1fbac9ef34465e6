"""Training programs in the style of public scripts: classes for data, model and trainer, meters, metrics of other
libraries. Each module's ``make()`` returns a whole step, the arguments of its calls, and what must be eager's after it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

__all__ = ["PROGRAMS", "Made", "made"]

Made = tuple[Callable[..., Any], list[tuple[Any, ...]], Callable[[], Any]]

# The least share of the calls after the first ten that graphs make, wholly or in parts, with the replay executor.
PROGRAMS: dict[str, float] = {
    "accumulated_gradients": 0.9,  # its updates
    "adversarial_pictures": 0.9,
    "attentive_translation": 0.5,  # a graph for each pair of lengths and each choice of teacher forcing
    "bayes_by_backprop": 0.9,
    "beam_captions": 0.75,  # a graph for each length of the captions; the search in every eighth call
    "bert_pairs": 0.9,
    "binary_weights": 0.9,
    "callbacks_and_checkpoints": 0.9,
    "callback_fitting": 0.9,
    "clipped_policy": 0.9,
    "conflicting_tasks": 0.9,  # in parts: tasks are shuffled as a list of tensors
    "crf_tagger": 0.9,
    "denoising_diffusion": 0.9,
    "detection_head": 0.9,
    "evolved_policy": 0.9,
    "flow_density": 0.9,
    "graph_messages": 0.9,
    "gym_policy": 0.9,
    "image_meters": 0.9,
    "mixture_of_experts": 0.9,
    "model_agnostic_meta": 0.9,
    "momentum_contrast": 0.85,
    "neural_ode": 0.9,  # its updates: how often the field is evaluated depends on fetched numbers
    "packed_names": 0.75,  # a graph for each set of lengths
    "perceptual_style": 0.9,
    "physics_informed": 0.9,
    "private_gradients": 0.9,
    "quantised_training": 0.75,  # two of its three phases begin after the tenth call
    "replayed_values": 0.65,  # the training; the play and the batch differ in each call
    "sklearn_report": 0.9,
    "sparse_citations": 0.75,  # its updates and what reads no sparse tensor
    "tabular_epochs": 0.9,  # its updates and batches: a loader's iterator is asked in the middle of the step
    "tree_sentiment": 0.85,
    "tree_similarity": 0.6,  # its cells: states are kept on the nodes
    "vector_quantised": 0.9,
}


def made(name: str) -> Made:
    """Return the program of this name, with all random numbers drawn anew."""
    program: Made = importlib.import_module(f"tests.outside.{name}").make()
    return program
