"""Native functions of numbers and iterables. Their results are expressions where their arguments are."""

from __future__ import annotations

import collections
import functools
import itertools
import math
import operator
from collections.abc import Iterable
from typing import Any

import torch

from torchjanus.core.access_path import Step
from torchjanus.core.kinds import getattr, hasattr, is_one_of, isinstance
from torchjanus.rewrite.hooks.semantics import Invocation, invoked
from torchjanus.semantics.containers.histories import summary
from torchjanus.semantics.known.consumers import iterated
from torchjanus.semantics.known.foreign import is_foreign_object
from torchjanus.semantics.known.natives import COMPUTING, HASHING
from torchjanus.semantics.native.comparisons import compares_by_python
from torchjanus.semantics.native.containers import CONTAINERS, as_given
from torchjanus.semantics.native.number_classes import hold_class, picks_among_classes
from torchjanus.semantics.native.paired_iterators import paired
from torchjanus.semantics.native.texts import Texts
from torchjanus.trace.values import Apply, Traced, plain

__all__ = ["NativeValues"]

# Functions that iterate over iterables of iterables.
_FLAT = frozenset((itertools.chain.from_iterable,))
_DIVMOD = (operator.floordiv, operator.mod)


# Lazy iterators.
_LATER = (enumerate, zip, map, filter, iter, reversed, *_FLAT)


