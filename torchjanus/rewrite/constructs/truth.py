"""Constructs that test truth: tests, ``and``, ``or``, ``not``, conditional expressions, ``if``, ``assert``.

Where only the truth of an expression counts (``if a and b``), CPython jumps on each operand and tests each once; so the
hooks are on the operands. Where the value counts (``x = a and b``), each operand is wrapped in an object whose truth is
the hook's cached answer, and the outcome is unwrapped at the end. There are no temporary variables, which ``locals()``
would show.
"""

from __future__ import annotations

import ast
import functools
from builtins import len  # torchjanus' own, even where a program replaces it

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
    """Where errors of truth tests are reported within one test: see ``quirks``. CPython 3.11 starts with the statement
    and moves on to each comparison that it compiles; later versions report the operand."""

    def __init__(self, location: Location) -> None:
        self.location = location

    def of(self, node: ast.expr) -> Location:
        if not TRUTH_BLAMES_STATEMENT:
            return location_of(node)
        if isinstance(node, ast.Compare):
            self.location = location_of(node)
        return self.location


def test(walk: Walk, node: ast.expr, kind: str, blame: Blame) -> ast.expr:
    """Return the expression where only its truth counts; the result is a bool, decided by ``branch`` hooks."""
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
    """Rewrite ``a and b`` or ``a or b`` where its value counts."""
    where = location_of(node)
    operands = [*(operand(walk, value, node.op) for value in node.values[:-1]), walk.visit(node.values[-1])]
    return walk.hook("value", where, place(ast.BoolOp(node.op, operands), where))


def operand(walk: Walk, node: ast.expr, op: ast.boolop) -> ast.expr:
    """Return an operand that is not the last one: its truth is tested as often as CPython tests it."""
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
    """Rewrite ``a < b < c``: the link made of ``a < b`` keeps ``b`` on the stack; ``c`` is evaluated only if the link
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
    with walk.region(node, "conditional", "then"):
        body = walk.visit(node.body)
    with walk.region(node, "conditional", "else"):
        orelse = walk.visit(node.orelse)
    return place(ast.IfExp(decided, body, orelse), where)


def if_(walk: Walk, node: ast.If) -> ast.stmt:
    return region(walk, node, functools.partial(decision, walk, node))


def decision(walk: Walk, node: ast.If) -> ast.stmt:
    """Rewrite the statement itself; an ``elif`` belongs to the same region."""
    where = location_of(node)
    decided = test(walk, node.test, "counted" if counts(walk, node) else "if", Blame(where))
    with walk.region(node, "if", "then"):
        body = walk.visit_all(node.body)
    with walk.region(node, "if", "else"):
        match node.orelse:
            case [ast.If() as following]:
                orelse: list[ast.stmt] = [decision(walk, following)]
            case _:
                orelse = walk.visit_all(node.orelse)
    return place(ast.If(decided, body, orelse), where)


def assert_(walk: Walk, node: ast.Assert) -> ast.stmt:
    blame = Blame(location_of(node))
    decided = test(walk, node.test, "assert", blame)
    # CPython raises the AssertionError at the location of the last test.
    return place(ast.Assert(decided, None if node.msg is None else walk.visit(node.msg)), blame.location)


CONSTRUCTS: dict[type[ast.AST], Construct] = {
    ast.BoolOp: boolean,
    ast.Compare: compare,
    ast.IfExp: conditional,
    ast.If: if_,
    ast.Assert: assert_,
}
