"""Extern calls are made once: by a graph, by the commit of the next, or by the program."""

from __future__ import annotations

import random
from typing import Any

import pytest

from torchjanus.host.journal import ExternRaised, Journal
from torchjanus.trace.effects import PURE, WORLD, Effects, Undo


def undone(undo: Undo) -> Effects:
    return Effects(writes=frozenset({"log"}), undo=undo)


def draw(log: list[int]) -> int:
    log.append(len(log))
    return log[-1]


def fail() -> None:
    raise ValueError("no")


def test_a_call_is_not_repeated() -> None:
    journal, log = Journal(), list[int]()
    assert journal.make(0, WORLD, False, draw, log) == 0
    journal.begin()
    assert journal.make(0, WORLD, False, draw, log) == 0
    assert journal.commit(0, WORLD, draw, log) == 0
    assert journal.commit(1, WORLD, draw, log) == 1
    assert log == [0, 1]


def test_an_error_is_raised_again_at_commit() -> None:
    journal = Journal()
    with pytest.raises(ExternRaised):
        journal.make(0, WORLD, False, fail)
    with pytest.raises(ValueError, match="no"):
        journal.commit(0, WORLD, fail)


def test_what_the_call_never_came_to_is_taken_back() -> None:
    journal, log = Journal(), list[int]()

    def restore(length: Any) -> None:
        del log[length:]

    undo = Undo(lambda: len(log), restore)
    for number in range(4):
        journal.make(number, undone(undo) if number != 2 else WORLD, False, draw, log)
    journal.begin()
    assert journal.commit(0, undone(undo), draw, log) == 0
    assert journal.make(1, undone(undo), False, draw, log) == 1
    (left,) = journal.close(served=True)
    assert left.func is draw
    assert log == [0, 1, 2]
    assert not journal.records


def other(log: list[int]) -> int:
    log.append(-len(log))
    return log[-1]


def test_what_a_graph_called_in_the_place_of_something_else_is_taken_back_first() -> None:
    log = list[int]()

    def restore(length: Any) -> None:
        del log[length:]

    undo = Undo(lambda: len(log), restore)
    for asked in ("make", "commit"):
        journal = Journal()
        log.clear()
        for number in range(3):
            journal.make(number, undone(undo), False, draw, log)
        journal.begin()
        assert journal.commit(0, undone(undo), draw, log) == 0
        if asked == "commit":
            assert journal.commit(1, PURE, other, log) == -1
        else:
            assert journal.make(1, undone(undo), False, other, log) == -1
        assert log == [0, -1]
        journal.close(served=True)
        assert log == [0, -1]


def test_a_draw_that_comes_before_what_was_drawn_takes_that_back() -> None:
    """The graph thought that the program prints, and then draws; it draws twice."""
    log = list[int]()

    def restore(length: Any) -> None:
        del log[length:]

    undo = Undo(lambda: len(log), restore)
    for mine, world, left in ((undo, False, []), (None, True, []), (None, False, [0]), (Undo(list, print), False, [0])):
        journal = Journal()
        log.clear()
        journal.make(1, undone(undo), False, draw, log)
        journal.begin()
        journal.leave(0, mine, world)
        assert log == left


def test_what_cannot_be_taken_back_is_reported() -> None:
    journal, log = Journal(), list[int]()
    journal.make(0, WORLD, False, draw, log)
    journal.begin()
    assert journal.commit(0, WORLD, other, log) == -1
    (left,) = journal.close()
    assert left.func is draw
    assert journal.close() == []


def test_several_calls_that_a_graph_makes_as_one_are_known_one_by_one() -> None:
    journal, log = Journal(), list[int]()
    assert journal.several(2, 3, WORLD, False, draw, log) == [0, 1, 2]
    journal.begin()
    assert journal.several(2, 3, WORLD, False, draw, log) == [0, 1, 2]
    assert [journal.commit(number, WORLD, draw, log) for number in (2, 3, 4)] == [0, 1, 2]
    assert log == [0, 1, 2]


