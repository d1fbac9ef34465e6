"""Runs a script with ``torch.compile`` on its models, without a change to the script.

    python -m benchmarks.programs.compiled_models SCRIPT ARGUMENTS...

When the script makes an optimizer, the outermost modules that own its parameters are compiled in place.
"""

from __future__ import annotations

import gc
import os
import runpy
import sys
from typing import Any

import torch
from torch import nn

__all__ = ["compile_owners", "main"]


def compile_owners(optimizer: torch.optim.Optimizer) -> list[nn.Module]:
    """Compile the outermost modules that own parameters of an optimizer. Returns them."""
    wanted = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    modules = [found for found in gc.get_objects() if isinstance(found, nn.Module)]
    owners = [one for one in modules if any(id(parameter) in wanted for parameter in one.parameters())]
    inside = {id(child) for one in owners for child in one.modules() if child is not one}
    outermost = [one for one in owners if id(one) not in inside]
    for one in outermost:
        one.compile()
    return outermost


def main() -> None:
    """Run the script as Python would."""
    original = torch.optim.Optimizer.__init__

    def compiling(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        compile_owners(self)

    torch.optim.Optimizer.__init__ = compiling  # type: ignore[method-assign]
    script = sys.argv[1]
    del sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
