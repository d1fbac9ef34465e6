"""Compiled artifacts on disk, so that a second run of a program need not compile them again.

An artifact is found by all that went into it: the graph's text, what its inputs are like, the compiler's settings,
PyTorch, Python and the processor. The folder is the user's own and nobody else can write to it: what is found there is
code that is going to be run. The files are diskcache's, which writes atomically, bounds their size by dropping those
used longest ago, and can be used by several processes at once. Knows nothing of who compiles.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import platform
import sqlite3
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

try:
    import grp
    import pwd
except ImportError:  # not on Windows
    pass

import diskcache  # type: ignore[import-untyped]
import platformdirs
import torch
from torch._inductor import codecache, config
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from torchjanus.execute.compiled.loading import load

__all__ = [
    "MOST_BYTES",
    "VARIABLE",
    "Product",
    "Store",
    "fingerprint",
    "folder_in_use",
    "look_around",
    "put_back",
    "store_in_use",
]

log = logging.getLogger("torchjanus")

VARIABLE = "TORCHJANUS_CACHE"  # names the folder; empty: artifacts are not kept
MOST_BYTES = 2 << 30
_LAYOUT = 2  # of what is written
_SAID = ("passed", "leads", "trails")


@dataclass(frozen=True, slots=True)
class Product:
    """An artifact as bytes, and the conditions on sizes under which it is right (see graph.shipping).

    ``files``: the libraries that belong to it, which Inductor would else compile again, by their places in its folder;
    ``probes``: those by which it finds out what the processor can do; ``proven``: it can do all that it says it can, so
    that nobody need ask again.
    """

    artifact: bytes
    conditions: tuple[Any, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    probes: Mapping[str, bytes] = field(default_factory=dict)
    proven: bool = False

    def load(self) -> Callable[..., Any]:
        """The function that it is."""
        put_back({**self.probes, **self.files}, inductor_folder())
        with tempfile.TemporaryDirectory(prefix="torchjanus-") as folder:
            path = Path(folder) / "artifact"
            path.write_bytes(self.artifact)
            # Each of six probes is a process to be started.
            with config.patch({"cpp.vec_isa_ok": True} if self.proven else {}):
                return load(path)


def inductor_folder() -> Path:
    """Where Inductor, in this process, looks for what has been compiled."""
    return Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or default_cache_dir())


def put_back(files: Mapping[str, bytes], folder: Path) -> None:
    """Write libraries where they are missing."""
    for name, contents in files.items():
        path = folder / name
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(contents)
        Path(file.name).chmod(0o700)
        Path(file.name).replace(path)  # at once: somebody may be about to load it


class NotPrivate(Exception):
    """Somebody else could have written to the folder."""


class Store:
    """Products by their keys, in a folder. Nothing here raises because of what is on the disk: it is as if empty."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        """Raises NotPrivate; and OSError or sqlite3.Error where the folder cannot be made or used."""
        make_private(folder)
        self.folder = folder
        self._cache = diskcache.Cache(
            str(folder),
            size_limit=most_bytes,
            eviction_policy="least-recently-used",
            cull_limit=3,  # that go when one comes
            disk=_Bytes,
            disk_min_file_size=0,
        )

    def get(self, key: str) -> Product | None:
        """The product that has been kept; None where that is nothing, or damaged."""
        found = self.read(key)
        return None if found is None else Product(*pickle.loads(found))

    def put(self, key: str, product: Product) -> None:
        """Keep a product; those used longest ago make room for it."""
        parts = (product.artifact, product.conditions, product.files, product.probes, product.proven)
        self.write(key, pickle.dumps(parts))

    def read(self, key: str) -> bytes | None:
        """What has been kept; None where that is nothing, or damaged (then it is removed)."""
        try:
            found = self._cache.get(key)
        except (OSError, sqlite3.Error, ValueError) as error:
            log.warning("the cache in %s cannot be read: %s", self.folder, error)
            return None
        if found is None:
            return None
        digest, payload = found[:32], found[32:]
        if hashlib.sha256(payload).digest() == digest:
            return payload  # type: ignore[no-any-return]
        log.warning("an artifact in %s is damaged: it is compiled again", self.folder)
        self._without(key)
        return None

    def write(self, key: str, payload: bytes) -> None:
        """Keep it; what was used longest ago makes room for it."""
        try:
            self._cache.set(key, hashlib.sha256(payload).digest() + payload)
        except (OSError, sqlite3.Error) as error:
            log.warning("an artifact cannot be kept in %s: %s", self.folder, error)

    def _without(self, key: str) -> None:
        try:
            self._cache.delete(key)
        except (OSError, sqlite3.Error) as error:
            log.warning("an artifact cannot be removed from %s: %s", self.folder, error)

    @property
    def bytes(self) -> int:
        """How much room it takes."""
        return int(self._cache.volume())


@dataclass(frozen=True, slots=True)
class Verdict:
    """What calls have shown of products, as is kept beside them under a key of its own."""

    store: Store
    key: str

    def said(self) -> str:
        """``passed``: their trial, in this run or in an earlier one. ``leads``: that, and clearly faster than replay.
        ``trails``: clearly slower, whether right or not. Empty where nothing is known."""
        found = self.store.read(self.key) or b""
        return next((word for word in _SAID if word.encode() == found), "")

    def keep(self, word: str) -> None:
        """One of those words is true of them."""
        self.store.write(self.key, word.encode())


class _Bytes(diskcache.Disk):  # type: ignore[misc]
    """Keeps bytes only. What else diskcache finds it would unpickle, before anything has been checked."""

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:
        if mode not in (diskcache.core.MODE_RAW, diskcache.core.MODE_BINARY):
            raise ValueError(f"a value of kind {mode} is none of ours")
        found = super().fetch(mode, filename, value, read)
        if not isinstance(found, bytes):
            raise ValueError(f"a {type(found).__name__} is none of ours")
        return found


def make_private(folder: Path) -> None:
    """Make the folder, if there is none. Raises NotPrivate where others may write to it, or to what leads there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not hasattr(os, "geteuid"):
        return  # on Windows a user's own folders are private
    real = folder.resolve()
    mine = {os.geteuid(), 0}
    for place in (real, *real.parents):
        found = place.stat()
        shared = found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not _is_own_group(found.st_gid))
        # In a sticky folder (like /tmp) others may add names, but not take away ours.
        if found.st_uid not in mine or (shared and not (place != real and found.st_mode & stat.S_ISVTX)):
            raise NotPrivate(f"others may write to {place}")
    if real.stat().st_uid != os.geteuid():
        raise NotPrivate(f"{real} is not yours")


