"""Which block the next node of a run belongs to: the regions that are open in each function that runs.

Fed with the entries of an outline. A site says by its path which regions enclose it: what is open and not in the path
has ended, what is in the path and not open begins. Code that is resumed within another function (a generator) opens no
region: its nodes are in the block of the function that resumes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torchjanus.core.errors import Place
from torchjanus.rewrite import Site
from torchjanus.tracegraph.graph import Block, Const, Node

__all__ = ["Regions", "place_of_site"]

_LOOPS = ("for", "comprehension")


@dataclass(slots=True)
class _Open:
    """A region that has begun. ``region``: what sites' paths hold for it, None before the first site of a loop whose
    iterable is at ``site``; ``block``: where its nodes go; ``decided``: the site of a test's operand that came out."""

    node: Node
    region: Any = None
    site: Site | None = None
    block: Block | None = None
    decided: Site | None = None


@dataclass(slots=True)
class _Frame:
    """A function that runs. ``function``: the first region of its sites' paths, None before the first one."""

    block: Block
    function: Any = None
    open: list[_Open] = field(default_factory=list)


class Regions:
    """The open regions of a run."""

    def __init__(self, body: Block) -> None:
        self._frames = [_Frame(body)]

    @property
    def block(self) -> Block:
        """Where the next node goes."""
        frame = self._frames[-1]
        return next((one.block for one in reversed(frame.open) if one.block is not None), frame.block)

    def enter(self, call: Node) -> None:
        """The function of this call runs from here on."""
        self.block.nodes.append(call)
        call.blocks.append(Block())
        self._frames.append(_Frame(call.blocks[0]))

    def leave(self) -> Node:
        """Leave a function, which has returned or raised, and return its call."""
        self._frames.pop()
        return self.block.nodes[-1]

    def at(self, site: Site) -> None:
        """Note that a hook was called at this site."""
        frame = self._frames[-1]
        if not self._is_of(frame, site):
            return
        path, depth = site.path[1:], 0
        while depth < min(len(path), len(frame.open)):
            known, wanted = frame.open[depth], path[depth]
            if known.region is None and wanted.kind in _LOOPS:
                known.region = wanted
            if known.region is not wanted or (known.decided is not None and site.number <= known.decided.number):
                break  # what is decided again is the test of another iteration
            depth += 1
        if depth == len(path) < len(frame.open) and frame.open[depth].site is site:
            depth += 1  # the loop at this site asks for its next element
        del frame.open[depth:]
        for region in path[depth:]:
            self._begin(frame, region, site)

    def turn(self, site: Site) -> None:
        """An iteration of the loop at this site begins; of a ``while``: its test has come out."""
        frame = self._frames[-1]
        if not self._is_of(frame, site):
            return
        depth = len(site.path) - 1
        known = frame.open[depth] if depth < len(frame.open) else None
        if site.kind == "while":
            self.at(site)
            frame.open[-1].decided = site
        elif known is not None and known.site is site and _encloses(frame, site):
            del frame.open[depth + 1 :]
            known.block = _block_in(known.node, "body")
        else:
            self.at(site)
            node = self._region("loop", site.kind, place_of_site(site))
            frame.open.append(_Open(node, None, site, _block_in(node, "body")))

    def end_loop(self, place: Place, count: int) -> bool:
        """Whether the loop whose iterable is at this place is open and has had so many iterations: then it ends."""
        frame = self._frames[-1]
        for depth in reversed(range(len(frame.open))):
            known = frame.open[depth]
            if known.site is not None and place_of_site(known.site) == place and len(known.node.blocks) == count:
                known.node.fields = (*known.node.fields, ("exit", Const("exhausted")))
                del frame.open[depth:]
                return True
        return False

    def _is_of(self, frame: _Frame, site: Site) -> bool:
        """Whether the site belongs to the function that runs."""
        if frame.function is None and site.path:
            frame.function = site.path[0]
        return bool(site.path) and frame.function is site.path[0]

    def _region(self, kind: str, construct: str, place: Place) -> Node:
        node = Node(kind, (("construct", Const(construct)),), site=place)
        self.block.nodes.append(node)
        return node

    def _begin(self, frame: _Frame, region: Any, site: Site) -> None:
        line, column, _, _ = region.location
        place = Place(site.file, line, column, site.function)
        if region.kind in _LOOPS:
            node = self._region("loop", region.kind, place)
            frame.open.append(_Open(node, region, None, _block_in(node, "body")))
        elif region.kind == "while" and not region.arm:
            frame.open.append(_Open(self._region("loop", "while", place), region))
        elif region.kind == "while":
            node = frame.open[-1].node
            frame.open.append(_Open(node, region, None, _block_in(node, region.arm)))
        else:
            node = self._region("switch", region.kind, place)
            frame.open.append(_Open(node, region, None, _block_in(node, region.arm)))


def _encloses(frame: _Frame, site: Site) -> bool:
    """Whether what is open leads to the site."""
    return all(known.region is wanted for known, wanted in zip(frame.open, site.path[1:], strict=False))


def _block_in(node: Node, role: str) -> Block:
    node.blocks.append(Block(role))
    return node.blocks[-1]


def place_of_site(site: Site) -> Place:
    """Return where a site stands, as events say it."""
    return Place(site.file, site.line, site.column, site.function)