class NativeValues(Texts):
    """Arithmetic, and functions that consume iterables."""

    # -- numbers and text -----------------------------------------------------------------------------------------

    def _arithmetic(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_one_of(fn, (str, repr)) and len(args) == 1 and not kwargs:
            return self.as_text(args[0], fn.__name__[0])
        if fn is format and args and not kwargs:
            return self.formatted(args[0], args[1] if len(args) > 1 else "")
        if any(isinstance(a, torch.Tensor) for a in args):
            if is_one_of(fn, (float, int)):
                return self.framework.call(getattr(torch.Tensor, f"__{fn.__name__}__"), args, {})
            return self.out(fn, *args, **kwargs)
        if any(isinstance(a, Traced) for a in args) and not kwargs:
            if picks_among_classes(fn, args):
                return self.extreme(fn, list(args), None)
            value = self.out(fn, *map(plain, args))
            if not hold_class(self.recording, fn, args, value):
                return self.out(fn, *(self._pinned(a, f"read by {fn.__name__}()") for a in args))
            if fn is divmod:
                pair = tuple(a.expr if isinstance(a, Traced) else a for a in args)
                return tuple(self.recording.computed(v, f, *pair) for v, f in zip(value, _DIVMOD, strict=True))
            symbols = tuple(a.expr if isinstance(a, Traced) else a for a in args)
            if is_one_of(type(value), (int, float, str)):
                parses = is_one_of(fn, (int, float)) and isinstance(args[0], str)
                return self.recording.computed(value, fn, *symbols, risky=parses)
            if isinstance(value, bool):
                return self.recording.hold(Apply(fn, symbols), value)
        if len(args) == 1 and not kwargs and (known := summary(self.recording, self.shadows, fn, args[0])) is not None:
            return known
        several = is_one_of(fn, (min, max)) and len(args) > 1  # returns one of its arguments
        given = args if several else tuple(self.consumed(a) for a in args)
        if is_one_of(fn, (min, max, math.fsum, math.prod)) and len(given) == 1 and not isinstance(given[0], str):
            parts = list(given[0])
            given = (parts,)
        else:
            parts = list(given)
        containers = any(isinstance(part, CONTAINERS) for part in parts)
        watched = containers or any(compares_by_python(part) or is_foreign_object(part, False) for part in parts)
        if is_one_of(fn, (min, max)) and parts and (kwargs.get("key") is not None or watched):
            return self.extreme(fn, parts, kwargs.get("key"))
        if given and given[0] is parts:
            if is_one_of(fn, (min, max)) and not parts and "default" in kwargs:
                return kwargs["default"]
            if (
                is_one_of(fn, (min, max))
                and len(parts) > 1
                and not kwargs
                and all(isinstance(p, int | float) for p in parts)
            ):
                return self._arithmetic(fn, tuple(parts), {})
            if fn is math.prod and not kwargs:
                return functools.reduce(functools.partial(self.watch.binary, None, "*"), parts, 1)
        self.refuse_python_methods(fn, *given)
        why = f"read by {fn.__name__}()"
        bare = {k: v if callable(v) else self._pinned(v, why) for k, v in kwargs.items()}
        return self.out(fn, *(self._pinned(a, why) for a in given), **bare)

    def _consume(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) == 1 and not kwargs and (known := summary(self.recording, self.shadows, fn, args[0])) is not None:
            return known
        taken = iterated(fn, len(args))
        given = tuple(self.consumed(a) if n in taken else a for n, a in enumerate(args))
        lazy = is_one_of(fn, _LATER) or getattr(fn, "__module__", None) == "itertools"
        if lazy and args:
            for one, copy in zip(args, given, strict=True):
                if type(copy) is list and copy is not one:
                    self.shadows.gone_through(one, copy)
            if fn is reversed and (held := self.changing(args[0], given[0])) is not None:
                return paired(self.recording, held, reversed(given[0]), "__reversed__")
            if fn is iter and len(args) == 1 and is_one_of(type(args[0]), (list, tuple)) and given[0] is not args[0]:
                return paired(self.recording, args[0], given[0])
            given = tuple(
                copy
                if n not in taken or (held := self.changing(one, copy)) is None
                else paired(self.recording, held, copy)
                for n, (one, copy) in enumerate(zip(args, given, strict=True))
            )
        given = tuple(self.recording.pin(a, f"read by {fn.__name__}()") if isinstance(a, str) else a for a in given)
        if is_one_of(fn, (any, all)) and len(given) == 1:
            return self._quantify(fn, given[0])
        if is_one_of(fn, (map, functools.reduce)) and given:
            given = (self._watched(given[0]), *given[1:])
        if fn is filter and given:
            given = (self._predicate(given[0]), *given[1:])
        if getattr(fn, "__module__", None) == "itertools":
            return self._itertools(fn, given, kwargs)
        if is_one_of(fn, _FLAT) and given:
            return fn((self.watch.iterate(None, one) for one in given[0]), *given[1:], **kwargs)
        if fn is sorted and len(given) == 1:
            return self.in_order(list(given[0]), **kwargs)
        if fn is sum and given and not kwargs:
            return self._sum(list(given[0]), *given[1:])
        if is_one_of(fn, COMPUTING):
            if fn is hash:
                given = tuple(map(self.key, given))
            elif is_one_of(fn, HASHING):
                given = tuple(map(self.keys_of, given, args))
            why = f"read by {getattr(fn, '__name__', fn)}()"
            given = tuple(self._pinned(list(a) if _is_iterator(a) else a, why) for a in given)
        if is_one_of(fn, (enumerate, collections.deque)):  # the first number, and the maximal length
            self.refuse_python_methods(fn, *given[1:])
            given = (*given[:1], *(self.recording.pin(a, f"given to {fn.__name__}()") for a in given[1:]))
        if is_one_of(fn, (dict, collections.OrderedDict, collections.defaultdict)):  # its keywords are its contents
            # Pairs from before the call are read, too.
            given = tuple(
                [self.consumed(pair) for pair in a] if is_one_of(type(a), (list, tuple)) else a for a in given
            )
            return self.hold_keys(fn(*given, **kwargs))
        named = {
            k: self.recording.pin(self.consumed(v) if k == "iterable" else v, "keyword") for k, v in kwargs.items()
        }
        return self.hold_keys(as_given(self.out(fn, *given, **named), args, given))

    def _itertools(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of ``itertools`` with pinned numbers and watched callbacks."""
        recording = self.recording
        kwargs = {name: recording.pin(value, f"read by {fn.__name__}()") for name, value in kwargs.items()}
        if is_one_of(
            fn, (itertools.count, itertools.islice, itertools.repeat, itertools.permutations, itertools.product)
        ) or (is_one_of(fn, (itertools.combinations, itertools.combinations_with_replacement, itertools.tee))):
            first = () if fn is itertools.count else args[:1]
            self.refuse_python_methods(fn, *(args[len(first) :] if fn is not itertools.product else ()))
            args = (*first, *(recording.pin(value, f"read by {fn.__name__}()") for value in args[len(first) :]))
        elif fn is itertools.accumulate:
            func = kwargs.pop("func", None) if len(args) < 2 else args[1]
            add = functools.partial(self.watch.binary, None, "+") if func is None else self._watched(func)
            args = (args[0], add)
        elif fn is itertools.groupby:
            key = kwargs.pop("key", None) if len(args) < 2 else args[1]
            take = (lambda value: value) if key is None else self._watched(key)
            args = (args[0], lambda value: self._pinned(take(value), "compared by groupby()"))
        elif is_one_of(fn, (itertools.filterfalse, itertools.takewhile, itertools.dropwhile)):
            args = (self._predicate(args[0]), *args[1:])
        elif fn is itertools.starmap:
            args = (self._watched(args[0]), *args[1:])
        elif fn is itertools.compress:
            args = (args[0], (self.watch.branch(None, value) for value in self.watch.iterate(None, args[1])))
        return self.out(fn, *args, **kwargs)

    def _quantify(self, fn: Any, values: Iterable[Any]) -> bool:
        """Return ``any`` or ``all``, which stop at the first element that decides."""
        for value in values:
            if self.watch.branch(None, value) is (fn is any):
                return fn is any
        return fn is all

    def _watched(self, fn: Any) -> Any:
        """Return a callback for native code that is called as the program itself would call it."""
        if fn is None:
            return functools.partial(self.watch.branch, None)
        if isinstance(invoked(fn), Invocation) or not callable(fn):
            return fn
        return lambda *args: self.watch.call(None, fn, args, {})

    def _predicate(self, fn: Any) -> Any:
        """Return a predicate: the truth of the callback's result, or of the element if ``fn`` is None."""
        test = (lambda value: value) if fn is None else self._watched(fn)
        return lambda value: self.watch.branch(None, test(value))

    def getter(self, fn: Any, obj: Any) -> Any:
        """Return what an ``operator.itemgetter`` or ``attrgetter`` returns for an object."""
        given, _ = self._held_by(fn)
        if isinstance(fn, operator.itemgetter):
            parts = tuple(self.watch.item(None, obj, key) for key in given)
        else:
            names = (self.recording.pin(name, "names attributes").split(".") for name in given)
            parts = tuple(functools.reduce(functools.partial(self.watch.attr, None), path, obj) for path in names)
        return parts[0] if len(parts) == 1 else parts

    def by_name(self, fn: Any, obj: Any) -> Any:
        """Return what an ``operator.methodcaller`` returns for an object."""
        (name, *rest), named = self._held_by(fn)
        method = self.watch.attr(None, obj, self.recording.pin(name, "names a method"))
        return self.watch.call(None, method, tuple(rest), named)

    def _held_by(self, fn: Any) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments with which a getter or ``methodcaller`` was made. One from before the call is read."""
        given, named = _made_with(fn)
        access_path = self.recording.owner(fn)
        if access_path is None:
            return [*given], named
        self.recording.found(access_path.then(Step.OF, _form_of), _form_of(fn))
        arguments = access_path.then(Step.OF, _arguments_of)
        read = [self.recording.found(arguments.item(number), value) for number, value in enumerate(_arguments_of(fn))]
        return read[: len(given)], dict(zip(named, read[len(given) :], strict=True))

    def _sum(self, parts: list[Any], start: Any = 0) -> Any:
        total = start
        for part in parts:
            total = self.watch.binary(None, "+", total, part)
        return total


def _is_iterator(value: Any) -> bool:
    return hasattr(type(value), "__next__")


def _made_with(fn: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with which an object of ``operator`` was made, and its keyword arguments."""
    made, given = fn.__reduce__()
    if isinstance(made, functools.partial):  # a methodcaller with keywords
        return (*made.args, *given), dict(made.keywords)
    return given, {}


def _form_of(fn: Any) -> str:
    given, named = _made_with(fn)
    return " ".join((str(len(given)), *named))


def _arguments_of(fn: Any) -> tuple[Any, ...]:
    given, named = _made_with(fn)
    return (*given, *named.values())
