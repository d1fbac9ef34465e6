"""Read hooks that were registered before the call by their position in the calling order.

The keys of a dictionary of hooks are serial numbers that change with each registration. Access paths by position need
no guard on them: a graph is valid as long as the hooks and their order are the same.
"""

from __future__ import annotations

import collections
from typing import Any

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.kinds import isinstance
from torchjanus.semantics.record.recording import Recording

__all__ = ["are_hooks", "found_hooks"]


def in_order(hooks: dict[int, Any]) -> tuple[Any, ...]:
    """Return the hooks of a dictionary in calling order."""
    return tuple(hooks.values())


def are_hooks(container: Any, access_path: AccessPath) -> bool:
    """Whether a container is a dictionary of hooks, by its class, its keys and the name under which it was read."""
    named = access_path.step is Step.ITEM and isinstance(access_path.key, str) and access_path.key.endswith("_hooks")
    return named and type(container) is collections.OrderedDict and all(type(key) is int for key in container)


def found_hooks(recording: Recording, hooks: dict[int, Any], access_path: AccessPath) -> list[Any]:
    """Record and return the hooks of the dictionary at ``access_path``."""
    where = access_path.then(Step.OF, in_order)
    recording.found(where.then(Step.LEN), len(hooks))
    return [recording.found(where.item(place), hook) for place, hook in enumerate(in_order(hooks))]
