"""Statements of the made-up programs: what changes state, decides, repeats, raises, prints and trains."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz import words
from tests.fuzz.choices import Choices
from tests.fuzz.expressions import KEYS, MODES, WIDTH, Expressions, Features, Scope

__all__ = ["Statements"]

Lines = list[str]


def indented(lines: Lines) -> Lines:
    return ["    " + line for line in lines]


class Statements:
    """Writes statements. Locals are numbered through the whole program: no name is used for two things."""

    def __init__(self, choices: Choices, features: Features, expressions: Expressions) -> None:
        self.choices = choices
        self.has = features
        self.write = expressions
        self._count = 0

    def fresh(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def block(self, scope: Scope, low: int, high: int) -> Lines:
        lines: Lines = []
        for _ in range(self.choices.between(low, high)):
            lines += self.statement(scope)
        return lines

    def statement(self, scope: Scope) -> Lines:
        has = self.has
        step = scope.inside == "step"
        top = scope.depth == 0
        nested = scope.depth < 3
        options: list[tuple[int, Callable[[Scope], Lines]]] = [
            (12, self.local_tensor),
            (4, self.local_number),
            (8, self.change_in_place),
            (6, self.state_number),
            (5, self.state_tensor),
            (3, self.emit),
            (6 * nested, self.branch),
            (3 * nested, self.loop),
            (1 * nested, self.with_block),
            (4 * (nested and has.raising), self.guarded),
            (2 * has.raising, self.raising),
            (2 * (nested and has.operation_errors), self.failing_operation),
            (8 * (has.lists or has.tensors_in_lists or has.deque), self.sequence),
            (6 * (has.table or has.tags or has.counter or has.ordered or has.defaults), self.mapping),
            (2 * (has.pair or has.record or has.slots), self.small_object),
            (2 * has.stream, self.stream),
            (2 * has.clock, self.clock),
            (2 * has.host_random, lambda s: [f"{s.state}.total = 0.5 * {s.state}.total + random.random()"]),
            (1 * (has.host_random and has.lists), lambda s: [f"random.shuffle({s.state}.items)"]),
            (2 * has.numpy, self.numpy),
            (8 * has.words, self.words),
            (8 * has.windows, self.windows),
            (6 * (has.module and step and top), self.train_module),
            (4 * (has.module and step), self.use_module),
            (6 * (has.weight and step and top), self.train_weight),
            (2 * (step and has.scale), lambda s: [f"scale = scale * 0.9 + {self.write.number(s)} * 0.01"]),
            (1, self.globals),
            (1 * (has.second and step), self.second),
            (
                3 * (scope.loops > 0),
                lambda s: [f"if {self.write.condition(s)}:", f"    {self.choices.pick(('continue', 'break'))}"],
            ),
            (1 * (scope.depth == 1 and step), self.early_return),
        ]
        return self.choices.weighted(options)(scope)

    # -- locals -------------------------------------------------------------------------------------------------------

    def local_tensor(self, scope: Scope) -> Lines:
        kind, text = self.write.any_tensor(scope)
        name = self.fresh(kind.lower())
        scope.add(kind, name)
        return [f"{name} = {text}"]

    def local_number(self, scope: Scope) -> Lines:
        name = self.fresh("n")
        text = self.write.number(scope, 2)
        scope.add("num", name)
        if self.choices.chance(25):
            other, more = self.fresh("n"), self.write.number(scope, 1)
            return [f"{name} = {text}", f"{name}, {other} = {more}, {name}"]
        return [f"{name} = {text}"]

    def change_in_place(self, scope: Scope) -> Lines:
        """An in-place operation on a tensor of this call, on the argument, or on a view of one of them."""
        c, write = self.choices, self.write
        kind = c.pick([k for k in ("M", "V", "S", "Q") if scope.of(k)] or ["V"])
        if not scope.of(kind):
            return [f"{scope.state}.buf.mul_(0.5)"]
        name = c.pick(scope.of(kind))
        number = write.number(scope)
        options = [
            lambda: [f"{name}.mul_({number})"],
            lambda: [f"{name}.add_({write.tensor(kind, scope, 1)})"],
            lambda: [f"{name}.add_({write.tensor(kind, scope, 1)}, alpha={number})"],
            lambda: [f"{name} += {write.tensor(kind, scope, 1)}"],
            lambda: [f"{name}.copy_({write.tensor(kind, scope, 1)})"],
            lambda: [f"{name}.clamp_(-2.0, 2.0)"],
            lambda: [f"{name}.zero_()"],
        ]
        if kind in ("M", "Q"):
            view = self.fresh("v")
            options += [
                lambda: [f"{name}[:, {c.below(WIDTH)}] = {number}"],
                lambda: [f"{name}[0] = {write.tensor('V', scope, 1)}"],
                lambda: [f"{name}[{name} < 0] = {number}"],
                lambda: [f"{view} = {name}[-1]", f"{view}.mul_({number})", *self._keep("V", view, scope)],
                lambda: [
                    f"{view} = {name}.view(-1)[:{WIDTH}]" if name != "x" else f"{view} = {name}.reshape(-1)[:{WIDTH}]",
                    f"{view}.add_({write.tensor('V', scope, 1)})",
                    *self._keep("V", view, scope),
                ],
                lambda: [f"{view} = {name}.t()[0]", f"{view}.sub_({number})"],
            ]
        if self.has.random:
            options += [lambda: [f"{name}.normal_()"], lambda: [f"{name}.uniform_(-1.0, 1.0)"]]
        return c.pick(options)()

    @staticmethod
    def _keep(kind: str, name: str, scope: Scope) -> Lines:
        scope.add(kind, name)
        return []

    # -- state --------------------------------------------------------------------------------------------------------

    def state_number(self, scope: Scope) -> Lines:
        c, st, number = self.choices, scope.state, self.write.number
        return c.weighted(
            [
                (5, lambda: [f"{st}.n += 1"]),
                (4, lambda: [f"{st}.total = 0.5 * {st}.total + {number(scope)}"]),
                (2, lambda: [f"{st}.lr *= {c.pick(('0.9', '0.5'))}"]),
                (2, lambda: [f"if {st}.best is None or {st}.best < {st}.n:", f"    {st}.best = {st}.n"]),
                (1, lambda: [f"{st}.flag = {self.write.condition(scope)}"]),
                (1, lambda: [f"{st}.mode = {c.pick(MODES)!r} if {self.write.condition(scope)} else {c.pick(MODES)!r}"]),
                (1, lambda: [f"{st}.extra_{c.below(2)} = {number(scope)}"]),
                (1, lambda: [f"if hasattr({st}, 'extra_0'):", f"    del {st}.extra_0"]),
                (1, lambda: [f"setattr({st}, 'total', getattr({st}, 'total') * 0.5)"]),
                (2 * (scope.inside != "method"), lambda: [f"{st}.bump({number(scope)})"]),
                (2, lambda: [f"{st}.level = {number(scope)}"]),  # a property
            ]
        )()

    def words(self, scope: Scope) -> Lines:
        return words.statements(self.choices, scope.state, self.write.number(scope), self.fresh("w"))

    def windows(self, scope: Scope) -> Lines:
        """Parts of a text, as wide as a number of the program says, at positions that tensors hold."""
        c, st = self.choices, scope.state
        at, name, i = self.fresh("at"), self.fresh("v"), self.fresh("i")
        wide = c.pick((str(WIDTH), f"({st}.n % 3 + 1)", f"{c.between(2, 6)}"))
        first = c.pick(("", "", "1 + ", "2 + "))
        part = f"TEXT[{first}{i} : {first}{i} + {wide}]" if c.chance(70) else f"TEXT[{i} : {i} + {wide} + 1]"
        high, count = c.pick((12, 40, 46)), c.pick(("2", "3", f"{st}.n % 3 + 1"))
        begin = [f"{at} = torch.randint({high}, ({count},)){c.pick(('', '', '.tolist()'))}"]
        scope.add("S", name)
        condition = self.write.condition(scope)
        loop = [
            f"{name} = torch.zeros(())",
            f"for {i} in {at}:",
            *c.pick(([], [], [f"    if {condition}:", f"        {c.pick(('continue', 'break'))}"])),
            f"    {name} = {name} + {part}.mean()",
        ]
        stacked = [f"{name} = torch.stack([{part}.sum() for {i} in {at}]).mean() * 0.1"]
        asked = [*loop, f"    if {part}.sum() > {c.between(-2, 2)}:", f"        {name} = {name} * 0.5"]
        return begin + c.weighted([(3, lambda: loop), (3, lambda: stacked), (2, lambda: asked)])()

    def state_tensor(self, scope: Scope) -> Lines:
        c, st, tensor = self.choices, scope.state, self.write.tensor
        return c.weighted(
            [
                (4, lambda: [f"{st}.buf.mul_(0.9).add_({tensor('V', scope)})"]),
                (3, lambda: [f"{st}.acc += {tensor('S', scope, 1)}"]),
                (3, lambda: [f"{st}.buf = {tensor('V', scope)}"]),
                (2, lambda: [f"{st}.acc = {tensor('S', scope)}"]),
                (2, lambda: [f"{st}.mat.copy_({tensor('Q', scope, 1)})"]),
                (1, lambda: [f"{st}.mat = {tensor('Q', scope)}"]),
                (2, lambda: [f"{st}.buf[{c.below(WIDTH)}] = {self.write.number(scope)}"]),
                (1, lambda: [f"{st}.mat[0] = {tensor('V', scope, 1)}"]),
                (1, lambda: [f"torch.add({tensor('V', scope, 1)}, 1.0, out={st}.out)"]),
                (1, lambda: [f"{st}.alias = {st}.buf"]),
                (1, lambda: [f"{st}.row = {st}.mat[1]"]),
                (1, lambda: [f"{st}.alias.mul_(0.5)"]),
                (1, lambda: [f"{st}.row.add_(1.0)"]),
            ]
        )()

    def sequence(self, scope: Scope) -> Lines:
        c, st, has = self.choices, scope.state, self.has
        number = self.write.number
        return c.weighted(
            [
                (4 * has.lists, lambda: [f"{st}.items.append({number(scope)})"]),
                (
                    3 * has.lists,
                    lambda: [f"if len({st}.items) > {c.between(3, 6)}:", f"    {st}.items.pop({c.pick(('0', ''))})"],
                ),
                (1 * has.lists, lambda: [f"{st}.items = {st}.items[-2:]"]),
                (1 * has.lists, lambda: [f"{st}.items = [v * 0.5 for v in {st}.items]"]),
                (1 * has.lists, lambda: [f"{st}.items.extend([{number(scope)}, 1.0])"]),
                (1 * has.lists, lambda: [f"{st}.items[0:1] = [{number(scope)}]"]),
                (1 * has.lists, lambda: [f"if {st}.items:", f"    {st}.items[-1] = {number(scope)}"]),
                (1 * has.lists, lambda: [f"{st}.items.insert(0, {number(scope)})", f"del {st}.items[3:]"]),
                (1 * has.lists, lambda: [f"{st}.items.{c.pick(('reverse', 'sort', 'clear'))}()"]),
                (
                    1 * has.lists,
                    lambda: [f"{st}.nested.append([{number(scope)}, {st}.items])", f"del {st}.nested[:-2]"],
                ),
                (3 * has.tensors_in_lists, lambda: [f"{st}.hist.append({self.write.tensor('V', scope)})"]),
                (
                    2 * has.tensors_in_lists,
                    lambda: [f"while len({st}.hist) > {c.between(2, 4)}:", f"    {st}.hist.pop(0)"],
                ),
                (1 * has.tensors_in_lists, lambda: [f"for h in {st}.hist:", "    h.mul_(0.5)"]),
                (1 * has.tensors_in_lists, lambda: [f"if {st}.hist:", f"    {st}.hist[0] = {st}.hist[-1]"]),
                (3 * has.deque, lambda: [f"{st}.recent.append({number(scope)})"]),
                (1 * has.deque, lambda: [f"if {st}.recent:", f"    {st}.total += {st}.recent.popleft() * 0.1"]),
                (1 * has.deque, lambda: [f"{st}.recent.rotate(1)"]),
                (1 * has.shared, lambda: [f"g_list.append({number(scope)})", "del g_list[:-4]"]),
            ]
        )()

    def mapping(self, scope: Scope) -> Lines:
        c, st, has = self.choices, scope.state, self.has
        number = self.write.number
        key = repr(c.pick(KEYS))
        return c.weighted(
            [
                (4 * has.table, lambda: [f"{st}.table[{key}] = {number(scope)}"]),
                (2 * has.table, lambda: [f"{st}.table['a'] += {number(scope)}"]),
                (1 * has.table, lambda: [f"{st}.table.pop('b', None)"]),
                (1 * has.table, lambda: [f"{st}.table.setdefault({key}, {number(scope)})"]),
                (1 * has.table, lambda: [f"{st}.table.update(c={number(scope)})"]),
                (1 * has.table, lambda: [f"{st}.table = {{k2: v2 * 0.5 for k2, v2 in {st}.table.items()}}"]),
                (
                    1 * has.table,
                    lambda: [f"for k2, v2 in {st}.table.items():", f"    {st}.total = 0.5 * {st}.total + v2"],
                ),
                (1 * has.table, lambda: [f"if 'c' in {st}.table:", f"    del {st}.table['c']"]),
                (3 * has.tags, lambda: [f"{st}.tags.{c.pick(('add', 'discard'))}({key})"]),
                (1 * has.tags, lambda: [f"{st}.tags |= {{{key}}}"]),
                (1 * has.tags, lambda: [f"{st}.total += len({st}.tags)"]),
                (2 * has.counter, lambda: [f"{st}.counts[{c.pick(('hit', 'miss'))!r}] += 1"]),
                (1 * has.counter, lambda: [f"{st}.counts.update([{key}])"]),
                (2 * has.ordered, lambda: [f"{st}.ordered[{key}] = {number(scope)}"]),
                (1 * has.ordered, lambda: [f"if {key} in {st}.ordered:", f"    {st}.ordered.move_to_end({key})"]),
                (2 * has.defaults, lambda: [f"{st}.sums[{key}] += {number(scope)}"]),
            ]
        )()

    def small_object(self, scope: Scope) -> Lines:
        c, st, has = self.choices, scope.state, self.has
        number = self.write.number
        return c.weighted(
            [
                (2 * has.pair, lambda: [f"{st}.pair = ({st}.pair[1], {number(scope)})"]),
                (1 * has.pair, lambda: [f"first, second = {st}.pair", f"{st}.total += 0.1 * (first - second)"]),
                (2 * has.record, lambda: [f"{st}.record = Record({number(scope)}, {st}.record.name)"]),
                (1 * has.record, lambda: [f"{st}.record.value += 1"]),
                (1 * has.record, lambda: [f"{st}.record = dataclasses.replace({st}.record, name={c.pick(KEYS)!r})"]),
                (2 * has.slots, lambda: [f"gauge.level = {number(scope)}"]),
                (1 * has.slots, lambda: ["gauge.level += 0.5"]),
            ]
        )()

    def globals(self, scope: Scope) -> Lines:
        return self.choices.weighted(
            [
                (2, lambda: [f"CONFIG['scale'] = {self.write.number(scope)}"]),
                (1, lambda: [f"State.made += {self.choices.between(1, 2)}"]),
                (1, lambda: ["set_scale(g_scale * 0.5)"]),
            ]
        )()

    def second(self, scope: Scope) -> Lines:
        return self.choices.pick(
            [
                lambda: ["other.n += 1"],
                lambda: ["other.buf.add_(1.0)"],
                lambda: [f"other.buf = {scope.state}.buf"],
                lambda: ["other.friend = st"],
                lambda: [f"other.total = {self.write.number(scope)}"],
            ]
        )()

    # -- control flow -------------------------------------------------------------------------------------------------

    def branch(self, scope: Scope) -> Lines:
        c = self.choices
        lines = [f"if {self.write.condition(scope)}:", *indented(self.block(scope.child(), 1, 2))]
        if c.chance(20):
            lines += [f"elif {self.write.condition(scope)}:", *indented(self.block(scope.child(), 1, 2))]
        if c.chance(50):
            lines += ["else:", *indented(self.block(scope.child(), 1, 2))]
        return lines

    def loop(self, scope: Scope) -> Lines:
        c, st, has = self.choices, scope.state, self.has
        inner = scope.child(loop=True)
        name = self.fresh("i")

        def over(kind: str, text: str) -> Lines:
            inner.add(kind, name)
            return [f"for {name} in {text}:", *indented(self.block(inner, 1, 2))]

        def over_two(first: str, text: str) -> Lines:
            second = self.fresh("i")
            inner.add("int", name)
            inner.add(first, second)
            return [f"for {name}, {second} in {text}:", *indented(self.block(inner, 1, 2))]

        def until() -> Lines:
            body = self.block(inner, 1, 2)
            return [f"{name} = 0", f"while {name} < {c.between(1, 3)}:", f"    {name} += 1", *indented(body)]

        def converging() -> Lines:
            value, limit = self.fresh("v"), c.pick(("0.5", "2.0"))
            start = self.write.tensor("V", scope, 1)
            inner.add("V", value)
            body = self.block(inner, 0, 1)  # which may make it larger again
            return [
                f"{value}, {name} = {start}.detach().clamp(-4.0, 4.0), 0",
                f"while {value}.abs().max() > {limit} and {name} < 6:",
                f"    {value}, {name} = {value} * {c.pick(('0.5', '0.25'))}, {name} + 1",
                *indented(body),
            ]

        lines: Lines = c.weighted(
            [
                (4, lambda: over("int", f"range({c.between(1, 3)})")),
                (2, until),
                (1, lambda: over("num", f"({self.write.number(scope)}, {self.write.number(scope)})")),
                (1 * has.lists, lambda: over("num", f"list({st}.items)[:5]")),
                (1 * has.lists, lambda: over_two("num", f"enumerate({st}.items[:2])")),
                (1 * has.table, lambda: over("text", f"sorted({st}.table)")),
                (1 * has.tensors_in_lists, lambda: over("V", f"list({st}.hist)[:5]")),
                (1 * has.deque, lambda: over("num", f"reversed({st}.recent)")),
                (1 * bool(scope.of("M")), lambda: over("V", f"{scope.of('M')[-1] if scope.of('M') else 'x'}")),
                (1 * has.periodic, lambda: over("int", f"range({st}.n % 3)")),
                (2 * has.data_loops, lambda: over("int", f"range({st}.n % {c.between(3, 6)} + {c.between(0, 2)})")),
                (2 * has.data_loops, converging),
                (1 * (has.data_loops and scope.inside == "step"), lambda: over("int", "range(x.shape[0])")),
            ]
        )()
        if c.chance(10):
            lines += ["else:", f"    {st}.total += 0.5"]
        return lines

    def with_block(self, scope: Scope) -> Lines:
        text = self.choices.weighted([(2, "torch.no_grad()"), (2, f"Section({scope.state})"), (1, "section_of(st)")])
        if scope.inside != "step" and text == "section_of(st)":
            text = "torch.no_grad()"
        return [f"with {text}:", *indented(self.block(scope.child(), 1, 2))]

    def early_return(self, scope: Scope) -> Lines:
        return [f"if {self.write.condition(scope)}:", f"    return {self.write.any_tensor(scope, 1)[1]}"]

    # -- exceptions ---------------------------------------------------------------------------------------------------

    def guarded(self, scope: Scope) -> Lines:
        c = self.choices
        inner = scope.child(guarded=True)
        lines = ["try:", *indented(self.block(inner, 1, 2)), *indented(self.raising(inner))]
        kind = c.pick(("Boom", "ValueError", "(Boom, KeyError)", "Exception"))
        lines += [f"except {kind} as error:", "    print('caught', error)", *indented(self.block(scope.child(), 0, 1))]
        if c.chance(30):
            lines += ["else:", *indented(self.block(scope.child(), 1, 1))]
        if c.chance(40):
            lines += ["finally:", *indented(self.block(scope.child(), 1, 1))]
        return lines

    def raising(self, scope: Scope) -> Lines:
        c, st = self.choices, scope.state
        rare = c.weighted(
            [
                (3, f"{st}.n == {c.between(5, 9)}"),
                (2, f"not {st}.flag"),
                (1, self.write.condition(scope)),
                (2 * (scope.guarded > 0), "True"),
            ]
        )
        what = c.weighted(
            [
                (3, "raise Boom('boom', 1)"),
                (2, f"raise ValueError({self.write.text(scope)})"),
                (1, f"raise KeyError({c.pick(KEYS)!r}) from None"),
                (1, f"assert {st}.n < 0, 'negative'"),
                (1, f"{st}.missing"),
                (1, "[][1]"),
            ]
        )
        if rare == "True":
            return [what]
        return [f"if {rare}:", f"    {what}"]

    def failing_operation(self, scope: Scope) -> Lines:
        """An operation that raises on particular values, or at once; its error handled, mostly."""
        c, st = self.choices, scope.state
        name = self.fresh("q")
        body = c.pick(
            [
                f"{name} = torch.linalg.cholesky({self.write.tensor('Q', scope, 1)})",
                f"{name} = {st}.buf[{st}.n]",
                f"{name} = 1.0 / ({st}.n - {c.between(4, 8)})",
                f"{name} = {st}.table2['zz']" if self.has.table else f"{name} = {st}.mat.item()",
                f"{name} = math.sqrt({self.write.number(scope)})",
                f"{name} = int({st}.mode)",
            ]
        )
        if c.chance(10):
            return [body]
        return [
            "try:",
            f"    {body}",
            "except Exception as error:",
            f"    {st}.total += 0.25",
            "    print(type(error).__name__)",
        ]

    # -- output and extern calls --------------------------------------------------------------------------------------

    def emit(self, scope: Scope) -> Lines:
        write = self.write
        return self.choices.weighted(
            [
                (3, lambda: [f"print({write.text(scope)}, {write.number(scope)})"]),
                (2, lambda: [f"print({write.text(scope)})"]),
                (1, lambda: [f"LOG.info('value %s', {write.number(scope)})"]),
                (1, lambda: [f"warnings.warn({self.choices.pick(KEYS)!r})"]),
            ]
        )()

    def stream(self, scope: Scope) -> Lines:
        return self.choices.weighted(
            [
                (3, lambda: [f"sink.write(str({self.write.number(scope)}) + '\\n')"]),
                (1, lambda: ["sink.flush()"]),
                (2, lambda: [f"print({self.write.text(scope)}, file=sink)"]),
                (2, lambda: ["line = source.readline()", f"{scope.state}.total += len(line)"]),
            ]
        )()

    def clock(self, scope: Scope) -> Lines:
        """A clock is read, and what depends on its value is not kept."""
        name = self.fresh("began")
        clock = self.choices.pick(("time.time", "time.perf_counter", "time.monotonic"))
        kept = scope.inside == "step"  # put back at the end of the step, whose result may still call a helper
        return self.choices.weighted(
            [
                (1, lambda: [f"{name} = {clock}()"]),
                (1, lambda: [f"{name} = {clock}()", *self.block(scope, 1, 1), f"assert {clock}() - {name} > -1.0"]),
                (1, lambda: [f"{name} = {clock}()", f"if {clock}() - {name} > 3600.0:", f"    {scope.state}.n += 100"]),
                (kept, lambda: [f"{name} = {clock}()", f"last_clock[0] = {clock}() - {name}"]),
            ]
        )()

    def numpy(self, scope: Scope) -> Lines:
        name = self.fresh("v")
        made = self.choices.weighted(
            [
                (2, f"{name} = torch.from_numpy(rng.standard_normal({WIDTH}).astype('float32'))"),
                (2, f"{name} = torch.tensor(np.random.rand({WIDTH}), dtype=torch.float32)"),
                (1, f"{name} = torch.as_tensor(rng.permutation({WIDTH})).float()"),
            ]
        )
        scope.add("V", name)
        return [made]

    # -- training -----------------------------------------------------------------------------------------------------

    def use_module(self, scope: Scope) -> Lines:
        name = self.fresh("m")
        argument = self.write.tensor("M", scope, 1)
        scope.add("M", name)
        if self.choices.chance(50):
            return ["with torch.no_grad():", f"    {name} = model({argument})"]
        return [f"{name} = model({argument}).detach()"]

    def _loss(self, scope: Scope, name: str, output: str) -> str:
        return self.choices.weighted(
            [
                (3, f"{name} = {output}.pow(2).mean()"),
                (2, f"{name} = F.mse_loss({output}, {self.write.tensor('M', scope, 1)})"),
                (1, f"{name} = ({output} * {self.write.number(scope)}).sum()"),
                (1, f"{name} = F.smooth_l1_loss({output}, torch.zeros_like({output}))"),
            ]
        )

    def train_module(self, scope: Scope) -> Lines:
        c = self.choices
        loss = self.fresh("loss")
        out = self.fresh("out")
        lines = [f"{out} = model({self.write.tensor('M', scope, 1)})", self._loss(scope, loss, out)]
        lines += c.weighted(
            [
                (4, ["opt.zero_grad()", f"{loss}.backward()", "opt.step()"]),
                (2, [f"{loss}.backward()", "opt.step()", "opt.zero_grad(set_to_none=False)"]),
                (1, [f"{loss}.backward()", "if st.n % 2 == 1:", "    opt.step()", "    opt.zero_grad()"]),
                (
                    1,
                    [
                        "opt.zero_grad()",
                        f"{loss}.backward()",
                        "nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
                        "opt.step()",
                    ],
                ),
                (
                    2,
                    [
                        f"{loss}.backward()",
                        "with torch.no_grad():",
                        "    for p in model.parameters():",
                        "        if p.grad is not None:",
                        "            p -= st.lr * p.grad",
                        "            p.grad = None",
                    ],
                ),
            ]
        )
        scope.add("S", f"l{loss[4:]}")
        lines.append(f"l{loss[4:]} = {loss}.detach()")
        if c.chance(30):
            lines.append(f"st.total = 0.5 * st.total + {loss}.item()")
        return lines

    def train_weight(self, scope: Scope) -> Lines:
        """A parameter updated by hand."""
        c = self.choices
        loss = self.fresh("loss")
        lines = [self._loss(scope, loss, f"({self.write.tensor('M', scope, 1)} * weight)"), f"{loss}.backward()"]
        lines += c.weighted(
            [
                (3, ["with torch.no_grad():", "    weight -= st.lr * weight.grad", "    weight.grad.zero_()"]),
                (3, ["with torch.no_grad():", "    weight.sub_(weight.grad, alpha=0.1)", "weight.grad = None"]),
                (
                    1,
                    [
                        "with torch.no_grad():",
                        "    velocity.mul_(0.9).add_(weight.grad)",
                        "    weight.add_(velocity, alpha=-0.1)",
                    ],
                ),
            ]
        )
        scope.add("S", f"l{loss[4:]}")
        return [*lines, f"l{loss[4:]} = {loss}.detach()"]
