"""Live variables and definite assignment of one function, by its statements (textbook data-flow analysis on the syntax
tree, which is the same for all versions of Python).

``Liveness`` over-approximates what may be read later; ``certain_at`` under-approximates what is bound.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

__all__ = ["Liveness", "Loop", "bound", "captured", "certain_at", "own_nodes", "reads", "targets"]

Loop = ast.For | ast.While
Names = frozenset[str]
INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
NOTHING: Names = frozenset()
# Context managers that never suppress an exception: what their body binds is bound behind it.
TRANSPARENT = frozenset(
    """no_grad enable_grad inference_mode set_grad_enabled autocast device fork_rng record_function open errstate
    catch_warnings redirect_stdout redirect_stderr amp_autocast detect_anomaly set_detect_anomaly stream profile tqdm
    accumulate no_sync autocast_smart_context_manager compute_loss_context_manager lock""".split()
)


def own_nodes(statements: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield all nodes of the function's own scope, comprehensions included; of inner functions only the definition."""
    for node in statements:
        yield node
        if not isinstance(node, INNER):
            yield from own_nodes(ast.iter_child_nodes(node))


def targets(target: ast.expr) -> set[str]:
    """Return the variables that an assignment to ``target`` sets."""
    if isinstance(target, ast.Name):
        return {target.id}
    if isinstance(target, ast.Tuple | ast.List):
        return {name for part in target.elts for name in targets(part)}
    return targets(target.value) if isinstance(target, ast.Starred) else set()


def _of_comprehension(node: ast.AST) -> Names:
    """Return the variables of a comprehension's own scope."""
    generators = getattr(node, "generators", [])
    return frozenset(name for one in generators for name in targets(one.target))


def reads(node: ast.AST | None) -> Names:
    """Return the variables that evaluating ``node`` may read, what inner functions capture included."""
    if node is None:
        return NOTHING
    if isinstance(node, ast.Name):
        return NOTHING if isinstance(node.ctx, ast.Store) else frozenset({node.id})
    if isinstance(node, INNER):
        return _free(node)
    found = NOTHING.union(*(reads(child) for child in ast.iter_child_nodes(node)))
    return found - _of_comprehension(node) if isinstance(node, COMPREHENSIONS) else found


def _free(node: ast.AST) -> Names:
    """Return the names that an inner function or class takes from the scopes around it."""
    outside = [*getattr(node, "decorator_list", []), *getattr(node, "bases", []), *getattr(node, "keywords", [])]
    if isinstance(node, ast.ClassDef):
        inside = NOTHING.union(*(reads(part) | bound([part]) for part in node.body))  # a class body reads through
        return inside.union(*(reads(part) for part in outside))
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    arguments = node.args
    outside += [*arguments.defaults, *(one for one in arguments.kw_defaults if one is not None)]
    body: Sequence[ast.AST] = node.body if isinstance(node.body, list) else [node.body]
    parameters = {part.arg for part in ast.walk(arguments) if isinstance(part, ast.arg)}
    shared = {name for part in own_nodes(body) if isinstance(part, ast.Nonlocal | ast.Global) for name in part.names}
    used = NOTHING.union(*(reads(part) for part in body))
    own = (bound(body) | parameters) - shared
    return ((used | shared) - own).union(*(reads(part) for part in outside))


def captured(statements: Iterable[ast.AST]) -> Names:
    """Return the names that functions and classes made by these statements take from the scope around them."""
    return NOTHING.union(*(_free(node) for node in own_nodes(statements) if isinstance(node, INNER)))


def bound(statements: Iterable[ast.AST]) -> set[str]:
    """Return the variables that these statements may set. Those of comprehensions are their own."""
    names: set[str] = set()
    own: set[int] = set()
    for node in own_nodes(statements):
        match node:
            case ast.Name(ctx=ast.Store() | ast.Del()) if id(node) not in own:
                names.add(node.id)
            case ast.comprehension():
                own.update(id(part) for part in ast.walk(node.target))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Import() | ast.ImportFrom():
                names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
            case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar() if node.name is not None:
                names.add(node.name)
            case ast.MatchMapping() if node.rest is not None:
                names.add(node.rest)
    return names


