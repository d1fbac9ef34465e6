"""Where things were found, what was written since, and which tensors have which number."""

from __future__ import annotations

import torch

from torchjanus.core.access_path import AccessPath
from torchjanus.core.errors import Place
from torchjanus.semantics.record.recording import Recording
from torchjanus.semantics.record.write_record import ABSENT
from torchjanus.trace.facts import HeapRead, IdentityTest, Specialization
from torchjanus.trace.values import Read, TracedFloat, TracedInt

X, Y = AccessPath.arg(0, "x"), AccessPath.arg(1, "y")


def found(recording: Recording) -> list[tuple[str, str]]:
    return [(str(e.access_path), e.kind) for e in recording.trace.events if isinstance(e, HeapRead)]


def test_kinds_of_reads() -> None:
    recording = Recording()
    values = [3, 2.5, True, "text", None, torch.ones(1), len, int, [1], torch]
    got = [recording.found(X.item(i), v) for i, v in enumerate(values)]
    assert [type(v) for v in got[:3]] == [TracedInt, TracedFloat, bool]
    assert got[0].expr == Read(X.item(0))
    assert [kind for _, kind in found(recording)] == [
        "number", "number", "constant", "constant", "constant", "tensor", "pinned", "pinned", "object", "pinned",
    ]  # fmt: skip


def test_a_place_is_read_once() -> None:
    recording = Recording()
    first = recording.found(X, 3)
    assert recording.found(X, 3) is first
    assert len(found(recording)) == 1 and not recording.trace.refusals


def test_a_place_that_code_which_is_not_watched_has_changed_is_noticed() -> None:
    recording = Recording()
    recording.found(X, 3)
    assert recording.found(X, 4) == 4
    assert "was changed by code that is not watched" in recording.trace.refusals[0].what


def test_two_paths_to_one_object() -> None:
    recording, shared = Recording(), [1]
    recording.found(X, shared)
    recording.found(Y, shared)
    assert recording.owner(shared) == X
    assert [(e.first, e.second, e.same) for e in recording.trace.events if isinstance(e, IdentityTest)] == [
        (X, Y, True)
    ]


def test_writes_are_seen_by_later_reads() -> None:
    recording, held = Recording(), {"k": 1, 1: "int", 1.5: 0}
    held["k"] = 5
    recording.store("item", held, "k", 5, X)
    assert recording.has_written(held, "k") and recording.written(held, "k") == 5
    assert recording.read_key(X, held, "k") == 5
    assert not recording.has_written(held, True) and not recording.has_written({}, "k")
    del held["k"]
    recording.store("delete-item", held, "k", ABSENT, X)
    assert recording.written(held, "k") is ABSENT
    assert found(recording) == []


def test_pins_give_bare_values_and_are_noted_once() -> None:
    recording = Recording()
    recording.place = Place("train.py", 3)
    count = recording.found(X, 3)
    assert type(recording.pin(count, "an index")) is int
    recording.pin(count, "an index")
    (pinned,) = (e for e in recording.trace.events if isinstance(e, Specialization))
    assert (pinned.value, pinned.why, pinned.place.line) == (3, "an index", 3)
    assert recording.pin("word", "not traced") == "word"


def test_tuples_reach_the_heap_bare_and_keep_their_identity() -> None:
    recording = Recording()
    count = recording.found(X, 3)
    pair = (count, (1, count))
    bare = recording.bare(pair)
    assert bare == (3, (1, 3)) and type(bare[0]) is int and type(bare[1][1]) is int
    assert recording.bare(pair) is bare
    plain = (1, 2)
    assert recording.bare(plain) is plain


def test_refusals_are_not_repeated() -> None:
    recording = Recording()
    for _ in range(2):
        recording.refuse("set-order", "what", "why", "way out")
    assert [str(r) for r in recording.trace.refusals] == ["<unknown>:0: what: why way out [set-order]"]


def test_only_tensors_from_before_the_call_are_kept() -> None:
    recording = Recording()
    before, made = torch.ones(1), torch.zeros(1)
    recording.input_tensor(before, X)
    recording.new_tensor(made)
    recording.finish()
    assert recording.trace.tensors[0] is before and recording.trace.tensors[1] is None
