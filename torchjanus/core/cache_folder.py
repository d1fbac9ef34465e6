"""The folder in which things are kept for later runs, and whether only its owner can write to it.

This module does not know what is kept.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

try:
    import grp
    import pwd
except ImportError:  # not on Windows
    pass

import platformdirs

from torchjanus.core.settings import CACHE

__all__ = ["NotPrivate", "folder_in_use", "make_private", "require_private"]


class NotPrivate(Exception):
    """Raised where others could have written to the folder."""


def make_private(folder: Path) -> None:
    """Make the folder, if there is none. Raises NotPrivate where others may write to it, or to a folder above it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not hasattr(os, "geteuid"):
        return  # on Windows a user's own folders are private
    require_private(folder)


def require_private(given: Path) -> None:
    """Raise NotPrivate where others may write to a file or folder, or to a folder above it."""
    if not hasattr(os, "geteuid"):
        return
    real = given.resolve()
    mine = {os.geteuid(), 0}
    for place in (real, *real.parents):
        found = place.stat()
        shared = found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not _is_own_group(found.st_gid))
        # In a sticky folder (like /tmp) others may add names, but not remove ours.
        if found.st_uid not in mine or (shared and not (place != real and found.st_mode & stat.S_ISVTX)):
            raise NotPrivate(f"others may write to {place}")
    if real.stat().st_uid != os.geteuid():
        raise NotPrivate(f"{real} is not yours")


def _is_own_group(number: int) -> bool:
    """Whether it is root's group, or the user's private group."""
    try:
        return number == 0 or grp.getgrgid(number).gr_name == pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False


def folder_in_use() -> Path | None:
    """Return where artifacts are kept: TORCHJANUS_CACHE, else the platform's cache folder. None: they are not kept."""
    given = CACHE.given
    if given is not None:
        return Path(given).expanduser() if given else None
    return Path(platformdirs.user_cache_dir("torchjanus", appauthor=False))
