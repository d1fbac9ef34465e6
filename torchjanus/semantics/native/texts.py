"""Texts made of tensors and numbers: expressions whose value is known when the graph has run.

A text shows a tensor as it was at that point of the program, with its history in eager. The graph gives the values; the
history (``grad_fn=<MulBackward0>``) is known from the watched run.
"""

from __future__ import annotations

import operator
import re
import string
import types
from collections.abc import Callable
from typing import Any

import torch

from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.rewrite.hooks.lookup import attributes_of
from torchjanus.semantics.containers.parts import plain_exception, unraised
from torchjanus.semantics.known.trusted import is_settled
from torchjanus.semantics.native.comparisons import generated_fields, has_python_method
from torchjanus.semantics.native.containers import CONTAINERS, WatchHooks
from torchjanus.semantics.native.shown_parts import SHOWN, ShownParts, text_by_python
from torchjanus.semantics.native.text_expressions import (
    as_dict,
    as_list,
    as_size,
    as_tuple,
    call_method,
    escaped,
    exception_of,
    filled,
    filled_by_one,
    formatted,
    history_of,
    joined,
    shown,
)
from torchjanus.semantics.record.recording import CONSTANT_TYPES, Recording
from torchjanus.semantics.torch.framework import FrameworkRecorder
from torchjanus.trace.values import (
    Apply,
    DisplayedValue,
    Fetch,
    Read,
    Traced,
    TracedStr,
    known_by_host,
    plain,
    symbol,
    trace_value,
)

__all__ = ["CONVERSIONS", "Texts"]

CONVERSIONS: dict[str, Callable[[Any], str]] = {"s": str, "r": repr, "a": ascii}

# Methods of texts that return a text and read nothing else.
_TEXT_METHODS = frozenset(
    """capitalize casefold center expandtabs ljust lower lstrip removeprefix removesuffix replace rjust rstrip strip
    swapcase title upper zfill""".split()
)
# Other methods of texts that raise on some texts.
_RAISING_METHODS = frozenset("encode format format_map index join partition rindex rpartition rsplit split".split())


