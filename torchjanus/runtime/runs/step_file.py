"""The file of a saved step: what was learnt of it, and the graphs and compiled code that the store has of it.

The file contains native code, so it is read only where it is known to be what was saved: its digest is given, or only
its owner could have written to it, as the store demands of its folder. Nothing in it is unpickled here. Its entries
have the store's keys, which cover versions, settings and the processor: what does not fit is never looked up.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchjanus.core.errors import Unsupported
from torchjanus.execute.compiled.store import NotPrivate, require_private

__all__ = ["SavedStep", "read_step", "write_step"]

_FORMAT = 2
_MANIFEST = "manifest.json"
_ENTRIES = "entries/"


@dataclass(frozen=True, slots=True)
class SavedStep:
    """``varying``: the names of numbers and sizes that vary; ``graphs``: the keys of its lowered graphs, each with
    the sizes it was made for; ``roots``: the folders of the program and of libraries; ``entries``:
    what the store has, by key; ``environment``: the versions and the processor that it was made with."""

    name: str
    varying: tuple[str, ...]
    graphs: Mapping[str, Any]
    roots: tuple[str, ...]
    environment: Mapping[str, str]
    entries: Mapping[str, bytes]


def write_step(saved: SavedStep, path: Path) -> str:
    """Write the file, for its owner only. Returns its SHA-256, in hexadecimal digits."""
    manifest = {
        "format": _FORMAT,
        "name": saved.name,
        "varying": [*saved.varying],
        "graphs": dict(saved.graphs),
        "roots": [*saved.roots],
        "environment": dict(saved.environment),
    }
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_MANIFEST, json.dumps(manifest, indent=1))
        for key, payload in sorted(saved.entries.items()):
            archive.writestr(_ENTRIES + key, payload)
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_bytes(made.getvalue())
    return hashlib.sha256(made.getvalue()).hexdigest()


def read_step(path: Path, digest: str | None) -> SavedStep:
    """Return what a file holds. Raises Unsupported where it is not known to be what was saved, or is no such file."""
    contents = path.read_bytes()
    if digest is not None:
        if not hmac.compare_digest(hashlib.sha256(contents).hexdigest(), digest.lower()):
            raise Unsupported(f"{path} is not the file that was saved: its SHA-256 is not {digest}.")
    else:
        try:
            require_private(path)
        except NotPrivate as error:
            raise Unsupported(
                f"{path} holds native code, and {error}. Pass the digest that save() returned: load(..., digest=...)."
            ) from None
    try:
        with zipfile.ZipFile(io.BytesIO(contents)) as archive:
            manifest: dict[str, Any] = json.loads(archive.read(_MANIFEST))
            if manifest["format"] != _FORMAT:
                raise Unsupported(f"{path} has format {manifest['format']}: this version reads format {_FORMAT}.")
            names = [name for name in archive.namelist() if name.startswith(_ENTRIES)]
            entries = {name.removeprefix(_ENTRIES): archive.read(name) for name in names}
            return SavedStep(
                manifest["name"],
                tuple(manifest["varying"]),
                manifest["graphs"],
                tuple(manifest["roots"]),
                manifest["environment"],
                entries,
            )
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise Unsupported(f"{path} is no saved step: {type(error).__name__}: {error}") from None