@pytest.mark.parametrize("taken", range(4))
def test_of_several_those_that_the_program_did_not_come_to_are_taken_back(taken: int) -> None:
    generator = random.Random(3)
    draw_one, undo = generator.random, Undo(generator.getstate, generator.setstate)
    expected = [draw_one() for _ in range(taken + 1)]
    generator.seed(3)
    journal = Journal()
    journal.several(0, 3, undone(undo), False, draw_one)
    found = [journal.records[number].again() for number in range(taken)]
    journal.close()
    assert [*found, draw_one()] == expected


def test_those_that_the_graph_came_to_stay() -> None:
    journal, log = Journal(), list[int]()

    def restore(length: Any) -> None:
        del log[length:]

    undo = Undo(lambda: len(log), restore)
    journal.several(1, 2, undone(undo), False, draw, log)
    assert journal.close(served=True) == []
    assert log == [0, 1]
    journal.several(1, 2, undone(undo), False, draw, log)
    assert journal.close() == []
    assert log == [0, 1]
    journal.several(1, 4, undone(undo), False, draw, log)
    journal.begin()
    journal.several(1, 3, undone(undo), False, draw, log)  # the next graph needs fewer
    assert journal.close(served=True) == []
    assert log == [0, 1, 2, 3, 4]


def test_where_all_calls_can_be_taken_back_the_program_may_simply_be_run() -> None:
    source = random.Random(3)
    drawn = undone(Undo(source.getstate, source.setstate))
    journal = Journal()
    journal.make(0, drawn, False, source.random)
    journal.make(1, PURE, False, abs, -3)
    assert journal.harmless
    assert journal.close() == []
    assert source.random() == random.Random(3).random()


@pytest.mark.parametrize(("effects", "draws"), [(WORLD, False), (PURE, True)])
def test_what_somebody_can_tell_is_not_made_again(effects: Effects, draws: bool) -> None:
    journal = Journal()
    journal.make(0, PURE, False, abs, -3)
    journal.make(1, effects, draws, abs, -3)
    assert not journal.harmless


def test_once_the_program_has_taken_a_result_it_goes_on() -> None:
    journal = Journal()
    journal.make(0, PURE, False, abs, -3)
    journal.commit(0, PURE, abs, -3)
    assert not journal.harmless


def test_the_call_of_a_number_that_is_given_something_else_is_another_call() -> None:
    journal, log = Journal(), list[Any]()

    def note(value: Any) -> Any:
        log.append(value)
        return value

    assert journal.make(0, PURE, False, note, 1) == 1
    assert journal.make(0, PURE, False, note, True) is True
    assert journal.make(0, PURE, False, note, [1, range(2)]) == [1, range(2)]
    assert journal.make(0, PURE, False, note, [1, range(2)]) is log[-1]
    assert journal.commit(0, PURE, note, [1, range(3)]) == [1, range(3)]
    assert log == [1, True, [1, range(2)], [1, range(3)]]


def test_objects_made_anew_are_the_same_call_where_somebody_can_tell_of_it() -> None:
    class Thing:
        pass

    log: list[Thing] = []
    for effects, times in ((WORLD, 1), (PURE, 2)):
        journal, note = Journal(), log.append
        log.clear()
        journal.make(0, effects, False, note, Thing())
        journal.make(0, effects, False, note, Thing())
        assert len(log) == times


def test_the_generator_that_a_call_was_given_is_put_back() -> None:
    journal, effects = Journal(), undone(Undo(random.Random.getstate, random.Random.setstate, owned=True))
    first, second = random.Random(1), random.Random(2)
    before = first.getstate(), second.getstate()
    journal.make(0, effects, False, random.Random.randrange, first, 100)
    assert first.getstate() != before[0]
    journal.begin()
    journal.make(0, effects, False, random.Random.randrange, second, 200)
    assert (first.getstate(), second.getstate() != before[1]) == (before[0], True)
    journal.close()
    assert second.getstate() == before[1]