class Texts(ShownParts):
    """Formatting for the native calls of one watched run."""

    def __init__(self, recording: Recording, framework: FrameworkRecorder, watch: WatchHooks) -> None:
        super().__init__(recording, framework, watch)
        self._shown: list[Any] = []  # dataclass instances whose text is being made

    # -- tensors --------------------------------------------------------------------------------------------------

    def describe(self, tensor: torch.Tensor) -> Apply | None:
        """Return the expression of a tensor that a text shows: its present value, its class and history. Refuse the
        trace and return None if its text cannot be known beforehand."""
        recording = self.recording
        ref = self.framework.ref(tensor, "str")
        with torch._C.DisableTorchFunction():
            history = history_of(tensor)
            plain_kind = is_one_of(type(tensor), (torch.Tensor, torch.nn.Parameter)) and tensor.layout == torch.strided
            special = tensor.is_quantized or tensor.is_nested or torch._C._functorch.maybe_get_level(tensor) != -1
        if recording.is_written(torch._tensor_str.PRINT_OPTS):
            recording.refuse(
                "print-options", "print options are changed inside the step", "texts are made at its end.", ""
            )
        if ref is None or history is None or special or not plain_kind:
            recording.refuse(
                "text-unwatched",
                f"a {type(tensor).__name__} is turned into text inside the step",
                "only the text of a plain tensor is known when the graph has run.",
                "Return the tensor and print it after.",
            )
            return None
        fetch = Fetch(ref.number, recording.ops, torch.Tensor)
        return Apply(shown, (fetch, type(tensor) is torch.nn.Parameter, history))

    def symbolic(self, value: Any, nested: bool = False) -> Any:
        """Return the expression of a part of a text, or ``value`` itself if nothing in it varies. ``nested``: it is
        part of something that varies, so it has to be read again."""
        if isinstance(value, Traced):
            return value.expr
        if isinstance(value, torch.Tensor):
            return self.describe(value)
        if not _holds(value, (torch.Tensor, *_TRACED), set()):
            return self._read_again(value) if nested else value
        if isinstance(value, BaseException):
            return self._exception(value)
        copy = self.consumed(value)
        if type(value) is dict:
            pairs = (self.symbolic(part, True) for pair in copy.items() for part in pair)
            return Apply(as_dict, tuple(pairs))
        made: Any = as_list if type(value) is list else as_tuple if type(value) is tuple else as_size
        return Apply(made, tuple(self.symbolic(p, True) for p in copy))

    def _exception(self, value: BaseException) -> Any:
        """Return the expression of an exception, whose text shows its arguments."""
        if plain_exception(type(value)) is not None:
            cls: Any = type(value)
            return Apply(exception_of(cls), tuple(self.symbolic(part, True) for part in value.args))
        for part in value.args:
            if isinstance(part, Traced):
                self.recording.pin(part, f"formatted by a {type(value).__name__}")
            elif _holds(part, (torch.Tensor, *_TRACED), set()):
                self._refuse_python_text(value, part)
        return value

    def _read_again(self, value: Any) -> Any:
        """Return a constant part of a text, or the access path of an object from before the call."""
        access_path = self.recording.owner(value)
        if access_path is not None:
            return Read(access_path)
        if not isinstance(value, (int, float, *CONSTANT_TYPES, list, tuple, dict)) and not is_settled(value):
            self.recording.refuse(
                "text-unwatched",
                f"a {type(value).__name__} made in this call is turned into text beside numbers that change",
                "its text is not known when the graph has run.",
                "Make its text first: f'{value}'.",
            )
        return value

    def described(self, value: Any) -> Any:
        """Return what a call that only shows its arguments is given at commit in place of ``value``."""
        if isinstance(value, Traced):
            return value
        if isinstance(value, BaseException) and self.recording.owner(value) is None:
            return unraised(value)
        expr = self.symbolic(value)
        return DisplayedValue(expr) if isinstance(expr, Apply) else value

    def made(self, text: Callable[[], str], func: Callable[..., Any], *parts: Any) -> str:
        """Return ``text()``, recorded as ``func(*parts)``. The text shows the tensors among the parts."""
        parts = tuple(map(self.read_for_text, parts))
        symbols = tuple(self.symbolic(part) for part in parts)
        with self.framework.showing([_parts(part) if isinstance(part, BaseException) else part for part in parts]):
            result = plain(text())
        if any(isinstance(s, Apply) or isinstance(p, Traced) for s, p in zip(symbols, parts, strict=True)):
            traced: str = self.recording.computed(result, func, *symbols)
            return traced
        return str(result)

    # -- operations that make texts ------------------------------------------------------------------------------------

    def _text(self, fn: Any, owner: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name == "join" and args:
            parts = list(self.recording.pin(self.consumed(args[0]), "its characters are taken"))
            if any(isinstance(p, TracedStr) for p in parts) and not isinstance(owner, Traced):
                text = owner.join(plain(p) for p in parts)
                return trace_value(text, Apply(joined, (owner, *(symbol(p) for p in parts))))
            return fn(parts)
        if name == "__mod__" and args and not isinstance(owner, Traced):
            return self.percent(owner, args[0])
        if name == "format" and not isinstance(owner, Traced):
            named = _named_in(owner, kwargs)
            given = tuple(map(self.read_for_text, (*args, *named.values())))
            if any(
                _holds(a, (torch.Tensor, *_TRACED), set()) or text_by_python(type(a)) or _shows_attributes(a)
                for a in given
            ):
                template, args, named = self._apply_python_fields(owner, args, named)
                names, values = tuple(named), (*args, *named.values())
                return self.made(
                    lambda: formatted(template, names, *map(plain, values)), formatted, template, names, *values
                )
            kwargs = named
        if isinstance(owner, TracedStr) and name in _TEXT_METHODS and not kwargs:
            method = getattr(str, name)
            given = tuple(self.recording.pin(a, f"given to {name}()") for a in args)
            return trace_value(method(plain(owner), *given), Apply(method, (owner.expr, *given)))
        if (isinstance(owner, Traced) or any(isinstance(a, Traced) for a in args)) and not kwargs:
            value = getattr(plain(owner), name)(*map(plain, args))
            if is_one_of(type(value), (str, int)):
                raises = name in _RAISING_METHODS
                return self.recording.computed(
                    value, call_method, name, symbol(owner), *map(symbol, args), risky=raises
                )
            symbols = (symbol(owner), *map(symbol, args))
            if type(value) is bool and all(known_by_host(s) for s in symbols):
                return self.recording.hold(Apply(call_method, (name, *symbols)), value)
        for value in (*args, *kwargs.values()):
            if _holds(self.read_for_text(value), torch.Tensor, set()):
                self.recording.refuse(
                    "text-unwatched",
                    f"a tensor is given to str.{name}()",
                    "how it is shown there is not known.",
                    "Use an f-string.",
                )
        self.recording.pin(owner, f"calls its method {name}")
        self._pin_all(args, kwargs)
        return fn(*map(plain, args), **{k: plain(v) for k, v in kwargs.items()})

    def percent(self, template: str, value: Any) -> Any:
        """Return ``template % value``."""
        if isinstance(value, dict) and "%(" in template:
            return self._percent_by_key(template, value)
        several = isinstance(value, tuple)  # named tuples, too
        parts = tuple(self.consumed(value)) if several else (value,)
        if any(text_by_python(type(part)) for part in parts):
            template, parts = self._apply_python_texts(template, parts)
        if _CONVERTS.search(template):
            self.refuse_python_methods(operator.mod, *(part for part in parts if not isinstance(part, CONTAINERS)))
        if several:
            return self.made(lambda: template % tuple(map(plain, parts)), filled, template, *parts)
        return self.made(lambda: operator.mod(template, plain(parts[0])), filled_by_one, template, *parts)

    def _percent_by_key(self, template: str, value: dict[Any, Any]) -> Any:
        if type(value) is dict:
            return self.made(lambda: operator.mod(template, plain(value)), filled_by_one, template, value)
        self.expose(self.read_for_text({**self.consumed(value)}))
        return template % value

    def _apply_python_texts(self, template: str, parts: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
        """Replace the parts whose text is made by Python code by these texts. Return the new template and parts."""
        pieces, given, at = [], list(parts), 0
        number = 0
        for found in _CONVERSION.finditer(template):
            how, kind = found.groups()
            number += how.count("*")
            replaced = kind in "sra" and number < len(given) and text_by_python(type(given[number]))
            if replaced:
                given[number] = self.watch.text(None, given[number], kind)
            pieces += [template[at : found.start()], f"%{how}{'s' if replaced else kind}"]
            at = found.end()
            number += kind != "%"
        return "".join([*pieces, template[at:]]), tuple(given)

    def _apply_python_fields(
        self, template: str, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        """Replace the arguments of ``format()`` whose text is made by Python code, as ``_apply_python_texts`` does."""
        python_texts = [
            part for part in (*args, *named.values()) if text_by_python(type(part)) or _shows_attributes(part)
        ]
        if not python_texts:
            return template, args, named
        if any("{" in (spec or "") for _, _, spec, _ in string.Formatter().parse(template)):
            self._refuse_python_text(python_texts[0], python_texts[0])
            return template, args, named
        pieces, shown, position = [], [], 0
        for literal, field, spec, conversion in string.Formatter().parse(template):
            pieces.append(literal.replace("{", "{{").replace("}", "}}"))
            if field is None:
                continue
            first = re.split(r"[.\[]", field, maxsplit=1)[0]
            place = int(first) if first.isdigit() else position
            position += not first
            if (place >= len(args)) if not first or first.isdigit() else (first not in named):
                return template, args, named  # format() raises
            part = args[place] if not first or first.isdigit() else named[first]
            replaced = text_by_python(type(part)) or _shows_attributes(part)
            if replaced and first != field:  # native code reads it unwatched
                self._refuse_python_text(part, part)
                return template, args, named
            if replaced:
                part, spec, conversion = self.watch.format(None, part, conversion or "", spec or ""), "", ""
            shown.append(part)
            pieces.append(
                f"{{{len(shown) - 1}{field[len(first) :]}{f'!{conversion}' if conversion else ''}:{spec or ''}}}"
            )
        return "".join(pieces), tuple(shown), {}

    def formatted(self, value: Any, spec: str) -> str:
        """Return ``format(value, spec)``."""
        spec = self.recording.pin(spec, "format specification")
        if isinstance(value, Traced | torch.Tensor | BaseException) or is_one_of(type(value), SHOWN):
            return self.made(lambda: format(plain(value), spec), format, value, spec)
        self.read_for_text(value)
        return format(value, spec)

    def as_text(self, value: Any, conversion: str) -> str:
        """Return ``str(value)``, ``repr(value)`` or ``ascii(value)``, given the first letter of the function."""
        if (names := generated_fields(type(value), "__repr__")) is not None:
            text = self._text_of_fields(value, names)
            return self.made(lambda: escaped(plain(text)), escaped, text) if conversion == "a" else text
        convert: Callable[[Any], str] = CONVERSIONS[conversion]
        if isinstance(value, Traced | torch.Tensor | BaseException) or is_one_of(type(value), SHOWN):
            return self.made(lambda: convert(plain(value)), convert, value)
        self.read_for_text(value)
        return convert(value)

    def _refuse_python_text(self, value: Any, part: Any) -> None:
        self.recording.refuse(
            "text-unwatched",
            f"a {type(value).__name__} that holds a {type(part).__qualname__} is turned into text",
            "the part's own text is made by Python code, which native code calls unwatched.",
            "Make the texts of its parts first: [str(part) for part in parts].",
        )

    def _text_of_fields(self, value: Any, names: tuple[str, ...]) -> str:
        """Return what a ``__repr__`` generated by ``dataclass`` returns."""
        if any(value is one for one in self._shown):
            return "..."
        self._shown.append(value)
        try:
            parts = [self.watch.text(None, part, "r") for part in self.fields(value, names)]
        finally:
            self._shown.pop()
        template = f"{type(value).__qualname__}({', '.join(f'{name}={{}}' for name in names)})"
        return self.made(lambda: template.format(*map(plain, parts)), str.format, template, *parts)


_CONVERSION = re.compile(
    r"%([#0\- +]*(?:\*|\d+)?(?:\.(?:\*|\d*))?)[hlL]?([a-zA-Z%])"
)  # a conversion in a template for %, without a key
_CONVERTS = re.compile(r"%(?:\([^)]*\))?[#0\- +*.\d]*[hlL]?[diouxXeEfFgGc]")  # to a number
_TRACED: tuple[type, ...] = Traced.__args__


def _named_in(template: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the named arguments that a template uses. The program may pass a whole ``__dict__``."""
    try:
        fields = [(field, spec or "") for _, field, spec, _ in string.Formatter().parse(template) if field is not None]
    except ValueError:  # format() itself raises the error
        return given
    if any("{" in spec for _, spec in fields):  # fields in the specifications of others
        return given
    asked = {re.split(r"[.\[]", field, maxsplit=1)[0] for field, _ in fields}
    return {name: value for name, value in given.items() if name in asked}


# Values whose attributes and items ``format()`` may show: they are read again, or are no variables of the program.
_KNOWN_FORMATS = (torch.Tensor, BaseException, type, types.ModuleType, types.FunctionType, *_TRACED)


def _parts(value: Any) -> Any:
    """Return the values that the text of a container or an exception shows."""
    if isinstance(value, BaseException):
        return value.args
    return [*value.keys(), *value.values()] if type(value) is dict else value


def _shows_attributes(value: Any) -> bool:
    """Whether it is an object of Python code whose attributes ``format()`` may show."""
    own = attributes_of(value) is not None and not isinstance(value, _KNOWN_FORMATS)
    return own or has_python_method(type(value), "__format__")


def _holds(value: Any, kinds: Any, seen: set[int]) -> bool:
    """Whether ``value``, or a builtin container within it, holds something of these kinds."""
    if isinstance(value, kinds):
        return True
    if not (is_one_of(type(value), SHOWN) or isinstance(value, BaseException)) or id(value) in seen:
        return False
    seen.add(id(value))
    return any(_holds(part, kinds, seen) for part in _parts(value))
