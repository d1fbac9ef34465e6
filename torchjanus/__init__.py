"""A speculative just-in-time compiler for imperative PyTorch programs."""

from torchjanus.versions import require_supported

# First of all: what follows may not even import on an old Python or PyTorch.
require_supported()

__version__ = "0.1.0"
