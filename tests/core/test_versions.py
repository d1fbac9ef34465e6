"""The version guard: faked versions in, clear errors with a remedy out."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
import torch

import torchjanus
from torchjanus.core.errors import Unsupported
from torchjanus.core.versions import installed_torch, require_supported


@pytest.mark.parametrize("python", [(3, 11), (3, 12), (3, 13)])
@pytest.mark.parametrize("found", ["2.11.0", "2.13.0+cpu", "2.12.0a0+git1234", "3.0.0"])
def test_supported_versions_pass_silently(python: tuple[int, int], found: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        require_supported(python, found)


@pytest.mark.parametrize("python", [(2, 7), (3, 9), (3, 10)])
def test_an_old_python_is_an_error(python: tuple[int, int]) -> None:
    with pytest.raises(Unsupported) as caught:
        require_supported(python, "2.13.0")
    text = str(caught.value)
    assert f"Python {python[0]}.{python[1]}" in text
    assert "needs Python 3.11 or newer" in text
    assert "Make an environment with Python 3.11 to 3.13" in text


def test_a_new_python_is_a_warning_at_the_caller() -> None:
    with pytest.warns(RuntimeWarning, match=r"tested on Python 3\.11 to 3\.13; this is Python 3\.14") as caught:
        require_supported((3, 14), "2.13.0")
    assert caught[0].filename == __file__


@pytest.mark.parametrize("found", ["1.13.1", "2.0.0", "2.9.1", "2.10.0+cu128"])
def test_an_old_pytorch_is_an_error(found: str) -> None:
    with pytest.raises(Unsupported) as caught:
        require_supported((3, 11), found)
    text = str(caught.value)
    assert f"PyTorch {found} is installed" in text
    assert "pip install --upgrade 'torch>=2.11'" in text


def test_a_version_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(Unsupported, match="cannot read the version of the installed PyTorch: 'dev'"):
        require_supported((3, 11), "dev")


def test_the_installed_version_is_the_imported_one() -> None:
    """Builds for GPUs from PyPI name their CUDA in one of the two only (``2.14.1+cu130``)."""
    installed = installed_torch()
    assert installed is not None
    assert installed.partition("+")[0] == torch.__version__.partition("+")[0]


def test_the_guard_runs_at_import() -> None:
    """With the metadata of an old PyTorch, importing the package fails with the clear error."""
    script = (
        "import importlib.metadata as metadata, sys\n"
        "metadata.version = lambda name: '2.3.1'\n"
        "try:\n"
        "    import torchjanus\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first.startswith("Unsupported torchjanus needs PyTorch 2.11 or newer; PyTorch 2.3.1 is installed.")
    assert second == "False"


def test_the_package_has_a_version() -> None:
    assert torchjanus.__version__.count(".") == 2
