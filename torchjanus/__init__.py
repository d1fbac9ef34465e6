"""A speculative just-in-time compiler for imperative PyTorch programs."""

from torchjanus.core.versions import VERSION as __version__
from torchjanus.core.versions import require_supported

# First of all: what follows may not even import on an old Python or PyTorch.
require_supported()

from typing import TYPE_CHECKING

from torchjanus.core import logs, settings
from torchjanus.core.errors import JanusError, NewGraph, NotStaged, Refusal, SourceUnavailable, Unsupported
from torchjanus.core.lazy import names_of
from torchjanus.rewrite import Site

if TYPE_CHECKING:
    from torchjanus.cli.install import install
    from torchjanus.cli.notebook import load_ipython_extension
    from torchjanus.rewrite.hooks import Semantics
    from torchjanus.runtime import Speculated, Statistics, load, speculate, stance, vary
    from torchjanus.runtime.report.explanation import Explanation, explain
    from torchjanus.runtime.staging import Rep, StagedGraph, stage, staged
    from torchjanus.semantics.protocols.imperative import Imperative
    from torchjanus.semantics.protocols.protocols import Protocols
    from torchjanus.semantics.protocols.virtualize import virtualize

__all__ = [
    "Explanation", "Imperative", "JanusError", "NewGraph", "NotStaged", "Protocols", "Refusal", "Rep", "Semantics",
    "Site", "SourceUnavailable", "Speculated", "StagedGraph", "Statistics", "Unsupported", "__version__", "explain",
    "install", "load", "load_ipython_extension", "speculate", "stage", "staged", "stance", "vary", "virtualize",
]  # fmt: skip

# A script in which nothing is speculated on needs none of these.
__getattr__ = names_of(
    __name__,
    {
        "torchjanus.cli.install": "install",
        "torchjanus.cli.notebook": "load_ipython_extension",
        "torchjanus.rewrite.hooks": "Semantics",
        "torchjanus.runtime": "Speculated Statistics load speculate stance vary",
        "torchjanus.runtime.report.explanation": "Explanation explain",
        "torchjanus.runtime.staging": "Rep StagedGraph stage staged",
        "torchjanus.semantics.protocols.imperative": "Imperative",
        "torchjanus.semantics.protocols.protocols": "Protocols",
        "torchjanus.semantics.protocols.virtualize": "virtualize",
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


logs.configure(settings.LOGS.given or "")
