"""Programs of the corpus in which only forward passes are speculated: what they train is eager's, bitwise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import torchjanus
from tests.programs import harness

QUICK_ONE_IN = 4


def modules_of(made: harness.Program) -> list[nn.Module]:
    """The modules that a program's step reaches by its closure."""
    step = made.step
    cells = (cell.cell_contents for cell in getattr(step, "__closure__", None) or () if cell_has_value(cell))
    found = [value for value in cells if isinstance(value, nn.Module)]
    return list({id(module): module for module in found}.values())


def cell_has_value(cell: Any) -> bool:
    try:
        cell.cell_contents
    except ValueError:
        return False
    return True


# Every sixth program of these topics that trains a module of its closure.
SAMPLE = """
ambient_modes: grad_mode_around_the_step_changes autocast_without_cache tensor_hook_on_the_input function_in_training
ambient_modes: func_functional_call averaged_by_hand
autograd: two_backwards_retained skip_the_update_when_not_finite
autograd_node_hooks: handles_are_numbered_as_they_were
module_backward_hooks: printed_in_order several_results_and_all_are_used one_module_called_twice under_autocast
module_backward_hooks: a_hook_that_computes_with_another_module hooks_on_modules_registered_anew
python_prologues: transitions_of_which_some_are_the_last
modules: truncated_bptt multihead_attention many_losses residual_with_skips
optimizers: sgd_momentum adam_amsgrad adadelta lbfgs_closure zero_grad_to_zero by_hand_data
optimizers: optimizer_state_loaded_midway
optimizers_made_in_steps: radam_of_as_many_iterations
transformed_modules: lazy_batch_norm weight_norm_by_hooks exported_batch_norm
distributions_in_loops: coins
corner_cases: layers_that_are_frozen_with_a_gradient
dead_writes: gradients_zeroed_after_the_step
replaced_storage: sam_with_a_closure
results: parameters_and_gradients
"""
CHOSEN = [
    (category, name)
    for category, _, names in (line.partition(":") for line in SAMPLE.strip().splitlines())
    for name in names.split()
]


def run(category: str, name: str, cut: bool) -> tuple[list[Any], list[Any]]:
    """What the calls of a program give and leave, and the speculated forward passes."""
    module = harness.load(category)
    harness._seed()
    made = getattr(module, name)()
    models, speculated = modules_of(made), []
    for model in models if cut else ():
        model.forward = torchjanus.speculate(model.forward, executor="replay")
        speculated.append(model.forward)
    observed: list[Any] = []
    for number, call in enumerate((*made.calls, *made.calls)):
        if number in made.before:
            made.before[number]()
        args, kwargs = call if isinstance(call, harness.Call) else (call if isinstance(call, tuple) else (call,), {})
        try:
            result = made.step(*args, **kwargs)
        except Exception as error:
            result = type(error).__name__
        tensors = [part for part in pytree.tree_leaves(result) if isinstance(part, torch.Tensor)]
        state = [part for model in models for part in (*model.parameters(), *model.buffers())]
        grads = [part.grad for part in state]
        observed.append([None if part is None else harness._digest(part) for part in (*tensors, *state, *grads)])
        observed.append(harness._digest(torch.get_rng_state()))
        if made.between is not None:
            made.between(result)
    return observed, speculated


@pytest.mark.parametrize(
    ("category", "name"),
    [
        pytest.param(*pair, id="-".join(pair), marks=pytest.mark.slow if number % QUICK_ONE_IN else ())
        for number, pair in enumerate(CHOSEN)
    ],
)
def test_a_program_with_its_forward_passes_speculated(category: str, name: str) -> None:
    eager, _ = run(category, name, cut=False)
    cut, speculated = run(category, name, cut=True)
    assert eager == cut
    for function in speculated:
        assert [event.text for event in function.events if event.kind == "fault"] == []


def test_most_forward_passes_are_graphs() -> None:
    served, called = 0, 0
    for category, name in CHOSEN[::QUICK_ONE_IN]:
        _, speculated = run(category, name, cut=True)
        counts = [function.statistics() for function in speculated]
        called += sum(count.calls > 6 for count in counts)
        served += sum(count.speculated > 0 for count in counts if count.calls > 6)
    assert called >= 5
    assert served >= 0.7 * called
