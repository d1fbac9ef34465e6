"""What another process of this user is compiling is not compiled here, too: it is awaited, and loaded from the store.

Several ranks of a job make the same graphs at the same time. The one that asks first takes a lease in the store, which
ends when its products are there, with its process, or after a while. Knows nothing of process groups.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

from torchjanus.execute.compiled.child import Child
from torchjanus.execute.compiled.store import Store
from torchjanus.execute.processes.background import Pending

__all__ = ["Awaited", "Lease"]

_LOOK = 0.1  # seconds between two looks at the store
_LONGEST = 900.0  # seconds after which a lease ends


class Lease:
    """The right to compile what has this key. ``taken``: whether this process has it."""

    def __init__(self, store: Store, key: str) -> None:
        self.store, self.key = store, f"{key} is being compiled"
        self.taken = store.add(self.key, _this_process(), _LONGEST) or self._inherit()

    def _inherit(self) -> bool:
        """Take the lease of a process that has ended."""
        owner = self.store.read(self.key)
        if owner is not None and (owner == _this_process() or not _has_ended(owner)):
            return False
        self.store.remove(self.key)
        return self.store.add(self.key, _this_process(), _LONGEST)

    def end(self) -> None:
        """Give it back."""
        if self.taken:
            self.taken = False
            self.store.remove(self.key)


def _this_process() -> bytes:
    return f"{os.getpid()} {socket.gethostname()}".encode()


def _has_ended(owner: bytes) -> bool:
    number, _, host = owner.decode().partition(" ")
    if host != socket.gethostname():
        return False  # not known
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False


class Awaited:
    """An executor that another process is making; see ``background.Pending``. If that process does not finish it,
    ``start`` begins to make it here: it is called when there is something new, and returns None to wait on."""

    child: Child | None = None

    def __init__(self, start: Callable[[], Pending | None]) -> None:
        self._start = start
        self._own: Pending | None = None
        self._killed = threading.Event()

    def result(self, timeout: float | None = None) -> Any:
        """Return the executor. Raises TimeoutExpired after ``timeout`` seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        while self._own is None:
            if self._killed.is_set():
                raise RuntimeError("it is not wanted any more")
            self._own = self._start()
            if self._own is None:
                if until is not None and time.monotonic() >= until:
                    raise subprocess.TimeoutExpired("a compilation in another process", timeout or 0.0)
                time.sleep(_LOOK)
        return self._own.result(None if until is None else max(0.0, until - time.monotonic()))

    def kill(self) -> None:
        """Stop it; ``result`` raises then."""
        self._killed.set()
        if self._own is not None:
            self._own.kill()

    def cancel(self) -> None:
        """Stop it, and remove its files."""
        self._killed.set()
        if self._own is not None:
            self._own.cancel()
