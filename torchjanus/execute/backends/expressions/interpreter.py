"""Runs S-expressions (see ``printing``) by calls of torch. What a back-end author writes: it knows the text only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchjanus.core.kinds import isinstance
from torchjanus.execute.backends.expressions.printing import NAMES
from torchjanus.tracegraph.text.constants import Unknown, named
from torchjanus.tracegraph.text.reading import Symbol, TextError, read

__all__ = ["interpret"]

Env = dict[str, Any]


def interpret(text: str, tensors: Sequence[torch.Tensor] = ()) -> Callable[..., Any]:
    """Return the last function of a program, which takes its arguments. ``tensors``: those that it names. Raises
    TextError."""
    match read(text):
        case ["program", ["tensors", *names], *definitions]:
            pass
        case _:
            raise TextError("a program is (program (tensors ..) (def ..) ..)")
    machine = _Machine(dict(zip(names, tensors, strict=True)))
    last = ""
    for one in definitions:
        match one:
            case ["def", Symbol() as name, list() as params, ["begin", body]]:
                machine.functions[name] = params, body
                last = name
            case _:
                raise TextError(f"{one} is no definition")
    return lambda *args: machine.call(last, args)


class _Machine:
    def __init__(self, tensors: Env) -> None:
        self.tensors = tensors
        self.functions: dict[str, tuple[list[Any], Any]] = {}

    def call(self, name: str, args: Sequence[Any]) -> Any:
        params, body = self.functions[name]
        return self.body({**self.tensors, **dict(zip(params, args, strict=True))}, body)

    def body(self, env: Env, said: Any) -> Any:
        """Return the value of a body. What it binds is bound in ``env``: each variable has a name of its own."""
        while True:
            match said:
                case ["let", names, expression, rest]:
                    value = self.expression(env, expression)
                    if isinstance(names, list):
                        env.update(zip(names, self.parts(value, len(names)), strict=True))
                    else:
                        env[names] = value
                    said = rest
                case ["values", *atoms]:
                    return tuple([self.atom(env, one) for one in atoms])
                case _:
                    return self.atom(env, said)

    @staticmethod
    def parts(value: Any, count: int) -> Any:
        """Return what several variables are bound to: the tensors of what torch returns, or values."""
        if isinstance(value, tuple) and type(value) is tuple and len(value) == count:
            return value
        return [one for one in pytree.tree_leaves(value) if isinstance(one, torch.Tensor)]

    def expression(self, env: Env, said: Any) -> Any:
        match said:
            case ["if", test, ["begin", then], ["begin", orelse]]:
                return self.body(env, then if self.atom(env, test) else orelse)
            case ["loop", params, first, ["begin", test], ["begin", body]]:
                values: Any = [self.atom(env, one) for one in first]
                while True:
                    env.update(zip(params, values, strict=True))
                    if not self.body(env, test):
                        return tuple(values)
                    values = self.body(env, body)
            case ["size", one, int() as dim]:
                return self.atom(env, one).shape[dim]
            case ["item-of", one]:
                return self.atom(env, one).item()
            case [Symbol() as head, *rest]:
                args, kwargs = self.arguments(env, rest)
                if head in self.functions:
                    return self.call(head, args)
                return _function(head)(*args, **kwargs)
        return self.atom(env, said)

    def arguments(self, env: Env, said: list[Any]) -> tuple[list[Any], Env]:
        args: list[Any] = []
        kwargs: Env = {}
        rest = iter(said)
        for one in rest:
            if isinstance(one, Symbol) and one[0] == ":":
                kwargs[one[1:]] = self.atom(env, next(rest))
            else:
                args.append(self.atom(env, one))
        return args, kwargs

    def atom(self, env: Env, said: Any) -> Any:
        match said:
            case Symbol():
                return env[said]
            case ["list", *items]:
                return [self.atom(env, one) for one in items]
            case ["tuple", *items]:
                return tuple([self.atom(env, one) for one in items])
            case ["dict", *items]:
                parts = [self.atom(env, one) for one in items]
                return dict(zip(parts[::2], parts[1::2], strict=True))
            case ["slice", start, stop, step]:
                return slice(self.atom(env, start), self.atom(env, stop), self.atom(env, step))
            case ["const", str() as name]:
                return _named(name)
            case list():
                return self.expression(env, said)
        return said


_found: dict[str, Any] = {}


def _function(name: str) -> Any:
    known = NAMES.get(name)
    return _named(name) if known is None else known


def _named(name: str) -> Any:
    if name not in _found:
        value = named(name)
        if isinstance(value, Unknown):
            raise TextError(f"nothing is called {name}")
        _found[name] = value
    return _found[name]
