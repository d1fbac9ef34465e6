"""Constructs that ask for truth: tests, ``and``, ``or``, ``not``, conditional expressions, ``if``, ``assert``.

Where only the truth of an expression counts (``if a and b``), CPython jumps on each operand and asks each for its truth
once; so the hooks sit on the operands. Where the value counts (``x = a and b``), the operands are carried in an object
whose own truth is the hook's answer, remembered, and the outcome is taken out at the end. No temporary variables: they
would show in ``locals()``.
"""

from __future__ import annotations

import ast
import functools
from builtins import len  # ours stays ours where a program replaces it

from torchjanus.rewrite.constructs.counting import counts
from torchjanus.rewrite.constructs.if_regions import region
from torchjanus.rewrite.syntax.quirks import NESTED_TRUTH_ASKED_ONCE, TRUTH_BLAMES_STATEMENT
from torchjanus.rewrite.syntax.sites import Location, location_of
from torchjanus.rewrite.syntax.walk import Construct, Walk, constant, place

__all__ = ["CONSTRUCTS", "OPERATORS", "Blame", "test"]

OPERATORS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",
}


class Blame:
    """Where an error in asking for truth is blamed within one test: see ``quirks``. CPython 3.11 starts with the
    statement and moves on to each comparison that it compiles; later versions blame the operand."""

    def __init__(self, location: Location) -> None:
        self.location = location

    def of(self, node: ast.expr) -> Location:
        if not TRUTH_BLAMES_STATEMENT:
            return location_of(node)
        if isinstance(node, ast.Compare):
            self.location = location_of(node)
        return self.location


def test(walk: Walk, node: ast.expr, kind: str, blame: Blame) -> ast.expr:
    """The expression where only its truth counts; the result is a bool, decided by ``branch`` hooks."""
    where = location_of(node)
    match node:
        case ast.Constant():
            return node
        case ast.Name(id="__debug__"):
            return node
        case ast.BoolOp():
            return place(ast.BoolOp(node.op, [test(walk, value, kind, blame) for value in node.values]), where)
        case ast.UnaryOp(op=ast.Not()):
            return place(ast.UnaryOp(node.op, test(walk, node.operand, kind, blame)), where)
        case ast.IfExp():
            first = test(walk, node.test, "ifexp", blame)
            return place(
                ast.IfExp(first, test(walk, node.body, kind, blame), test(walk, node.orelse, kind, blame)), where
            )
        case ast.Compare() if len(node.ops) > 1:
            blame.of(node)
            return chain(walk, node, "decide", kind)
        case _:
            return walk.ask("branch", node, walk.visit(node), kind=kind, location=blame.of(node))


def boolean(walk: Walk, node: ast.BoolOp) -> ast.expr:
    """``a and b`` or ``a or b`` for its value."""
    where = location_of(node)
    operands = [*(operand(walk, value, node.op) for value in node.values[:-1]), walk.visit(node.values[-1])]
    return walk.hook("value", where, place(ast.BoolOp(node.op, operands), where))


def operand(walk: Walk, node: ast.expr, op: ast.boolop) -> ast.expr:
    """An operand that is not the last one: its truth is asked for as often as CPython asks for it."""
    if isinstance(node, ast.BoolOp) and NESTED_TRUTH_ASKED_ONCE:
        return place(ast.BoolOp(node.op, [operand(walk, value, node.op) for value in node.values]), location_of(node))
    return walk.ask("operand", node, walk.visit(node), kind="and" if isinstance(op, ast.And) else "or")


def compare(walk: Walk, node: ast.Compare) -> ast.expr:
    if len(node.ops) > 1:
        return chain(walk, node, "value", "compare")
    symbol = constant(OPERATORS[type(node.ops[0])], location_of(node))
    left, right = walk.visit(node.left), walk.visit(node.comparators[0])
    return walk.ask("compare", node, symbol, left, right, kind=walk.kind(node, "compare"))


def chain(walk: Walk, node: ast.Compare, finish: str, kind: str) -> ast.expr:
    """``a < b < c``: the link made of ``a < b`` keeps ``b`` on the stack; ``c`` is evaluated only where the link
    holds."""
    where = location_of(node)
    symbols = [constant(OPERATORS[type(op)], where) for op in node.ops]
    link: ast.expr = walk.ask(
        "chain", node, symbols[0], walk.visit(node.left), walk.visit(node.comparators[0]), kind="compare"
    )
    for number, (symbol, comparator) in enumerate(zip(symbols[1:], node.comparators[1:], strict=True), 2):
        last = number == len(symbols)
        right = place(ast.IfExp(walk.hook("holds", where), walk.visit(comparator), constant(None, where)), where)
        method = place(ast.Attribute(link, finish if last else "then", ast.Load()), where[:2] + where[:2])
        arguments = [constant(walk.site("compare", node), where), symbol, right]
        if last and finish == "decide":
            arguments.append(constant(walk.site(kind, node), where))
        link = place(ast.Call(method, arguments, []), where)
    return link


def not_(walk: Walk, node: ast.UnaryOp) -> ast.expr:
    return walk.ask("not_", node, walk.visit(node.operand))


def conditional(walk: Walk, node: ast.IfExp) -> ast.expr:
    where = location_of(node)
    decided = test(walk, node.test, "ifexp", Blame(where))
    return place(ast.IfExp(decided, walk.visit(node.body), walk.visit(node.orelse)), where)


def if_(walk: Walk, node: ast.If) -> ast.stmt:
    return region(walk, node, functools.partial(decision, walk, node))


def decision(walk: Walk, node: ast.If) -> ast.stmt:
    """The statement itself; what follows an ``elif`` is of the same region."""
    where = location_of(node)
    decided = test(walk, node.test, "counted" if counts(walk, node) else "if", Blame(where))
    body = walk.visit_all(node.body)
    match node.orelse:
        case [ast.If() as following]:
            orelse: list[ast.stmt] = [decision(walk, following)]
        case _:
            orelse = walk.visit_all(node.orelse)
    return place(ast.If(decided, body, orelse), where)


def assert_(walk: Walk, node: ast.Assert) -> ast.stmt:
    blame = Blame(location_of(node))
    decided = test(walk, node.test, "assert", blame)
    # The AssertionError itself is raised where the test was last blamed.
    return place(ast.Assert(decided, None if node.msg is None else walk.visit(node.msg)), blame.location)


CONSTRUCTS: dict[type[ast.AST], Construct] = {
    ast.BoolOp: boolean,
    ast.Compare: compare,
    ast.IfExp: conditional,
    ast.If: if_,
    ast.Assert: assert_,
}
