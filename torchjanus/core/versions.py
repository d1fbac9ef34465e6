"""Checks the versions of Python and PyTorch. It reads only metadata, and imports neither torch nor another part."""

from __future__ import annotations

import importlib.metadata
import re
import sys
import warnings

from torchjanus.core.errors import Unsupported

__all__ = ["OLDEST_PYTHON", "OLDEST_TORCH", "TESTED_PYTHON", "VERSION", "installed_torch", "require_supported"]

VERSION = "0.2.0"  # of torchjanus

Version = tuple[int, int]

OLDEST_PYTHON: Version = (3, 11)
TESTED_PYTHON: Version = (3, 13)  # the newest whose whole grammar the rewriter is tested on
OLDEST_TORCH: Version = (2, 11)


def installed_torch() -> str | None:
    """Return the version of the PyTorch that ``import torch`` would find, or None where there is none."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def require_supported(python: Version | None = None, torch: str | None = None) -> None:
    """Raise Unsupported unless this Python and this PyTorch are supported; both default to what is running.

    A Python newer than those tested only warns: the rewriter leaves what it does not know native. Without PyTorch
    nothing is raised: ``torchjanus.rewrite`` works without it, and ``import torch`` raises a clearer error.
    """
    running = python or sys.version_info[:2]
    if running < OLDEST_PYTHON:
        raise Unsupported(
            f"torchjanus needs Python {dotted(OLDEST_PYTHON)} or newer; this is Python {dotted(running)}: "
            f"it has no column positions for code objects, which the rewriter finds source by. "
            f"Make an environment with Python {dotted(OLDEST_PYTHON)} to {dotted(TESTED_PYTHON)}."
        )
    if running > TESTED_PYTHON:
        warnings.warn(
            f"torchjanus is tested on Python {dotted(OLDEST_PYTHON)} to {dotted(TESTED_PYTHON)}; this is Python "
            f"{dotted(running)}. Constructs that are new in it run imperatively.",
            RuntimeWarning,
            stacklevel=2,
        )
    found = torch or installed_torch()
    if found is None:
        return
    numbers = re.match(r"(\d+)\.(\d+)", found)
    if numbers is None:
        raise Unsupported(
            f"torchjanus cannot read the version of the installed PyTorch: {found!r}. "
            f"Install a release of PyTorch: pip install 'torch>={dotted(OLDEST_TORCH)}'."
        )
    if (int(numbers[1]), int(numbers[2])) < OLDEST_TORCH:
        raise Unsupported(
            f"torchjanus needs PyTorch {dotted(OLDEST_TORCH)} or newer; PyTorch {found} is installed. "
            f"Upgrade it: pip install --upgrade 'torch>={dotted(OLDEST_TORCH)}'."
        )


def dotted(version: Version) -> str:
    return f"{version[0]}.{version[1]}"
