"""Watch variables: reads and writes of globals and cells, with their access paths."""

from __future__ import annotations

import builtins
import types
from typing import Any

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.kinds import getattr
from torchjanus.rewrite import Site
from torchjanus.semantics.containers.keyed import MappingShadow
from torchjanus.semantics.known.trusted import is_trusted_module
from torchjanus.semantics.record.write_record import ABSENT
from torchjanus.semantics.watch.objects.state import Part

__all__ = ["Names"]


class Names(Part):
    """Globals and cells, and the absence of names."""

    def load_global(self, at: Site, owner: dict[str, Any], name: str, value: Any) -> Any:
        self.at(at)
        recording = self.recording
        if recording.called_back.any:
            recording.called_back.look_at_variable(owner, name)
        if recording.has_written(owner, name):
            written = recording.written(owner, name)
            if written is not ABSENT:
                return written
            return recording.found(
                AccessPath.const(builtins).then(Step.DICT).item(name), value
            )  # the deleted global had hidden the builtin
        trusted = is_trusted_module(owner.get("__name__"))
        if name not in owner:  # a builtin
            if trusted:
                return value
            recording.absent(AccessPath.const(owner, "globals"), name)
            return recording.found(AccessPath.const(builtins).then(Step.DICT).item(name), value)
        return recording.found(AccessPath.const(owner, "globals").item(name), value, trusted=trusted)

    def caught(self, at: Site, exception: BaseException) -> None:
        """Record, for a NameError that a handler catches, the absence of the variable."""
        name, raised = getattr(exception, "name", None), exception.__traceback__
        if type(exception) is not NameError or not name or raised is None:
            return
        self.at(at)
        while raised.tb_next is not None:
            raised = raised.tb_next
        for owner in (raised.tb_frame.f_globals, vars(builtins)):
            if name not in owner:
                self.recording.absent(AccessPath.const(owner, "globals"), name)

    def store_global(self, at: Site, owner: dict[str, Any], name: str, value: Any) -> Any:
        self.at(at)
        self._globals(owner).record_store(name, value)
        return self.recording.bare(value)

    def drop_global(self, at: Site, owner: dict[str, Any], name: str) -> None:
        self.at(at)
        variables = self._globals(owner)
        dict.__setitem__(owner, name, None)  # restore the key, which rewritten code has deleted already
        variables.record_removal(name)
        dict.__delitem__(owner, name)

    def _globals(self, owner: dict[str, Any]) -> MappingShadow:
        return self.natives.shadows.mapping(owner, AccessPath.const(owner, "globals"))

    def load_cell(self, at: Site, cell: types.CellType, name: str, value: Any) -> Any:
        self.at(at)
        if self.recording.called_back.any:
            self.recording.called_back.look_at_cell(cell, name)
        if self.recording.has_written(cell, name):
            return self.recording.written(cell, name)
        return self.recording.found(self._content_of(cell, name), value)

    def store_cell(self, at: Site, cell: types.CellType, name: str, value: Any) -> Any:
        self.at(at)
        owner = self.recording.owner(cell)
        if owner is None:
            self.recording.store("cell", cell, name, value, AccessPath.cell(cell, name))
        else:  # the closure was read from the heap: other calls may read another one
            self.recording.store("field", cell, name, value, owner, field="cell_contents")
        return self.recording.bare(value)

    def drop_cell(self, at: Site, cell: types.CellType, name: str) -> None:
        self.at(at)
        access_path = self._content_of(cell, name)
        if self.recording.owner(cell) is not None or not (
            self.recording.has_written(cell, name) or self.recording.has_found(access_path)
        ):
            self.recording.refuse(
                "variable-deleted",
                f"deletes the variable '{name}' of an enclosing function unseen",
                "whether it is there is known only where it is read or written before.",
                "Set it to None.",
            )
        self.recording.store("delete-cell", cell, name, ABSENT, access_path)

    def _content_of(self, cell: types.CellType, name: str) -> AccessPath:
        owner = self.recording.owner(cell)
        return AccessPath.cell(cell, name) if owner is None else owner.then(Step.FIELD, "cell_contents")
