"""The lock under which functions are watched and graphs are made.

Only one thread at a time does either, for all functions: neither the syntax trees of CPython 3.11 nor tracing in torch
is thread-safe. Other threads run their functions as they are meanwhile.
"""

from __future__ import annotations

import threading

__all__ = ["MAKING"]

MAKING = threading.RLock()
