"""Views of dictionaries from before the call, which are read through the dictionary behind them.

``d.keys()``, ``d.values()``, ``d.items()`` and ``types.MappingProxyType(d)`` show the present contents of ``d``. Knows
nothing of how a dictionary is watched.
"""

from __future__ import annotations

import collections
import gc
import types
from typing import Any

from torchjanus.core.kinds import is_one_of, isinstance

__all__ = ["ITEMS", "KEYS", "VALUES", "dictionary_behind", "is_view", "shows_other_class"]

KEYS: type = type({}.keys())
VALUES: type = type({}.values())
ITEMS: type = type({}.items())
_VIEWS = (KEYS, VALUES, ITEMS, types.MappingProxyType)
_OF_MODULES_AND_CLASSES = ({"__module__", "__doc__"}, {"__name__", "__loader__"})


def is_view(value: Any) -> bool:
    """Whether it is a view of a dictionary."""
    return isinstance(value, _VIEWS)


def shows_other_class(proxy: Any) -> bool:
    """Whether a mapping proxy calls methods of a class of the program or of a library."""
    return not all(is_one_of(type(held), (dict, collections.OrderedDict)) for held in gc.get_referents(proxy))


def dictionary_behind(view: Any) -> Any:
    """Return the dictionary behind a view; None for another mapping, or the namespace of a class or module."""
    held = gc.get_referents(view)
    if len(held) != 1 or not isinstance(held[0], dict):
        return None
    behind = held[0]
    if type(view) is types.MappingProxyType and shows_other_class(view):
        return None
    return None if any(names <= dict.keys(behind) for names in _OF_MODULES_AND_CLASSES) else behind
