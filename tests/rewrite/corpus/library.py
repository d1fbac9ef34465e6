"""Pure-Python parts of the standard library, put to work."""

import argparse
import calendar
import collections
import configparser
import difflib
import fractions
import functools
import html.parser
import io
import json
import json.encoder
import pprint
import random
import shlex
import statistics
import string
import textwrap
import _pydecimal


def program_fractions():
    F = fractions.Fraction
    total = sum((F(1, n) for n in range(1, 15)), F(0))
    return total, total**2, -total, abs(F(-3, 4)), F("3/7") < F(0.5), 2 + F(1, 3), 1 / F(2, 5), F(7, 3) // 1, F(1, 2) == 0.5, round(total, 3)


def program_decimal():
    D = _pydecimal.Decimal
    with _pydecimal.localcontext() as context:
        context.prec = 40
        x = D(2).sqrt() + D("1.5") ** 3 - D(10).ln()
    return x, x.quantize(D("0.001")), D(1) / D(3), f"{x:.5f}", D("NaN") != D("NaN"), max(D(3), D(2))


def program_division_by_zero():
    return _pydecimal.Decimal(1) / _pydecimal.Decimal(0)


def program_argparse():
    parser = argparse.ArgumentParser("prog", description="A program.", exit_on_error=False)
    parser.add_argument("files", nargs="*")
    parser.add_argument("-n", "--number", type=int, default=3, help="a number (default: %(default)s)")
    parser.add_argument("--flag", action="store_true")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--a", choices=["x", "y"])
    group.add_argument("--b")
    sub = argparse.ArgumentParser("sub").add_subparsers(dest="command")
    sub.add_parser("go")
    out = [sorted(vars(parser.parse_args(["f", "g", "-n", "5", "--flag", "--a", "x"])).items()), parser.format_help()]
    try:
        parser.parse_args(["-n", "many"])
    except argparse.ArgumentError as error:
        out.append(str(error))
    return out


def program_text():
    text = "The quick brown fox jumps over the lazy dog. " * 4
    return (
        textwrap.fill(text, 30, initial_indent="* ", subsequent_indent="  "),
        textwrap.dedent("  a\n    b\n"),
        textwrap.shorten(text, 25),
        list(difflib.unified_diff("a b c d".split(), "a c d e".split(), lineterm="")),
        difflib.get_close_matches("appel", ["ape", "apple", "peach"]),
        shlex.split("a 'b c' d\\ e # no", comments=True),
        string.Template("$who likes ${what}").substitute(who="tim", what="kung pao"),
        string.Formatter().format("{0!r:>5}{x[k]}", "a", x={"k": 1}),
        string.capwords("some words"),
    )


def program_json():
    data = {"a": [1, 2.5, None, True], "b": {"c": "é\n"}, "d": []}
    encoder = json.encoder.JSONEncoder(indent=2, sort_keys=True)
    written = "".join(json.encoder._make_iterencode({}, encoder.default, json.encoder.py_encode_basestring, 1, float.__repr__, ": ", ",", True, False, False)(data, 0))
    return encoder.encode(data), written, json.loads(encoder.encode(data)) == data


def program_json_error():
    return json.loads('{"a": }')


def program_collections():
    chain = collections.ChainMap({"a": 1}, {"a": 2, "b": 3})
    user = collections.UserDict(x=1)
    user["y"] = 2
    user.update(z=3)
    words = collections.UserList([3, 1, 2])
    words.sort()
    counted = collections.Counter("abracadabra")
    counted.subtract("aab")
    return dict(chain), chain["b"], "a" in chain, dict(user), words + [4], counted.most_common(2), +counted, user.pop("x"), len(user)


def program_statistics():
    data = [random.Random(3).gauss(0, 1) for _ in range(20)]
    return statistics.mean(data), statistics.stdev(data), statistics.quantiles(data), statistics.median([1, 3, 2])


def program_random():
    r = random.Random(7)
    items = list(range(10))
    r.shuffle(items)
    return items, r.choices("abc", [1, 2, 3], k=5), r.sample(range(100), 4), r.randrange(5), r.betavariate(1, 2)


def program_configparser():
    parser = configparser.ConfigParser()
    parser.read_string("[one]\na = 1\nb = %(a)s2\n[two]\nc: yes\n")
    out = io.StringIO()
    parser.write(out)
    return parser["one"]["b"], parser.getboolean("two", "c"), parser.sections(), out.getvalue(), parser.has_option("one", "z")


def program_configparser_error():
    return configparser.ConfigParser().get("none", "x")


class Titles(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.found.append(data)


def program_html():
    titles = Titles()
    titles.feed("<h1 class='a'>One &amp; two</h1><br/><p>text")
    titles.close()
    return titles.found


def program_pprint_and_calendar():
    return pprint.pformat({"k": list(range(30)), "n": {"m": ("a" * 50, "b" * 50)}}, width=60), calendar.TextCalendar().formatmonth(2024, 2)


def program_total_ordering():
    @functools.total_ordering
    class Version:
        def __init__(self, text):
            self.parts = tuple(map(int, text.split(".")))

        def __eq__(self, other):
            return self.parts == other.parts

        def __lt__(self, other):
            return self.parts < other.parts

        def __repr__(self):
            return ".".join(map(str, self.parts))

    versions = [Version(t) for t in ("1.10", "1.9", "1.9.1")]
    return sorted(versions), versions[0] >= versions[1], max(versions), versions[1] <= versions[1], sorted(versions, reverse=True)
