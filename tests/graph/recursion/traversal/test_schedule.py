"""Forests laid out from what was noted of calls."""

import torch

from torchjanus.graph.recursion.traversal.schedule import TraversalNotes, lay_out
from torchjanus.graph.recursion.variants.plan import Batch, Buffer, Cell, Column, Recursion, Reduction, ReductionBatch

CPU = torch.device("cpu")


def nothing(shared, given):
    raise AssertionError("laying out computes nothing")


def buffers(count):
    return tuple(Buffer((2,), torch.float32, CPU, True) for _ in range(count))


def test_batches_lie_level_by_level_and_rows_where_their_batch_puts_them():
    leaf = Cell("leaf", nothing, (), (Column((), torch.int64),), (0,))
    inner = Cell("inner", nothing, (0, 0), (), (0,))
    recursion = Recursion((leaf, inner), buffers(1), (), (), (0,))
    # Two trees: ((a b) c) and d. Rows are numbered as they were noted.
    noted = TraversalNotes(
        [0, 0, 1, 0, 2, 0],
        [{0: [0, 1, 3, 5]}, {1: [2, 0, 1], 2: [4, 2, 3]}],
        [[{0: [7, 8, 9, 6]}], []],
        [],
        [],
        [[4], [5]],
        [],
    )
    forest = lay_out(recursion, [], noted, [])
    assert forest.batches == [Batch(0, 4, 0, (0,)), Batch(1, 1, 0, (4,)), Batch(1, 1, 1, (5,))]
    assert forest.sizes == [6]
    assert [rows.tolist() for rows in forest.taken[1]] == [[0, 4], [1, 2]]
    assert forest.taken[0] == ()
    assert forest.columns[0][0].tolist() == [7, 8, 9, 6]
    assert [rows.tolist() for rows in forest.results] == [[5, 3]]


def test_rows_that_the_step_supplies_come_first():
    inner = Cell("inner", nothing, (0,), (), (1, 0))
    recursion = Recursion((inner,), buffers(2), (), (0,), (1,))
    noted = TraversalNotes([-1, -1, 0, 0, 0, 0], [{0: [2, 1, 4, 0]}], [[]], [], [], [[2], [4]], [])
    forest = lay_out(recursion, [2], noted, [])
    assert forest.sizes == [4, 2]
    assert forest.batches == [Batch(0, 2, 0, (0, 2))]
    assert [rows.tolist() for rows in forest.taken[0]] == [[1, 0]]
    assert [rows.tolist() for rows in forest.results] == [[0, 1]]


def test_sums_of_a_level_are_formed_together_each_of_its_own_terms():
    leaf = Cell("leaf", nothing, (), (), (0,))
    total = Reduction("sum", 0, 0, 1, True)
    recursion = Recursion((leaf,), buffers(2), (), (), (1,), totals=(total,))
    noted = TraversalNotes(
        [0, 0, 0, 0, 1, 1],
        [{0: [0, 1, 2, 3]}],
        [[]],
        [{1: [4, 0, 2, 5, 3, 1]}],
        [{1: [1, 2, 0]}],
        [[4], [5]],
        [],
    )
    forest = lay_out(recursion, [], noted, [])
    assert forest.batches[1] == ReductionBatch(0, 2, 0, 0)
    (added,) = forest.added
    assert added is not None
    assert added.starts is not None
    assert added.starts.tolist() == [0, 3]
    assert added.terms.tolist() == [1, 2, 0]
    assert added.targets.tolist() == [0, 0, 1]
    assert (added.counts, added.sizes) == ((2,), (3,))


def test_cells_without_calls_have_no_batches():
    leaf, other = Cell("leaf", nothing, (), (), (0,)), Cell("other", nothing, (0,), (), (1,))
    recursion = Recursion((leaf, other), buffers(2), (), (), (0,))
    forest = lay_out(recursion, [], TraversalNotes([0], [{0: [0]}, {}], [[], []], [], [], [[0]], []), [])
    assert forest.batches == [Batch(0, 1, 0, (0,))]
    assert forest.sizes == [1, 0]


def test_rows_that_are_written_are_noted_by_their_place():
    leaf = Cell("leaf", nothing, (), (), (0,))
    recursion = Recursion((leaf,), buffers(1), (), (), (0,))
    target = object()
    noted = TraversalNotes([0, 0], [{0: [1, 0]}], [[]], [], [], [[0]], [(0, target, 1), (1, target, 5)])
    forest = lay_out(recursion, [], noted, [True, False])
    assert forest.writes == [(0, target, 0), (1, target, 5)]


def test_more_rows_than_ever_before_lie_one_after_the_other():
    leaf, inner = Cell("leaf", nothing, (), (), (0,)), Cell("inner", nothing, (0,), (), (0, 1))
    recursion = Recursion((leaf, inner), buffers(2), (), (), (0, 1))
    for count in (3, 5000, 4):
        leaves, inners = list(range(count)), [n for k in range(count) for n in (count + 2 * k, count - 1 - k)]
        results = [[count + 2 * k, count + 2 * k + 1] for k in range(count)]
        noted = TraversalNotes([], [{0: leaves}, {1: inners}], [[], []], [], [], results, [])
        noted.level = [0] * count + [1] * (2 * count)
        forest = lay_out(recursion, [], noted, [])
        assert forest.sizes == [2 * count, count]
        assert forest.batches == [Batch(0, count, 0, (0,)), Batch(1, count, 0, (count, 0))]
        assert [rows.tolist() for rows in forest.taken[1]] == [leaves[::-1]]
        assert [rows.tolist() for rows in forest.results] == [list(range(count, 2 * count)), leaves]
