"""Every syntax node of Python 3.11 to 3.13: which hook it asks, or why it is left native; and the table of it in
markdown.

The sections are those of the JANUS paper's appendix A, which lists CPython 3.5's instructions by how JANUS treats them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["BEGIN", "END", "ROWS", "UNUSED", "Row", "table", "with_table"]

BEGIN, END = "<!-- constructs -->", "<!-- /constructs -->"


@dataclass(frozen=True, slots=True)
class Row:
    """Syntax nodes with the same treatment. ``hooks``: the methods of Semantics that they ask; ``native``: why there
    are none, or what is not hooked."""

    nodes: tuple[str, ...]
    construct: str
    janus: str
    hooks: tuple[str, ...] = ()
    native: str = ""


ROWS: tuple[Row, ...] = (
    Row(("Attribute",), "`x.a`: read, store, delete", "attributes, 4.2.2-4.2.3", ("attr", "set_attr", "del_attr")),
    Row(("Subscript",), "`x[k]`: read, store, delete", "list, set, map, 4.2.2-4.2.3", ("item", "set_item", "del_item")),
    Row(("Slice",), "`x[a:b]`", "list, set, map, 4.2.2", native="builds a slice, the key of the subscript's hook"),
    Row(
        ("Name",),
        "a variable",
        "local 4.1, non-local 4.2.3",
        ("get_global", "set_global", "del_global", "get_cell", "set_cell", "del_cell"),
        "local variables, those shared between nested functions, and names in a class body, are native",
    ),
    Row(
        ("Global", "Nonlocal"),
        "`global x`, `nonlocal x`",
        "non-local, 4.2.3",
        native="declares; uses of the names are hooked",
    ),
    Row(
        ("Call",),
        "`f(x)`",
        "function call, 4.2.1, 4.3.1",
        ("callee", "call", "frame_reader"),
        "`super()` itself",
    ),
    Row(
        ("keyword",),
        "`f(k=v)`, `f(**m)`",
        "function call, 4.2.1",
        ("double_star",),
        "a plain keyword is part of the call",
    ),
    Row(("Starred",), "`f(*a)`, `[*a]`, `a, *b = c`", "list, set, map; function call", ("star", "unpack")),
    Row(("Return",), "`return x`", "function call, 4.2.1", ("returned",), "`return` without a value"),
    Row(
        ("Lambda",),
        "`lambda: x`",
        "function call (MAKE_FUNCTION)",
        ("returned",),
        "made natively; its inside is rewritten",
    ),
    Row(
        ("FunctionDef", "AsyncFunctionDef"),
        "`def`, `async def`",
        "function call (MAKE_FUNCTION); coroutine 4.3.2",
        ("callee",),
        "made natively, its inside is rewritten; the calls of decorators are hooked; annotations are left alone",
    ),
    Row(("arguments", "arg"), "parameters", "function call", native="defaults are expressions of the scope around"),
    Row(
        ("ClassDef",),
        "`class`",
        "in-line class, 4.3.2",
        ("callee",),
        "made natively, its inside is rewritten; the calls of decorators are hooked",
    ),
    Row(("If",), "`if`", "dynamic control flow, 4.2.1", ("branch", "region")),
    Row(("IfExp",), "`a if c else b`", "dynamic control flow, 4.2.1", ("branch",)),
    Row(("While",), "`while`", "dynamic control flow, 4.2.1", ("branch", "descend"), "`while True` decides nothing"),
    Row(("For",), "`for`", "dynamic control flow, 4.2.1", ("iterate", "unpack")),
    Row(
        ("ListComp", "SetComp", "DictComp", "GeneratorExp", "comprehension"),
        "comprehensions",
        "dynamic control flow; LIST_APPEND, MAP_ADD",
        ("iterate", "unpack", "branch", "hashed", "making", "gathered", "made"),
        "collecting the elements",
    ),
    Row(
        ("Break", "Continue"),
        "`break`, `continue`",
        "dynamic control flow",
        native="follow from a decision already hooked",
    ),
    Row(("BoolOp", "And", "Or"), "`a and b`, `a or b`", "dynamic control flow (JUMP_IF_FALSE_OR_POP)", ("branch",)),
    Row(("UnaryOp", "Not"), "`-a`, `not a`", "mathematical operators, 4.1", ("unary", "not_", "branch"), "of literals"),
    Row(("UAdd", "USub", "Invert"), "`+a`, `-a`, `~a`", "mathematical operators, 4.1", ("unary",)),
    Row(("BinOp",), "`a + b`", "mathematical operators, 4.1", ("binary",), "of literals"),
    Row(
        (
            "Add",
            "Sub",
            "Mult",
            "MatMult",
            "Div",
            "FloorDiv",
            "Mod",
            "Pow",
            "LShift",
            "RShift",
            "BitAnd",
            "BitOr",
            "BitXor",
        ),
        "`+ - * @ / // % ** << >> & \\| ^`",
        "mathematical operators, 4.1",
        ("binary", "inplace"),
    ),
    Row(("Compare",), "`a < b < c`", "mathematical operators (COMPARE_OP), 4.1", ("compare", "branch")),
    Row(
        ("Eq", "NotEq", "Lt", "LtE", "Gt", "GtE", "Is", "IsNot", "In", "NotIn"),
        "`== != < <= > >= is in`",
        "mathematical operators (COMPARE_OP), 4.1",
        ("compare",),
    ),
    Row(
        ("Assign",), "`a = b = c`, `a, b = c`", "local variables, 4.1", ("unpack",), "stores are hooked by their target"
    ),
    Row(
        ("AnnAssign",),
        "`a: t = b`",
        "local variables, 4.1",
        native="as a plain assignment; the annotation is left alone",
    ),
    Row(("AugAssign",), "`a += b`", "mathematical operators (INPLACE_*), 4.1", ("inplace",)),
    Row(("NamedExpr",), "`(a := b)`", "local variables, 4.1", ("set_global", "set_cell"), "of a local variable"),
    Row(
        ("Delete",),
        "`del a`",
        "local variables, 4.1",
        native="as its target: `del_attr`, `del_item`, `del_global`, `del_cell`",
    ),
    Row(
        ("Tuple", "List"),
        "`a, b`, `[a, b]`",
        "list, set, map, 4.2.2",
        ("unpack",),
        "building one; as a target it is unpacked",
    ),
    Row(("Set",), "`{a, b}`", "list, set, map, 4.2.2", ("hashed",), "building one"),
    Row(("Dict",), "`{a: b, **c}`", "list, set, map, 4.2.2", ("hashed", "double_star"), "building one"),
    Row(("Constant",), "literals", "constant, 4.1", native="constants"),
    Row(("JoinedStr", "FormattedValue"), "f-strings", "not in CPython 3.5", ("format", "join")),
    Row(("Raise",), "`raise`", "exception handling, A.1", ("raised",), "`raise` alone"),
    Row(
        ("Try", "TryStar", "ExceptHandler"),
        "`try`, `except`, `except*`, `finally`",
        "exception handling, A.1",
        ("caught",),
        "which handler matches",
    ),
    Row(("Assert",), "`assert`", "exception handling, A.1", ("branch",), "raising the AssertionError"),
    Row(("With", "withitem"), "`with`", "with, A.1", ("context", "unpack")),
    Row(
        ("AsyncWith", "AsyncFor"),
        "`async with`, `async for`",
        "coroutine, 4.3.2",
        native="awaited step by step by an event loop; their insides are rewritten",
    ),
    Row(
        ("Yield", "YieldFrom"),
        "`yield`, `yield from`",
        "yield, 4.3.2",
        ("delegate",),
        "suspends the frame; the values are hooked",
    ),
    Row(("Await",), "`await`", "coroutine, 4.3.2", native="suspends the frame; the values are hooked"),
    Row(
        ("Import", "ImportFrom", "alias"),
        "`import`",
        "in-line import, 4.3.2",
        ("get_global", "set_global", "set_cell"),
        "running a module's code, once; modules stand for themselves",
    ),
    Row(
        ("Match", "match_case"),
        "`match`, `case`",
        "not in CPython 3.5",
        ("branch",),
        "patterns look at a view of the subject, which asks the hooks",
    ),
    Row(
        (
            "MatchValue",
            "MatchSingleton",
            "MatchSequence",
            "MatchMapping",
            "MatchClass",
            "MatchStar",
            "MatchAs",
            "MatchOr",
        ),
        "patterns",
        "not in CPython 3.5",
        ("call", "attr", "item", "star", "compare", "branch"),
        "of the view, in CPython's own order",
    ),
    Row(
        ("TypeVar", "ParamSpec", "TypeVarTuple", "TypeAlias"),
        "type parameters, `type X = ...`",
        "not in CPython 3.5",
        native="evaluated lazily, if ever; no part of what a program computes",
    ),
    Row(
        ("Expr", "Pass"),
        "an expression as a statement, `pass`",
        "stack manipulation: none",
        native="does nothing by itself",
    ),
    Row(("Load", "Store", "Del"), "what is done to a target", "none", native="a mark on other nodes"),
)

# Node classes that no tree of a function of these versions contains: abstract ones, whole files, and removed ones.
UNUSED: frozenset[str] = frozenset(
    "AST mod stmt expr expr_context boolop operator unaryop cmpop excepthandler pattern type_param type_ignore slice "
    "Module Interactive Expression FunctionType TypeIgnore "
    "Num Str Bytes NameConstant Ellipsis Index ExtSlice Suite AugLoad AugStore Param".split()
)


def table() -> str:
    """Return the markdown table."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield "| construct | syntax nodes | in JANUS's appendix A | hooks | native |"
    yield "| --- | --- | --- | --- | --- |"
    for row in ROWS:
        nodes = ", ".join(f"`{node}`" for node in row.nodes)
        hooks = ", ".join(f"`{hook}`" for hook in row.hooks) or "-"
        yield f"| {row.construct} | {nodes} | {row.janus} | {hooks} | {row.native or '-'} |"


def with_table(text: str) -> str:
    """Return the text with the table between the markers."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"
