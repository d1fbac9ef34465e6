"""What a staged program changes and finds: objects from before the call stay as they are, and of those that the program
has made the journal knows what they held."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterable
from types import CellType
from typing import Any

import torch

from torchjanus.core.errors import JanusError, Refused, refused
from torchjanus.core.kinds import isinstance
from torchjanus.rewrite import Site
from torchjanus.rewrite.hooks import hide_frames
from torchjanus.rewrite.hooks.lifted import LiftedSemantics
from torchjanus.semantics.staged.loops import Loops
from torchjanus.semantics.staged.unknown.journal import reachable, snapshot
from torchjanus.semantics.staged.unknown.values import StagedValue

__all__ = ["Changing"]


class Changing(LiftedSemantics):
    """The part of the semantics that knows the program's objects. One for each staging."""

    def __init__(self, staging: Loops, roots: Iterable[Any], applied: Callable[..., Any] | None = None) -> None:
        self.staging = staging
        staging.was_there = self.was_there
        self.roots = list(roots)  # what was there before: it may not be changed
        self._before: set[int] | None = None
        self.met: dict[int, tuple[Any, ...]] = {}  # what objects of global variables held when they were first read
        self._globals: dict[int, Any] = {}  # values of global variables that have been read, by id
        self.applied = applied  # asked first with each callee: what makes graph functions of staged ones
        self.refused: Refused | None = None  # the first change that was refused: its error may have been lost

    def at(self, site: Site) -> Loops:
        """Note that the program is at this site, and return the staging."""
        self.staging.site = site
        return self.staging

    def was_there(self, obj: Any) -> bool:
        """Whether an object was there before the call."""
        if self._before is None:
            self._before = reachable(self.roots)
        return id(obj) in self._before

    def changes(self, at: Site, obj: Any) -> None:
        """The program is about to change an object."""
        staging = self.at(at)
        if self.was_there(obj) or isinstance(obj, type | types.ModuleType):
            error = refused(
                "staged-mutation", f"a {type(obj).__name__} from before the call is changed",
                "A staged function is run once, its graph many times: the change would be made once.",
                "Return what changes.", staging.place,
            )  # fmt: skip
            self.refused = self.refused or error  # the error of a destroyed generator is lost
            raise error
        staging.changes(obj)

    def advances(self, at: Site, iterator: Any) -> None:
        """The program is about to take elements of this, which it may have done before."""
        if hasattr(type(iterator), "__next__"):
            staging = self.at(at)
            if self.was_there(iterator):
                self.changes(at, iterator)
            staging.advances(iterator)

    def reads_memory(self, at: Site, *values: Any) -> None:
        """The program looks into these: memory of NumPy may be that of tensors, or change between the calls; what a
        weak reference refers to may be gone."""
        for one in values:
            if _is_memory(one) and self.was_there(one) and not (
                type(one) is weakref.ref and self.was_there(one())  # something else keeps it alive
            ):  # fmt: skip
                raise refused(
                    "staged-value", f"what a {type(one).__name__} from before the call holds",
                    "A staged function is run once: what it holds in later calls would not be seen.",
                    "Give a tensor (torch.from_numpy), or the object.", self.at(at).place,
                )  # fmt: skip

    def set_attr(self, at: Site, obj: Any, name: str, value: Any) -> None:
        if isinstance(obj, torch.Tensor | StagedValue):
            raise refused("staged-effect", f"the attribute {name} of a staged value is set", "", "", self.at(at).place)
        self.changes(at, obj)
        setattr(obj, name, value)

    def del_attr(self, at: Site, obj: Any, name: str) -> None:
        self.changes(at, obj)
        delattr(obj, name)

    def set_item(self, at: Site, obj: Any, key: Any, value: Any) -> None:
        staging = self.at(at)
        if isinstance(obj, torch.Tensor):
            staging.operation(torch.Tensor.__setitem__, (obj, key, value), {})
            return
        if any(isinstance(one, StagedValue) for one in (obj, key)):
            raise refused("staged-mutation", "an element of a staged object, or at a staged index, is set", "", "",
                          staging.place)  # fmt: skip
        if isinstance(obj, memoryview) or getattr(obj, "base", None) is not None:
            raise refused(
                "staged-mutation", f"a {type(obj).__name__} of other memory is written", "", "", staging.place
            )
        self.changes(at, obj)
        obj[key] = value

    def del_item(self, at: Site, obj: Any, key: Any) -> None:
        self.changes(at, obj)
        del obj[key]

    def set_global(self, at: Site, owner: dict[str, Any], name: str, value: Any) -> Any:
        raise refused("staged-mutation", f"the global variable {name} is set", "The graph does not set it.",
                      "Return the value.", self.at(at).place)  # fmt: skip

    def del_global(self, at: Site, owner: dict[str, Any], name: str) -> None:
        self.set_global(at, owner, name, None)

    def set_cell(self, at: Site, cell: CellType, name: str, value: Any) -> Any:
        self.changes(at, cell)
        return value

    def stores(self, at: Site, cell: CellType, name: str, value: Any) -> Any:
        staging = self.at(at)
        staging.variables[id(cell)] = name
        staging.changes(cell)
        return super().stores(at, cell, name, value)

    def shares(self, cells: tuple[CellType, ...]) -> None:
        for cell in cells:
            if not self.was_there(cell):  # those have hooks of their own
                self.staging.changes(cell)

    def get_global(self, at: Site, owner: dict[str, Any], name: str, value: Any) -> Any:
        if not isinstance(value, types.ModuleType | torch.Tensor) and not _is_plain_number(value):
            self._meets(value)
        return value

    def _meets(self, value: Any) -> None:
        """An object from before the call is read of a global variable."""
        if id(value) not in self._globals:
            self._globals[id(value)] = value
            self.roots.append(value)
            self._before = None
            self.met |= {n: one for n, one in snapshot([value]).items() if n not in self.met}

    def caught(self, at: Site, exception: BaseException) -> None:
        hide_frames(exception)
        self.at(at)
        if isinstance(exception, JanusError):  # no error of the program
            raise exception
        if isinstance(exception, NameError) and "free variable" in str(exception):  # its text and class are another's
            raise refused("staged-try", "a variable that is not set is caught by a handler", "", "Set it before.",
                          self.staging.place)  # fmt: skip


def _is_memory(value: Any) -> bool:
    """Whether what an object holds can change without the program's own code, or is looked at by such."""
    cls = type(value)
    if cls.__module__ == "numpy":
        return hasattr(cls, "__setitem__") or cls.__name__ in ("ufunc", "vectorize")
    if cls.__module__.startswith("numpy.random"):
        return True
    return cls in (bytearray, memoryview) or cls.__module__ in ("weakref", "array", "mmap")


def _is_plain_number(value: Any) -> bool:
    return type(value) in (int, float, bool, str, bytes, complex, type(None))
