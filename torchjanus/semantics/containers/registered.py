"""Hooks that were registered before the call: found by their places in the order in which they are called.

The keys in a dictionary of hooks are running numbers: whoever registers a hook anew gets another one. Nothing is asked
of them, so a graph serves as long as the hooks and their order are the same.
"""

from __future__ import annotations

import collections
from typing import Any

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.kinds import isinstance
from torchjanus.semantics.record.recording import Recording

__all__ = ["are_hooks", "found_hooks"]


def in_order(hooks: dict[int, Any]) -> tuple[Any, ...]:
    """The hooks in a dictionary of them, in the order in which they are called."""
    return tuple(hooks.values())


def are_hooks(container: Any, access_path: AccessPath) -> bool:
    """Whether this is such a dictionary, by its kind and the name under which it was found."""
    named = access_path.step is Step.ITEM and isinstance(access_path.key, str) and access_path.key.endswith("_hooks")
    return named and type(container) is collections.OrderedDict and all(type(key) is int for key in container)


def found_hooks(recording: Recording, hooks: dict[int, Any], access_path: AccessPath) -> list[Any]:
    """The hooks in a dictionary found at ``access_path``, each as found itself."""
    where = access_path.then(Step.OF, in_order)
    recording.found(where.then(Step.LEN), len(hooks))
    return [recording.found(where.item(place), hook) for place, hook in enumerate(in_order(hooks))]
