"""Finds the training steps of programs that mark none, and speculates on them.

It reads source only: which loops and functions make a step, and what such a loop's body reads and leaves. The step
itself is a speculated function like any other. It must not know how functions are speculated on.
"""

from __future__ import annotations

from torchjanus.cli.discovery.candidates import Candidate
from torchjanus.cli.discovery.imports import Module, Selection, compiled, watch_imports, with_steps
from torchjanus.cli.discovery.steps import Step

__all__ = ["Candidate", "Module", "Selection", "Step", "compiled", "watch_imports", "with_steps"]