def _is_own_group(number: int) -> bool:
    """Whether it is root's group, or that which a user has for himself on many systems."""
    try:
        return number == 0 or grp.getgrgid(number).gr_name == pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False


def folder_in_use() -> Path | None:
    """Where artifacts are kept: TORCHJANUS_CACHE, else the platform's folder for caches. None: they are not."""
    given = os.environ.get(VARIABLE)
    if given is not None:
        return Path(given).expanduser() if given else None
    return Path(platformdirs.user_cache_dir("torchjanus", appauthor=False))


_OPEN: dict[tuple[int, Path], Store | None] = {}


def store_in_use() -> Store | None:
    """The store of this process; None where there is none, or it cannot be used (which is logged, once)."""
    folder = folder_in_use()
    if folder is None:
        return None
    known = (os.getpid(), folder)  # a fork opens its own
    if known not in _OPEN:
        _OPEN[known] = _opened(folder)
    return _OPEN[known]


def _opened(folder: Path) -> Store | None:
    try:
        # An artifact is unpacked into Inductor's folder, and run from there.
        make_private(inductor_folder())
        return Store(folder / f"artifacts-{_LAYOUT}")
    except (NotPrivate, OSError, sqlite3.Error) as error:
        log.warning("compiled artifacts are not kept: %s. %s names another folder.", error, VARIABLE)
        return None


def look_around() -> None:
    """Find out, beside what goes on, what keys are made of: torch's own source is read for it, which takes 0.4 s."""
    threading.Thread(target=_surroundings, name="torchjanus surroundings", daemon=True).start()


@cache
def _surroundings() -> str:
    """All that artifacts depend on and programs do not say."""
    settings = sorted(
        f"{name}={value}"
        for name, value in os.environ.items()
        if name.startswith(("TORCHINDUCTOR_", "TORCH_COMPILE_", "CXX"))
        and name not in ("TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS")
    )
    if torch.cuda.is_initialized():
        settings += [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    parts = [torch.__version__, codecache.torch_key().hex(), sys.version, platform.machine(), _processor(), *settings]
    return "\n".join(parts)


def _processor() -> str:
    """Artifacts are for one processor's instructions."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.processor()} {torch.backends.cpu.get_cpu_capability()}"
    wanted = ("flags", "Features", "model name", "CPU part")
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(wanted)))


def fingerprint(parts: Iterable[object]) -> str:
    """A key for what is described by the texts of these, here and now."""
    digest = hashlib.sha256(_surroundings().encode())
    for part in parts:
        text = str(part).encode()
        digest.update(len(text).to_bytes(8, "little") + text)
    return digest.hexdigest()
