"""Libraries that hold the training loop: which functions make a step, of the library or of the program that it calls.

The steps of these libraries cannot be found by what a function calls: the gradients are computed in one function and
the optimizer is stepped in another, through wrappers. So they are named here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Literal

from torchjanus.cli.discovery.candidates import Candidate, candidates
from torchjanus.rewrite.liveness import within

__all__ = ["CALLED_BY_TRAINERS", "TRAINERS", "is_searched", "steps_in"]

Kind = Literal["training", "evaluation"]

# By module, the qualified names of the functions that make a step or a part of one. None: the steps are found as in
# a program's own modules.
TRAINERS: Mapping[str, Mapping[str, Kind] | None] = {
    "accelerate.optimizer": {"AcceleratedOptimizer.step": "training"},
    "ignite.engine": {
        "supervised_training_step.<locals>.update": "training",
        "supervised_evaluation_step.<locals>.evaluate_step": "evaluation",
    },
    "skorch.net": {"NeuralNet.train_step": "training", "NeuralNet.validation_step": "evaluation"},
    "stable_baselines3.a2c.a2c": None,
    "stable_baselines3.dqn.dqn": None,
    "stable_baselines3.ppo.ppo": None,
    "stable_baselines3.sac.sac": None,
    "stable_baselines3.td3.td3": None,
    "transformers.trainer": {"Trainer.training_step": "training", "Trainer.prediction_step": "evaluation"},
}
# The methods of a program's own classes that a trainer calls, whose results have their backward pass still to come.
CALLED_BY_TRAINERS: Mapping[str, Kind] = {"training_step": "training", "validation_step": "evaluation"}
# Part of the names of the packages that call them.
_CALLERS = ("lightning",)


def is_searched(module: str) -> bool:
    """Whether steps are looked for in a module of an installed package."""
    return module in TRAINERS


def steps_in(tree: ast.Module, library: str | None = None) -> list[Candidate]:
    """Return the steps of a module, in the order of its text. ``library``: its name, if it is in ``TRAINERS``."""
    names = None if library is None else TRAINERS[library]
    if names is not None:
        return [*_with_names(tree, names)]
    found = candidates(tree)
    held = {id(scope) for candidate in found for scope in (candidate.scope, *candidate.around)}
    called = [candidate for candidate in _called_by_trainers(tree) if id(candidate.scope) not in held]
    return sorted([*found, *called], key=lambda candidate: candidate.line)


def _called_by_trainers(tree: ast.Module) -> Iterator[Candidate]:
    """Yield the methods that a trainer calls, of a module that imports one."""
    packages: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            packages.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            packages.add(node.module or "")
    if not any(caller in package for package in packages for caller in _CALLERS):
        return
    methods = {
        name: CALLED_BY_TRAINERS[function.name]
        for function, name, private, around in _functions(tree.body, "", None, ())
        if private is not None and not around and function.name in CALLED_BY_TRAINERS
    }
    yield from _with_names(tree, methods)


def _with_names(tree: ast.Module, names: Mapping[str, Kind]) -> Iterator[Candidate]:
    for function, name, private, around in _functions(tree.body, "", None, ()):
        if name in names:
            yield Candidate(names[name], function, None, name, private, around)


def _functions(
    statements: list[ast.stmt], prefix: str, private: str | None, around: tuple[ast.FunctionDef, ...]
) -> Iterator[tuple[ast.FunctionDef, str, str | None, tuple[ast.FunctionDef, ...]]]:
    """Yield each function that the statements define, its qualified name, the class and the functions around it."""
    for node in within(statements):
        if isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}.", node.name, around)
        elif isinstance(node, ast.FunctionDef):
            name = prefix + node.name
            yield node, name, private, around
            yield from _functions(node.body, f"{name}.<locals>.", private, (*around, node))