# ---- live variables: backward ----


@dataclass(frozen=True, slots=True)
class _Exits:
    """What is live where control goes if it does not go to the next statement."""

    continues: Names = NOTHING
    breaks: Names = NOTHING
    returns: Names = NOTHING
    raises: Names = NOTHING


@dataclass(slots=True)
class Liveness:
    """The live variables of a function at its loops.

    ``entry[loop]``: what is live before the loop's body. ``exit[loop]``: what is live behind one iteration, whether the
    loop goes on or is left. ``after``: what is live behind the last statement.
    """

    entry: dict[Loop, Names] = field(default_factory=dict)
    exit: dict[Loop, Names] = field(default_factory=dict)

    def before(self, statements: Sequence[ast.stmt], after: Names, exits: _Exits | None = None) -> Names:
        """Return what is live before ``statements``, of what is live ``after`` them."""
        exits = exits or _Exits()
        for node in reversed(statements):
            after = self._before(node, after, exits) | exits.raises
        return after

    def _before(self, node: ast.stmt, after: Names, exits: _Exits) -> Names:
        match node:
            case ast.Return():
                return exits.returns | reads(node.value)
            case ast.Raise():
                return reads(node)
            case ast.Break():
                return exits.breaks
            case ast.Continue():
                return exits.continues
            case ast.If():
                return self.before(node.body, after, exits) | self.before(node.orelse, after, exits) | reads(node.test)
            case ast.For() | ast.AsyncFor() | ast.While():
                return self._loop(node, after, exits)
            case ast.With() | ast.AsyncWith():
                return self._with(node, after, exits)
            case ast.Try():
                return self._try(node, after, exits)
            case ast.TryStar():
                return self._try(node, after, exits)
            case ast.Match():
                arms = [
                    self.before(case.body, after, exits) | reads(case.guard) | reads(case.pattern)
                    for case in node.cases
                ]
                return after.union(reads(node.subject), *arms)
            case ast.Assign() | ast.AnnAssign(value=ast.expr()):
                aims = node.targets if isinstance(node, ast.Assign) else [node.target]
                return (after - {name for aim in aims for name in targets(aim)}) | reads(node)
            case ast.AugAssign():
                return after | reads(node) | targets(node.target)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return (after - {node.name}) | reads(node)
            case ast.Import() | ast.ImportFrom():
                return after - bound([node])
            case _:
                return after | reads(node)

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, after: Names, exits: _Exits) -> Names:
        done = self.before(node.orelse, after, exits)
        test = reads(node.test) if isinstance(node, ast.While) else NOTHING
        aims = frozenset() if isinstance(node, ast.While) else frozenset(targets(node.target))
        other = NOTHING if isinstance(node, ast.While) else reads(node.target)
        head = done | test | other
        while True:
            entry = self.before(node.body, head, replace(exits, continues=head, breaks=after))
            wider = head | (entry - aims)
            if wider == head:
                break
            head = wider
        if isinstance(node, ast.For | ast.While):
            self.entry[node], self.exit[node] = entry, head | after
        return head if isinstance(node, ast.While) else head | reads(node.iter)

    def _with(self, node: ast.With | ast.AsyncWith, after: Names, exits: _Exits) -> Names:
        raises = exits.raises if is_transparent(node) else exits.raises | after
        live = self.before(node.body, after, replace(exits, raises=raises))
        for item in reversed(node.items):
            live = (live - (targets(item.optional_vars) if item.optional_vars else set())) | reads(item.context_expr)
        return live

    def _try(self, node: ast.Try | ast.TryStar, after: Names, exits: _Exits) -> Names:
        if node.finalbody:
            onward = after | exits.continues | exits.breaks | exits.returns | exits.raises
            last = self.before(node.finalbody, onward, exits)
            after, exits = last, _Exits(last, last, last, last)
        handled = NOTHING
        for handler in node.handlers:
            live = self.before(handler.body, after, exits) - ({handler.name} if handler.name else set())
            handled |= live | reads(handler.type)
        done = self.before(node.orelse, after, exits)
        return self.before(node.body, done, replace(exits, raises=exits.raises | handled))


