"""Readers of a buffer that Inductor changes in place come after the change."""

from __future__ import annotations

import pytest
import torch
from torch._inductor.dependencies import StarDep

import torchjanus
from benchmarks.speed.papers import PROGRAMS
from torchjanus.execute.compiled import after_mutation


class Output:
    def __init__(self, name: str, changes: list[str]) -> None:
        self.name, self.changes = name, changes

    def get_name(self) -> str:
        return self.name

    def get_mutations(self) -> list[str]:
        return self.changes


class Node:
    """As much of a node of Inductor's scheduler as the pass asks for."""

    def __init__(self, outputs: list[Output], reads: list[str], extern: bool = False) -> None:
        self.outputs, self.extern, self.added = outputs, extern, []
        self.read_writes = type("ReadWrites", (), {"reads": {StarDep(name) for name in reads}})()

    def is_extern(self) -> bool:
        return self.extern

    def get_outputs(self) -> list[Output]:
        return self.outputs

    def add_fake_dep(self, dependency: StarDep) -> None:
        self.added.append(dependency)


def test_only_readers_of_what_native_code_has_changed_are_held():
    draw = Node([Output("after", ["drawn"])], ["drawn"], extern=True)
    other = Node([Output("plain", [])], [], extern=True)
    reader, stranger = Node([Output("a", [])], ["after", "plain"]), Node([Output("b", [])], ["plain"])
    settings = after_mutation.options({})["config_patches"]
    nodes = [draw, other, reader, stranger]
    assert settings["_pre_fusion_custom_pass"](nodes) == nodes
    assert [node.added for node in nodes] == [[], [], [StarDep("after")], []]


@pytest.mark.slow
def test_dropout_between_convolutions_is_drawn_before_it_is_used():
    """Without the pass, the gradients of the discriminator are NaN: its masks were read before they were drawn."""
    program = PROGRAMS["dcgan"].make(0, False)
    step = torchjanus.speculate(program.step, executor="inductor")
    torch.manual_seed(0)
    for _ in range(24):  # its trial may take several calls more: what disagrees is asked about
        step(*next(program.batches))
    assert "agreed with replay on" in str(torchjanus.explain(step, detail=True))
