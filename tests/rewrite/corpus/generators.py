"""Generators, coroutines, asynchronous generators and comprehensions."""

import asyncio
import contextlib

LOG = []


def count(n):
    LOG.append("start")
    try:
        for i in range(n):
            got = yield i
            if got:
                LOG.append(("got", got))
    except ValueError as error:
        LOG.append(str(error))
        yield "caught"
    finally:
        LOG.append("end")
    return n * 10


def program_generators():
    g = count(3)
    out = [next(g), g.send("hello"), list(g)]
    h = count(2)
    next(h)
    out.append(h.throw(ValueError("thrown")))
    h.close()
    i = count(5)
    next(i)
    i.close()
    return out, LOG, g.__name__, g.__qualname__, type(g).__name__


def delegating():
    result = yield from count(2)
    LOG.append(result)
    x = yield from [10, 20]
    return x, (yield "last")


def program_yield_from():
    g = delegating()
    out = []
    try:
        while True:
            out.append(g.send("s" if len(out) in (1, 4) else None))
    except StopIteration as stop:
        return out, stop.value, LOG


def program_yield_in_expressions():
    def g():
        x = (yield 1) + (yield 2)
        y = [(yield x), (yield 4)]
        z = (yield 5) and (yield 6) or (yield 7)
        d = {}
        d[(yield 8)] = yield 9
        (yield 10) and print("never")
        return x, y, z, d, f"{(yield 11)}", ((yield 12) if (yield 13) else (yield 14))

    it = g()
    sent, out = None, []
    try:
        for n in range(100):
            out.append(it.send(sent))
            sent = n
    except StopIteration as stop:
        return out, stop.value


def program_generator_error():
    def g():
        yield 1
        yield 1 / 0

    return [
        x
        for x in g()
    ]


def program_throw_traceback():
    def g():
        try:
            yield 1
        except KeyError as error:
            frames = []
            step = error.__traceback__
            while step:
                frames.append((step.tb_frame.f_code.co_name, step.tb_lineno))
                step = step.tb_next
            yield frames

    it = g()
    next(it)
    try:
        {}["x"]
    except KeyError as error:
        return it.throw(error)


def program_stop_iteration_in_generator():
    def g():
        yield next(iter([]))

    return list(g())


def program_abandoned_generator():
    def g():
        try:
            yield 1
            yield 2
        finally:
            LOG.append("closed")

    for x in g():
        LOG.append(x)
        break
    LOG.append("after")
    return LOG


def program_generator_loop_with_unpacking():
    def pairs():
        try:
            yield 1, (2, 3)
            yield 4, (5, 6)
        finally:
            LOG.append("closed")

    out = []
    for a, (b, *c) in pairs():
        out.append((a, b, c))
        if a == 1:
            continue
        break
    return out, LOG


async def sleeper(n):
    await asyncio.sleep(0)
    return n * 2


async def ticks(n):
    for i in range(n):
        await asyncio.sleep(0)
        try:
            yield i
        finally:
            LOG.append(f"tick {i}")


class Manager:
    async def __aenter__(self):
        LOG.append("aenter")
        return 1, 2

    async def __aexit__(self, kind, error, traceback):
        LOG.append(kind and kind.__name__)
        return kind is KeyError


@contextlib.asynccontextmanager
async def managed():
    LOG.append("in")
    try:
        yield "value"
    finally:
        LOG.append("out")


async def main():
    out = [await sleeper(2), await asyncio.gather(*(sleeper(n) for n in range(3)))]
    async for i in ticks(2):
        out.append(i)
    else:
        out.append("else")
    async with Manager() as (a, b), managed() as m:
        out += [a, b, m]
        raise KeyError
    out.append([x async for x in ticks(3) if x])
    out.append({x: await sleeper(x) for x in range(2)})
    out.append([y async for x in ticks(2) for y in ticks(x)])
    box = {}
    async for box["k"], *box["r"] in pairs():
        pass
    out.append(box)
    g = (await sleeper(x) for x in range(2))
    out.append([x async for x in g])
    x = 1 < await sleeper(1) < await sleeper(2) and await sleeper(3)
    return out, x


async def pairs():
    yield 1, 2, 3


def program_asyncio():
    return asyncio.run(main()), LOG


def program_async_error():
    async def inner():
        await asyncio.sleep(0)
        return {}["missing"]

    async def outer():
        return await inner()

    try:
        asyncio.run(outer())
    except KeyError as error:
        step, frames = error.__traceback__, []
        while step:
            if step.tb_frame.f_code.co_filename == __file__:
                frames.append((step.tb_frame.f_code.co_name, step.tb_lineno))
            step = step.tb_next
        return frames


def program_coroutine_by_hand():
    coroutine = sleeper(3)
    out = [type(coroutine).__name__, coroutine.__qualname__]
    try:
        while True:
            coroutine.send(None)
    except StopIteration as stop:
        return out, stop.value


def program_async_generator_by_hand():
    async def g():
        x = yield 1
        yield x

    async def use():
        it = g()
        out = [await it.__anext__(), await it.asend("sent")]
        await it.aclose()
        return out, [v async for v in it]

    return asyncio.run(use())


def program_await_a_number():
    async def f():
        return await 3

    return asyncio.run(f())


def program_contextvars():
    import contextvars

    var = contextvars.ContextVar("v", default=0)

    async def f(n):
        var.set(n)
        await asyncio.sleep(0)
        return var.get()

    async def g():
        return await asyncio.gather(f(1), f(2)), var.get()

    return asyncio.run(g())
