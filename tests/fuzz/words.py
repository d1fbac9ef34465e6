"""Names that change, tables that are read by them, and histories that grow, for the made-up programs."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz.choices import Choices

__all__ = ["CHANGES", "STATE", "conditions", "numbers", "statements"]

Option = tuple[int, Callable[[], str]]

STATE = {
    "word": "'a'",
    "words": "['a', 'b', 'c', 'ab']",
    "rates": "{'a': 1.0, 'b': 0.5, 'c': 2.0, 'ab': 3}",
    "history": "[0.25 * i for i in range(12)]",
    "window": "collections.deque([1.0] * 9, maxlen=12)",
}

CHANGES = (
    "st.word = 'b'",
    "st.word = st.word + 'c'",
    "st.words = ['b', 'c', 'zz', 'a']",
    "st.rates.pop('ab', None)",
    "st.rates.update(zz=1, c=0.75)",
    "st.history.append(1)",
    "st.history[:] = [1.5] * 9",
    "st.window.clear()",
)


def _name(c: Choices, st: str) -> str:
    return c.pick((f"{st}.word", f"{st}.words[{st}.n % 4]", f"{st}.words[{st}.n % 3 - 2]", "'a'", f"{st}.word[:1]"))


def _index(c: Choices, st: str) -> str:
    return c.pick((f"{st}.n", f"{st}.n // 2", f"-1 - {st}.n % 3", f"{st}.n % 5", "-2"))


def numbers(c: Choices, st: str) -> list[Option]:
    """Numbers that are looked up, or computed from all there are."""
    return [
        (3, lambda: f"{st}.rates.get({_name(c, st)}, 0.5)"),
        (2, lambda: f"({st}.rates[{_name(c, st)}] if {_name(c, st)} in {st}.rates else 1.5)"),
        (2, lambda: f"{st}.history[min(len({st}.history) - 1, {st}.n)]"),
        (2, lambda: f"({st}.history[{_index(c, st)}] if len({st}.history) > 40 else 0.5)"),
        (2, lambda: f"{c.pick(('sum', 'min', 'max', 'len', 'math.fsum'))}({st}.history)"),
        (2, lambda: f"sum({st}.window) / max(len({st}.window), 1)"),
        (1, lambda: f"sum({st}.history[-{c.between(1, 4)}:])"),
        (1, lambda: f"len({_name(c, st)})"),
    ]


def conditions(c: Choices, st: str) -> list[Option]:
    """What decides by a name."""
    return [
        (2, lambda: f"{_name(c, st)} == {c.pick(('a', 'b', 'ab'))!r}"),
        (2, lambda: f"{_name(c, st)}.{c.pick(('startswith', 'endswith'))}({c.pick(('a', 'b'))!r})"),
        (1, lambda: f"{_name(c, st)} in {st}.rates"),
        (1, lambda: f"{_name(c, st)} in ('a', 'c')"),
        (1, lambda: f"not {_name(c, st)}"),
    ]


def statements(c: Choices, st: str, number: str, fresh: str) -> list[str]:
    """Some lines that change names, tables or histories."""
    options = [
        [f"{st}.word = {_name(c, st)}"],
        [f'{st}.word = f"{{{_name(c, st)}}}{c.pick(("", "b"))}"[-2:]'],
        [f"{st}.rates[{_name(c, st)}] = {number}"],
        [f"{fresh} = {_name(c, st)}", f"{st}.rates[{fresh}] = {st}.rates.get({fresh}, 0) * 0.5 + 1"],
        [f"{st}.rates.pop({_name(c, st)}, None)"],
        [f"{st}.history.append({number})"],
        [f"{st}.history.append(float({number}))", f"{st}.window.append({st}.history[-1])"],
        [f"{st}.window.append({number})"],
        [f"if len({st}.history) > 10:", f"    {st}.history.pop({c.pick(('', '0'))})"],
        [f"{st}.history[{c.pick(('0', '-1', f'{st}.n % 3'))}:] += [{number}]"],
        [
            f"match {c.pick((_name(c, st), f'{st}.n % 3', number))}:",
            f"    case {c.pick(('1', repr('a'), '1 | 2'))}:",
            f"        {st}.total = 0.5 * {st}.total + 1.0",
            f"    case {c.pick(('str()', 'float() | int()', repr('b')))}:",
            f"        {st}.total *= 0.5",
        ],
    ]
    return c.pick(options)
