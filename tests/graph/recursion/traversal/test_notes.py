"""What a call notes between two calls of its own: rows are numbered at once, and levels distinguished from each
other."""

from collections import defaultdict

from torchjanus.graph.recursion.traversal.notes import CallNotes, Unit, UnitRow


def unit(name, takes=(), gives=1):
    rows = "".join(f"{{{place}}}, " for place in range(len(takes)))
    return Unit(name, takes, gives, (f"noted[{{level}}].append(({{row}}, ({rows})))",))


def run(levels, *stretches, **rows):
    """What is noted, and the levels of all rows."""
    stretch = CallNotes()
    text = "\n".join(line for units in stretches for line in stretch.noted(units))
    level = list(levels)
    scope = {"level": level, "rise": level.append, "climb": level.extend, "noted": defaultdict(list), **rows}
    exec(text, scope)
    return dict(scope["noted"]), level, text


def test_rows_that_wait_for_nothing_are_on_the_first_level():
    noted, level, text = run([4, 5], [unit("a", gives=2), unit("b")])
    assert noted == {0: [(2, ()), (4, ())]}
    assert level == [4, 5, 0, 0, 0]
    assert text.count("level[") == 0


def test_a_row_is_one_level_above_the_highest_that_it_waits_for():
    for levels in ([3, 1, 2], [1, 3, 2], [1, 2, 3], [0, 0, 0]):
        noted, level, _ = run(levels, [unit("a", ["x", "y", "z"]), unit("b", ["x", "y"])], x=0, y=1, z=2)
        assert level[3:] == [max(levels) + 1, max(levels[:2]) + 1]
        assert noted[level[3]][0] == (3, (0, 1, 2))


def test_levels_of_own_rows_are_not_looked_up():
    units = [
        unit("word", gives=2),
        unit("term", ["x", UnitRow("word", 1)]),
        unit("total", ["x"]),
        unit("gates", [UnitRow("word"), UnitRow("total")], gives=2),
        unit("state", [UnitRow("gates"), UnitRow("term")]),
        unit("out", [UnitRow("state"), UnitRow("gates", 1)]),
    ]
    noted, level, text = run([2], units, x=0)
    assert level == [2, 0, 0, 3, 3, 4, 4, 5, 6]
    assert text.count("level[x]") == 1
    assert noted == {
        0: [(1, ())],
        3: [(3, (0, 2)), (4, (0,))],
        4: [(5, (1, 4))],
        5: [(7, (5, 3))],
        6: [(8, (7, 6))],
    }


def test_rows_of_an_earlier_stretch_are_known_by_their_place_there():
    stretch = CallNotes()
    lines = [
        *stretch.noted([unit("a", gives=2)]),
        "level.append(7)",
        *stretch.noted([unit("b", [UnitRow("a", 1), "x"])]),
    ]
    level = []
    scope = {"level": level, "rise": level.append, "climb": level.extend, "noted": defaultdict(list), "x": 2}
    exec("\n".join(lines), scope)
    assert level == [0, 0, 7, 8]
    assert scope["noted"][8] == [(3, (1, 2))]
    assert stretch.row(UnitRow("a", 1)) == "g_a + 1"
    assert stretch.row("x") == "x"


def test_what_waits_for_rows_of_the_first_level_alone_is_on_the_second():
    _, level, text = run([], [unit("a"), unit("b", [UnitRow("a")]), unit("c", [UnitRow("b"), UnitRow("a")])])
    assert level == [0, 1, 2]
    assert "level[" not in text