def is_transparent(node: ast.With | ast.AsyncWith) -> bool:
    """Whether no context manager of the statement suppresses exceptions, by its name."""
    for item in node.items:
        name = item.context_expr.func if isinstance(item.context_expr, ast.Call) else item.context_expr
        if (name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")) not in TRANSPARENT:
            return False
    return True


# ---- definite assignment: forward ----


def certain_at(statements: Sequence[ast.stmt], loop: Loop, have: Names) -> Names | None:
    """Return the variables that are bound for certain where the body of ``loop`` begins; None if it is not among
    ``statements``. ``have``: what is bound before them."""
    for node in statements:
        if node is loop:
            return have | (targets(node.target) if isinstance(node, ast.For) else set())
        for block, more in _blocks(node):
            found = certain_at(block, loop, have | more)
            if found is not None:
                return found
        have = (have | _certain(node)) - _deleted(node)
    return None


def _deleted(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Del)}


def _blocks(node: ast.stmt) -> Iterator[tuple[Sequence[ast.stmt], set[str]]]:
    """Yield the blocks of a statement, each with what is bound for certain at its beginning."""
    match node:
        case ast.For() | ast.AsyncFor():
            yield node.body, targets(node.target)
            yield node.orelse, set()
        case ast.While() | ast.If():
            yield node.body, set()
            yield node.orelse, set()
        case ast.With() | ast.AsyncWith():
            yield node.body, {n for item in node.items if item.optional_vars for n in targets(item.optional_vars)}
        case ast.Try() | ast.TryStar():
            yield node.body, set()
            for handler in node.handlers:
                yield handler.body, {handler.name} if handler.name else set()
            yield node.orelse, _all_certain(node.body)
            yield node.finalbody, set()
        case ast.Match():
            for case in node.cases:
                yield case.body, set()


def _all_certain(statements: Sequence[ast.stmt]) -> set[str]:
    return {name for node in statements for name in _certain(node)}


def _certain(node: ast.stmt) -> set[str]:
    """Return the variables that are bound for certain behind a statement that has ended."""
    match node:
        case ast.Assign():
            return {name for target in node.targets for name in targets(target)}
        case ast.AnnAssign(value=ast.expr()) | ast.AugAssign():
            return targets(node.target)
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return {node.name}
        case ast.Import() | ast.ImportFrom():
            return bound([node]) - {"*"}
        case ast.With() | ast.AsyncWith():
            own = {name for item in node.items if item.optional_vars for name in targets(item.optional_vars)}
            return own | (_all_certain(node.body) if is_transparent(node) else set())
        case ast.If():
            arms = [_all_certain(arm) for arm in (node.body, node.orelse) if not _leaves(arm)]
            return set.intersection(*arms) if arms else set()
        case ast.Try() | ast.TryStar():
            arms = [_all_certain([*node.body, *node.orelse])]
            arms += [_all_certain(handler.body) for handler in node.handlers if not _leaves(handler.body)]
            own = set.intersection(*arms) | _all_certain(node.finalbody)
            return own - {handler.name for handler in node.handlers if handler.name}
    return set()


def _leaves(statements: Sequence[ast.stmt]) -> bool:
    """Whether control never gets behind these statements."""
    return bool(statements) and isinstance(statements[-1], ast.Return | ast.Raise | ast.Break | ast.Continue)
