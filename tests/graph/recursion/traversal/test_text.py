"""The text that finds the way which a call takes: what ways ask in common is asked once."""

from torchjanus.graph.recursion.traversal.text import SCOPE, MatchedVariant, branches


def compiled(variants):
    lines = ["def follow(p):", *branches(variants, indent=1), "    return None"]
    scope = dict(SCOPE)
    exec("\n".join(lines), scope)
    return scope["follow"], "\n".join(lines)


def ways_of_lengths(*lengths):
    asked = ("v1 = p.children", "v2 = len(v1)")
    return [MatchedVariant((*asked, f"if not (v2 == {n}): break"), (f"return ({n}, v2)",)) for n in lengths]


class Node:
    def __init__(self, *children):
        self.children = children


def test_each_call_finds_its_way():
    follow, _ = compiled(ways_of_lengths(0, 1, 3))
    assert [follow(Node(*range(n))) for n in range(4)] == [(0, 0), (1, 1), None, (3, 3)]


def test_what_ways_ask_in_common_is_asked_once():
    _, text = compiled(ways_of_lengths(0, 1, 3))
    assert text.count("p.children") == 1


def test_what_breaks_in_common_is_no_way():
    follow, _ = compiled([*ways_of_lengths(0, 1), MatchedVariant(("if type(p) is not int: break",), ("return 'int'",))])
    assert follow("text") is None
    assert follow(3) == "int"


def test_many_different_ways_do_not_nest_too_deep():
    # Each way asks what the one before asks, and more.
    variants = []
    for n in range(60):
        asked = tuple(f"if p <= {k}: break" for k in range(n))
        variants.append(MatchedVariant((*asked, f"if p != {n}: break"), (f"return {n}",)))
    follow, _ = compiled(variants)
    assert [follow(n) for n in (0, 1, 30, 59)] == [0, 1, 30, 59]
    assert follow(60) is None