def drawing(seed: int) -> tuple[random.Random, Effects]:
    source = random.Random(seed)
    return source, undone(Undo(source.getstate, source.setstate))


def test_what_this_attempt_has_drawn_stays_where_a_call_before_it_is_made_anew() -> None:
    """What depends on nothing is drawn before the graph, and arrays are handed out in the middle of it: another one, of
    which nobody can tell."""
    source, drawn = drawing(3)
    journal = Journal()
    for _ in range(2):
        journal.begin()
        found = [journal.make(1, drawn, False, source.random), journal.make(3, drawn, False, source.random)]
        journal.make(0, PURE, False, len, [object()])
        journal.make(2, PURE, False, len, [object()])
    assert journal.is_met
    journal.close(served=True)
    alone = random.Random(3)
    assert [*found, source.random()] == [alone.random() for _ in range(3)]


def test_draws_keep_their_order_where_an_earlier_one_is_not_met() -> None:
    """On the first way the generator is asked twice, on the second only the later time: that is the first number."""
    source, drawn = drawing(3)
    journal = Journal()
    journal.begin()
    journal.make(0, drawn, False, source.random)
    journal.make(1, drawn, False, source.random)
    journal.begin()
    found = journal.make(1, drawn, False, source.random)
    journal.close(served=True)
    alone = random.Random(3)
    assert [found, source.random()] == [alone.random() for _ in range(2)]


def test_a_draw_at_commit_takes_back_what_was_drawn_on_another_way() -> None:
    source, drawn = drawing(3)
    journal = Journal()
    journal.begin()
    journal.make(1, drawn, False, source.random)
    journal.begin()
    found = [journal.commit(number, drawn, source.random) for number in range(2)]
    journal.close(served=True)
    alone = random.Random(3)
    assert [*found, source.random()] == [alone.random() for _ in range(3)]


class Bytes:
    """What lies in a bytearray, which comes first among what is reached."""

    def __init__(self, reached: Any) -> None:
        self.owner = reached[1]
        self.content = bytes(self.owner)

    def put_back(self) -> None:
        self.owner[:] = self.content


def count_up(memory: bytearray, by: int = 1) -> int:
    memory[0] += by
    return memory[0]


def test_memory_is_as_it_was_until_an_attempt_comes_to_the_call() -> None:
    journal, memory = Journal(), bytearray(1)
    assert journal.overwrite(Bytes, 0, WORLD, False, count_up, memory) == 1
    assert journal.overwrite(Bytes, 1, WORLD, False, count_up, memory, by=5) == 6
    journal.begin()
    assert memory[0] == 0
    assert journal.overwrite(Bytes, 0, WORLD, False, count_up, memory) == 1
    assert memory[0] == 1
    journal.begin()  # another attempt, and the first came to one of them only
    assert memory[0] == 0
    assert journal.commit(0, WORLD, count_up, memory) == 1
    assert journal.commit(1, WORLD, count_up, memory, by=5) == 6
    assert memory[0] == 6
    assert journal.close() == []
    assert memory[0] == 6


def test_memory_that_the_program_does_not_come_to_change_stays_as_it_was() -> None:
    journal, memory = Journal(), bytearray(1)
    journal.overwrite(Bytes, 0, WORLD, False, count_up, memory)
    journal.begin()
    assert [record.func for record in journal.close()] == [count_up]
    assert memory[0] == 0


def test_memory_is_put_back_where_the_call_raised() -> None:
    def part_done(memory: bytearray) -> None:
        memory[0] = 7
        raise ValueError("no")

    journal, memory = Journal(), bytearray(1)
    with pytest.raises(ExternRaised):
        journal.overwrite(Bytes, 0, WORLD, False, part_done, memory)
    journal.begin()
    assert memory[0] == 0
    with pytest.raises(ValueError, match="no"):
        journal.commit(0, WORLD, part_done, memory)
    assert memory[0] == 7
