"""A speculative just-in-time compiler for imperative PyTorch programs."""

from torchjanus.core.versions import VERSION as __version__
from torchjanus.core.versions import require_supported

# First of all: what follows may not even import on an old Python or PyTorch.
require_supported()

from torchjanus.cli.install import install
from torchjanus.cli.notebook import load_ipython_extension
from torchjanus.core import logs, settings
from torchjanus.core.errors import JanusError, NewGraph, NotStaged, Refusal, SourceUnavailable, Unsupported
from torchjanus.rewrite import Site
from torchjanus.rewrite.hooks import Semantics
from torchjanus.runtime import Speculated, Statistics, load, speculate, stance, vary
from torchjanus.runtime.report.explanation import Explanation, explain
from torchjanus.runtime.staging import Rep, StagedGraph, stage, staged
from torchjanus.semantics.protocols.imperative import Imperative
from torchjanus.semantics.protocols.protocols import Protocols
from torchjanus.semantics.protocols.virtualize import virtualize

__all__ = [
    "Explanation",
    "Imperative",
    "JanusError",
    "NewGraph",
    "NotStaged",
    "Protocols",
    "Refusal",
    "Rep",
    "Semantics",
    "Site",
    "SourceUnavailable",
    "Speculated",
    "StagedGraph",
    "Statistics",
    "Unsupported",
    "__version__",
    "explain",
    "install",
    "load",
    "load_ipython_extension",
    "speculate",
    "stage",
    "staged",
    "stance",
    "vary",
    "virtualize",
]

logs.configure(settings.LOGS.given or "")
