"""The databases, which PyTorch keeps for its own tests."""

from __future__ import annotations

import importlib
import sys
import types
import unittest
from typing import Any

import torch

__all__ = ["modules", "operators", "optimizers"]


def _ready() -> None:
    """Their modules import a package for tests of texts, which is not needed to read them."""
    if "expecttest" not in sys.modules:
        try:
            importlib.import_module("expecttest")
        except ImportError:
            stand_in: Any = types.ModuleType("expecttest")
            stand_in.TestCase = unittest.TestCase
            stand_in.assert_expected_inline = None
            sys.modules["expecttest"] = stand_in


def _entries(module: str, name: str) -> list[Any]:
    _ready()
    # PyTorch's test package changes how TorchScript's functions are called, and locks the backends' flags: what else
    # runs in this process is to find both as they were.
    scripted: tuple[Any, ...] = (torch._C.ScriptFunction, torch._C.ScriptMethod)
    calls = [kind.__call__ for kind in scripted]
    backends, free = torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag"
    was_free = backends[free]
    try:
        return list(getattr(importlib.import_module(f"torch.testing._internal.{module}"), name))
    finally:
        for kind, call in zip(scripted, calls, strict=True):
            kind.__call__ = call
        backends[free] = was_free


def operators() -> list[Any]:
    """All OpInfos."""
    return _entries("common_methods_invocations", "op_db")


def modules() -> list[Any]:
    """All ModuleInfos."""
    return _entries("common_modules", "module_db")


def optimizers() -> list[Any]:
    """All OptimizerInfos."""
    return _entries("common_optimizers", "optim_db")
