"""The hooks that rewritten code calls, the semantics that answer them, and the current semantics."""

from __future__ import annotations

from torchjanus.rewrite.hooks.bound import (
    BARE_FRAME_READERS,
    FRAME_READERS,
    Bound,
    class_keyword,
    made_class,
    rewritten,
)
from torchjanus.rewrite.hooks.frames import hide_frames, hide_outlined, program_frames
from torchjanus.rewrite.hooks.semantics import (
    BINARY,
    COMPARE,
    INPLACE,
    TEXT,
    UNARY,
    PendingCall,
    Semantics,
    called_back,
    current,
    make_calls_by,
    native_unpack,
    using,
)

__all__ = [
    "BARE_FRAME_READERS", "BINARY", "COMPARE", "FRAME_READERS", "INPLACE", "TEXT", "UNARY", "Bound", "PendingCall",
    "Semantics", "called_back", "class_keyword", "current", "hide_frames", "hide_outlined", "made_class",
    "make_calls_by", "native_unpack", "program_frames", "rewritten", "using",
]  # fmt: skip
