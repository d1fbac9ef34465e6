"""What the patterns of lifted ``match`` statements match (their form is in ``rewrite.lifted_match``), by the hooks of a
semantics: a value that is not known is compared, measured and taken apart as it is anywhere else.

``matches`` tells whether a pattern matches, ``captures`` what it binds; the latter is asked only where it does. A part
of the subject is looked at for each of them, as often as patterns need it.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

__all__ = ["captures", "matches"]

Pattern = tuple[Any, ...]
_ITSELF = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)  # their one part is they
_NOT_SEQUENCES = (str, bytes, bytearray)


def matches(semantics: Any, at: Any, pattern: Pattern, subject: Any) -> Any:
    """Return whether a pattern matches, as something of which only the truth counts."""
    match pattern:
        case ("as", None, _):
            return True
        case ("as", inner, _):
            return matches(semantics, at, inner, subject)
        case ("value", value):
            return semantics.compare(at, "==", subject, value())
        case ("singleton", value):
            return semantics.compare(at, "is", subject, value)
        case ("or", patterns):
            found = [partial(matches, semantics, at, one, subject) for one in patterns]
            return _first(semantics, at, found)
    fits = _fits(semantics, at, pattern, subject)

    def parts() -> Any:
        found = _parts(semantics, at, pattern, subject)
        if found is None:
            return False
        return _all(semantics, at, [partial(matches, semantics, at, one, of) for one, of in found])

    return semantics.choose(at, fits, parts, lambda: False)


def captures(semantics: Any, at: Any, pattern: Pattern, subject: Any) -> dict[str, Any]:
    """Return what a pattern that matches binds, by name."""
    match pattern:
        case ("as", inner, name):
            found = {} if inner is None else captures(semantics, at, inner, subject)
            return found if name is None else {**found, name: subject}
        case ("or", patterns):
            names = sorted(_bound(patterns[0]))
            return dict(zip(names, _of_first(semantics, at, patterns, subject, names), strict=True))
        case ("value" | "singleton", *_):
            return {}
    found = {}
    if _bound(pattern):
        for one, part in _parts(semantics, at, pattern, subject) or ():
            found |= captures(semantics, at, one, part)
        if pattern[0] == "sequence" and pattern[3] is not None:
            found[pattern[3]] = _middle(semantics, at, pattern, subject)
    return found


def _of_first(semantics: Any, at: Any, patterns: Sequence[Pattern], subject: Any, names: list[str]) -> tuple[Any, ...]:
    """Return what the first of some patterns binds that matches, in the order of the names."""
    first, *others = patterns

    def bound() -> tuple[Any, ...]:
        found = captures(semantics, at, first, subject)
        return tuple(found[name] for name in names)

    if not others or not names:
        return bound() if names else ()
    made: tuple[Any, ...] = semantics.choose(
        at, matches(semantics, at, first, subject), bound, lambda: _of_first(semantics, at, others, subject, names)
    )
    return made


def _bound(pattern: Pattern) -> set[str]:
    match pattern:
        case ("as", inner, name):
            return ({name} if name is not None else set()) | (set() if inner is None else _bound(inner))
        case ("sequence", patterns, _, name):
            return {name for name in (name,) if name is not None}.union(*map(_bound, patterns))
        case ("or", patterns) | ("mapping", _, patterns):
            return set().union(*map(_bound, patterns))
        case ("class", _, patterns, _, named):
            return set().union(*map(_bound, (*patterns, *named)))
    return set()


def _first(semantics: Any, at: Any, asked: Sequence[Callable[[], Any]]) -> Any:
    """Return whether any of these holds; they are asked in order."""
    one, *others = asked
    if not others:
        return _truth(semantics, at, one())
    return semantics.choose(at, one(), lambda: True, lambda: _first(semantics, at, others))


def _all(semantics: Any, at: Any, asked: Sequence[Callable[[], Any]]) -> Any:
    """Return whether all of these hold; they are asked in order."""
    if not asked:
        return True
    one, *others = asked
    return semantics.choose(at, one(), lambda: _all(semantics, at, others), lambda: False)


def _truth(semantics: Any, at: Any, value: Any) -> Any:
    """Return the truth of something: both ways of a decision have to be of one kind."""
    return semantics.not_(at, semantics.not_(at, value))


def _fits(semantics: Any, at: Any, pattern: Pattern, subject: Any) -> Any:
    """Return whether the subject is of the class, or the length, that a pattern asks for."""
    match pattern:
        case ("sequence", patterns, star, _):
            is_one = semantics.call(at, builtins.isinstance, (subject, Sequence), {})
            if is_one is not True or isinstance(subject, _NOT_SEQUENCES):
                return False
            length = semantics.call(at, len, (subject,), {})
            return semantics.compare(at, "==" if star is None else ">=", length, len(patterns))
        case ("mapping", keys, _):
            if semantics.call(at, builtins.isinstance, (subject, Mapping), {}) is not True:
                return False
            return all(key() in subject for key in keys)
        case ("class", cls, *_):
            return semantics.call(at, builtins.isinstance, (subject, _class(cls())), {})
    raise AssertionError(pattern)


def _class(cls: Any) -> type:
    if not isinstance(cls, type):
        raise TypeError("called match pattern must be a class")
    return cls


def _parts(semantics: Any, at: Any, pattern: Pattern, subject: Any) -> list[tuple[Pattern, Any]] | None:
    """Return the inner patterns of one that fits, each with its part of the subject; None if there is no such part."""
    match pattern:
        case ("sequence", patterns, star, _):
            before = len(patterns) if star is None else star
            places = [n if n < before else n - len(patterns) for n in range(len(patterns))]
            return [(one, semantics.item(at, subject, n)) for one, n in zip(patterns, places, strict=True)]
        case ("mapping", keys, patterns):
            return [(one, semantics.item(at, subject, key())) for one, key in zip(patterns, keys, strict=True)]
        case ("class", cls, patterns, names, named):
            positional: list[tuple[Pattern, Any]] | None = [(one, subject) for one in patterns]
            if len(patterns) != 1 or cls() not in _ITSELF:
                positional = _attributes(semantics, at, subject, patterns, _match_args(cls(), len(patterns)))
            keyword = _attributes(semantics, at, subject, named, names)
            return None if positional is None or keyword is None else [*positional, *keyword]
    raise AssertionError(pattern)


def _match_args(cls: Any, count: int) -> Sequence[str]:
    known = getattr(cls, "__match_args__", ()) if count else ()
    if len(known) < count:
        raise TypeError(f"{cls.__name__}() accepts {len(known)} positional sub-patterns ({count} given)")
    return tuple(known[:count])


def _attributes(
    semantics: Any, at: Any, subject: Any, patterns: Sequence[Pattern], names: Sequence[str]
) -> list[tuple[Pattern, Any]] | None:
    found = []
    for one, name in zip(patterns, names, strict=True):
        try:
            found.append((one, semantics.attr(at, subject, name)))
        except AttributeError:
            return None
    return found


def _middle(semantics: Any, at: Any, pattern: Pattern, subject: Any) -> Any:
    """Return what a star takes of a sequence."""
    _, patterns, star, _ = pattern
    after = len(patterns) - star
    if isinstance(subject, Sequence):
        return list(subject)[star : len(subject) - after]
    return semantics.item(at, subject, slice(star, -after if after else None))
