"""Stores compiled artifacts on disk, so that a second run of a program need not compile them again.

The key of an artifact covers all that it depends on: the graph's text, its inputs' geometry, the compiler's settings,
PyTorch, Python and the processor. The folder belongs to the user and no other user can write to it, since its contents
are code that will be run. The files are diskcache's, which writes atomically, evicts the least recently used,
and supports several processes at once. This module does not know who compiles.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import platform
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import diskcache  # type: ignore[import-untyped]
import torch

from torchjanus.core.cache_folder import NotPrivate, folder_in_use, make_private, require_private
from torchjanus.core.lazy import deferred
from torchjanus.core.logs import logger
from torchjanus.core.settings import CACHE
from torchjanus.execute.compiled.extension import Extension
from torchjanus.execute.compiled.loading import load

__all__ = [
    "MOST_BYTES", "VARIABLE", "NotPrivate", "Product", "Store", "environment", "fingerprint", "folder_in_use",
    "put_back", "require_private", "store_in_use",
]  # fmt: skip

inductor = deferred("torch._inductor")

log = logger("store")

VARIABLE = CACHE.name  # names the folder; empty: artifacts are not kept
MOST_BYTES = 2 << 30
_LAYOUT = 3  # version of the stored format
_VERDICTS = ("passed", "leads", "trails")


@dataclass(frozen=True, slots=True)
class Product:
    """An artifact as bytes, and the conditions on sizes under which it is right (see graph.lowering.prepared_bytes).

    ``files``: the libraries that belong to it, which Inductor would else compile again, by their places in its folder;
    ``probes``: the libraries by which Inductor tests the processor's instructions; ``proven``: all instruction sets
    that the processor reports work, so that no further test is needed; ``extension``: which of the files is called, if
    that is all there is to do.
    """

    artifact: bytes
    conditions: tuple[Any, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    probes: Mapping[str, bytes] = field(default_factory=dict)
    proven: bool = False
    extension: Extension | None = None

    def load(self) -> Callable[..., Any]:
        """Return the artifact as a function. Raises NotPrivate where others may write to the folder that it is run
        from."""
        if self.extension is not None:
            try:
                return self.extension.load(self.files)
            except (KeyError, ImportError, OSError) as error:  # as on a disk from which nothing may be run
                log.debug("an extension module is loaded with Inductor: %s: %s", type(error).__name__, error)
        make_private(inductor_folder())
        put_back({**self.probes, **self.files}, inductor_folder())
        with tempfile.TemporaryDirectory(prefix="torchjanus-") as folder:
            path = Path(folder) / "artifact"
            path.write_bytes(self.artifact)
            # Each of six probes starts a process.
            with inductor.config.patch({"cpp.vec_isa_ok": True} if self.proven else {}):
                return load(path)


def inductor_folder() -> Path:
    """Return where Inductor, in this process, looks for compiled code."""
    return Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or inductor.runtime.cache_dir_utils.default_cache_dir())


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
        Path(file.name).replace(path)  # atomically: another process may be loading it


class Store:
    """Products by their keys, in a folder. No method raises because of what is on the disk: damaged entries count as
    missing."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        """Raises NotPrivate; and OSError or sqlite3.Error where the folder cannot be made or used."""
        make_private(folder)
        self.folder = folder
        self._cache = diskcache.Cache(
            str(folder),
            size_limit=most_bytes,
            eviction_policy="least-recently-used",
            cull_limit=3,  # entries that are evicted for each new one
            disk=_Bytes,
            disk_min_file_size=0,
        )

    def get(self, key: str) -> Product | None:
        """Return the stored product; None where there is none, or it is damaged."""
        found = self.read(key)
        return None if found is None else Product(*pickle.loads(found))

    def has(self, key: str) -> bool:
        """Whether there are bytes for this key; they may be damaged."""
        try:
            return key in self._cache
        except (OSError, sqlite3.Error) as error:
            log.warning("the cache in %s cannot be read: %s", self.folder, error)
            return False

    def put(self, key: str, product: Product) -> None:
        """Store a product; the least recently used are evicted."""
        self.write(key, pickle.dumps(tuple(getattr(product, one.name) for one in fields(Product))))

    def read(self, key: str) -> bytes | None:
        """Return the stored bytes; None where there are none, or they are damaged (then they are removed)."""
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
        """Store bytes; the least recently used are evicted."""
        try:
            self._cache.set(key, hashlib.sha256(payload).digest() + payload)
        except (OSError, sqlite3.Error) as error:
            log.warning("an artifact cannot be kept in %s: %s", self.folder, error)

    def add(self, key: str, payload: bytes, seconds: float) -> bool:
        """Store bytes for so many seconds, unless there are some. Return whether they were stored."""
        try:
            return bool(self._cache.add(key, hashlib.sha256(payload).digest() + payload, expire=seconds))
        except (OSError, sqlite3.Error) as error:
            log.warning("the cache in %s cannot be used: %s", self.folder, error)
            return True

    def remove(self, key: str) -> None:
        """Remove what is stored."""
        self._without(key)

    def _without(self, key: str) -> None:
        try:
            self._cache.delete(key)
        except (OSError, sqlite3.Error) as error:
            log.warning("an artifact cannot be removed from %s: %s", self.folder, error)

    @property
    def bytes(self) -> int:
        """The size of the store in bytes."""
        return int(self._cache.volume())


@dataclass(frozen=True, slots=True)
class Verdict:
    """What calls have shown of products, stored beside them under a key of its own."""

    store: Store
    key: str

    def kept(self) -> str:
        """Return ``passed`` (the trial, in this run or an earlier one), ``leads`` (passed, and clearly faster than
        replay), ``trails`` (clearly slower, right or not) or "" where nothing is known."""
        found = self.store.read(self.key) or b""
        return next((word for word in _VERDICTS if word.encode() == found), "")

    def keep(self, word: str) -> None:
        """Store one of these words."""
        self.store.write(self.key, word.encode())


class _Bytes(diskcache.Disk):  # type: ignore[misc]
    """Stores bytes only. Other values diskcache would unpickle before anything has been checked."""

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:
        if mode not in (diskcache.core.MODE_RAW, diskcache.core.MODE_BINARY):
            raise ValueError(f"a value of kind {mode} is none of ours")
        found = super().fetch(mode, filename, value, read)
        if not isinstance(found, bytes):
            raise ValueError(f"a {type(found).__name__} is none of ours")
        return found


_OPEN: dict[tuple[int, Path], Store | None] = {}


def store_in_use() -> Store | None:
    """Return the store of this process; None where there is none, or it cannot be used (which is logged, once)."""
    folder = folder_in_use()
    if folder is None:
        return None
    known = (os.getpid(), folder)  # a fork opens its own
    if known not in _OPEN:
        _OPEN[known] = _opened(folder)
    return _OPEN[known]


def _opened(folder: Path) -> Store | None:
    try:
        return Store(folder / f"artifacts-{_LAYOUT}")
    except (NotPrivate, OSError, sqlite3.Error) as error:
        log.warning("compiled artifacts are not kept: %s. %s names another folder.", error, VARIABLE)
        return None


@cache
def _surroundings() -> str:
    """Return all that artifacts depend on besides the program."""
    settings = sorted(
        f"{name}={value}"
        for name, value in os.environ.items()
        if name.startswith(("TORCHINDUCTOR_", "TORCH_COMPILE_", "CXX"))
        and name not in ("TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS")
    )
    if torch.cuda.is_initialized():
        settings += [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    versions = [torch.__version__, str(torch.version.git_version), _sizes_of_inductor(), sys.version]
    return "\n".join([*versions, platform.machine(), _processor(), *settings])


def _sizes_of_inductor() -> str:
    """Return a hash of which source files Inductor has, and of their sizes: those of one version may have been edited.
    Inductor's own hash of their contents takes more than a second, and is compared when an artifact is loaded."""
    folder = Path(torch.__file__).parent / "_inductor"
    files = sorted((str(path.relative_to(folder)), path.stat().st_size) for path in folder.rglob("*.py"))
    return hashlib.sha256(repr(files).encode()).hexdigest()


def environment() -> dict[str, str]:
    """Return what keys depend on besides programs and settings, in words."""
    processor = hashlib.sha256(_processor().encode()).hexdigest()[:16]
    return {"PyTorch": torch.__version__, "Python": sys.version, "processor": f"{platform.machine()} {processor}"}


def _processor() -> str:
    """Return a description of the processor, since artifacts contain its instructions."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.processor()} {torch.backends.cpu.get_cpu_capability()}"
    wanted = ("flags", "Features", "model name", "CPU part")
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(wanted)))


def fingerprint(parts: Iterable[object]) -> str:
    """Return a key of the texts of these parts and of the environment."""
    digest = hashlib.sha256(_surroundings().encode())
    for part in parts:
        text = str(part).encode()
        digest.update(len(text).to_bytes(8, "little") + text)
    return digest.hexdigest()
