"""Every function of the libraries that a training step runs in can be rewritten, reached by a step or not."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from types import FunctionType

import pytest

from torchjanus.core.errors import SourceUnavailable
from torchjanus.rewrite import sites_of

MODULES = [
    "torch.nn.functional",
    "torch.nn.modules.activation",
    "torch.nn.modules.batchnorm",
    "torch.nn.modules.container",
    "torch.nn.modules.conv",
    "torch.nn.modules.linear",
    "torch.nn.modules.loss",
    "torch.nn.modules.module",
    "torch.nn.modules.rnn",
    "torch.nn.utils.clip_grad",
    "torch.optim.adam",
    "torch.optim.adamw",
    "torch.optim.lr_scheduler",
    "torch.optim.optimizer",
    "torch.optim.sgd",
    "transformers.modeling_utils",
    "transformers.models.bert.modeling_bert",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.utils.generic",
]


def functions_in(name: str) -> Iterator[FunctionType]:
    """The functions and methods that are defined in the module's own file."""
    module = importlib.import_module(name)
    for value in vars(module).values():
        members = vars(value).values() if isinstance(value, type) else [value]
        for member in members:
            plain = inspect.unwrap(getattr(member, "__func__", getattr(member, "fget", member)))
            if isinstance(plain, FunctionType) and plain.__code__.co_filename == module.__file__:
                yield plain


@pytest.mark.parametrize("name", MODULES)
def test_every_function_of_the_module_can_be_rewritten(name: str) -> None:
    missed, found = [], 0
    for fn in functions_in(name):
        found += 1
        try:
            sites_of(fn)
        except SourceUnavailable as error:
            missed.append(str(error))
    assert found
    assert not missed
