"""Containers that are changed and read in one call: dictionaries, sets, lists, deques and related containers."""

import collections

import torch

from tests.programs.harness import CALLS, Program, program


def inputs(count=CALLS, *shape):
    return [(torch.randn(*(shape or (4, 5))),) for _ in range(count)]


# -- dictionaries: keys, items, length, truth and membership after a change ----------------------------------------


@program()
def dict_read_after_new_key():
    table = {"a": 1.0, "b": 2.0}

    def step(x):
        table["new"] = x.sum().item()
        out = list(table), list(table.values()), len(table), "new" in table, bool(table)
        del table["new"]
        return out, list(table.items()), len(table), "new" in table

    return Program(step, inputs(), {5: lambda: table.update(a=5.0)}, state=table)


@program(compiles=3)
def dict_keys_changed_between_calls():
    table = {"a": 1, "b": 2}

    def step(x):
        table["c"] = 3
        total = sum(table.values())
        del table["c"]
        return x * total

    return Program(step, inputs(14), {7: lambda: table.update(z=9)}, state=table)


@program()
def dict_grows_and_known_keys_are_read():
    best = {"loss": 100.0}

    def step(x):
        best["calls"] = best.get("calls", 0) + 1
        best["loss"] = min(best["loss"], x.sum().item())
        return best["loss"], best["calls"]

    return Program(step, inputs(), {3: lambda: best.update(other=1), 5: lambda: best.update(more=2)}, state=best)


@program()
def dict_keyed_by_a_growing_counter():
    history = {}
    state = {"n": 0}

    def step(x):
        history[state["n"]] = x.sum().item()
        state["n"] += 1
        return len(history)

    return Program(step, inputs(14), state=(history, state))


@program()
def dict_of_two_counters_that_meet():
    table = {}
    state = {"n": 0, "m": 11}

    def step(x):
        table[state["n"]] = "n"
        table[state["m"]] = x.shape[0]
        state["n"] += 1
        return len(table), table[state["n"] - 1], state["n"] in table

    return Program(step, inputs(20), state=(table, state))


@program()
def set_of_a_growing_counter():
    seen = set()
    state = {"n": 0}

    def step(x):
        seen.add(state["n"])
        state["n"] += 1
        return len(seen), state["n"] in seen

    return Program(step, inputs(14), {9: lambda: seen.update((11, 12))}, state=(seen, state))


@program()
def dict_keyed_by_text_made_of_a_counter():
    history = {"best": 1.0}
    state = {"n": 0}

    def step(x):
        state["n"] += 1
        history[f"step{state['n']}"] = x.sum().item()
        history["best"] = history["best"] + 1
        return history["best"], state["n"]

    return Program(step, inputs(14), state=(history, state))


@program()
def dict_entry_of_the_last_call_read():
    table = {"n": 0, "last": None}

    def step(x):
        before = table["last"]
        table["last"] = x.mean(0)
        table["n"] += 1
        return x if before is None else x + before

    return Program(step, inputs(14), state=table)


@program()
def dict_delete_and_insert_changes_order():
    table = {"a": 1, "b": 2, "c": 3}

    def step(x):
        value = table.pop("a")
        table["a"] = value + 1
        order = list(table)
        value = table.pop("b")
        table["b"] = value
        value = table.pop("c")
        table["c"] = value
        return order, list(table), x * table["a"]

    return Program(step, inputs(), state=table)


@program()
def dict_popitem():
    stack = {"a": 1.0, "b": 2.0}

    def step(x):
        stack["top"] = x.sum().item()
        key, value = stack.popitem()
        other, old = stack.popitem()
        stack[other] = old + 1
        return key, value, other, len(stack)

    return Program(step, inputs(), state=stack)


@program()
def dict_update_in_all_ways():
    table = {"a": 1}

    def step(x):
        table.update({"b": x.shape[0]}, c=3)
        table.update([("d", 4), ("e", 5.0)])
        table.update(a=table["a"] + 1)
        table.update()
        return list(table.items())

    return Program(step, inputs(), state=table)


@program()
def dict_union_in_place():
    table = {"a": 1}
    other = {"a": 2, "k": 3}

    def step(x):
        nonlocal table
        table |= other
        table |= [("m", x.shape[0])]
        merged = table | {"z": 0}
        return list(table.items()), merged, {**table, "q": 1}

    return Program(step, inputs(), {6: lambda: other.update(k=4)}, state=(other,))


@program()
def dict_setdefault_lists():
    groups = {}

    def step(x):
        groups.setdefault("sums", []).append(x.sum().item())
        groups.setdefault("means", []).append(x.mean().item())
        return len(groups["sums"]), list(groups)

    return Program(step, inputs(), state=groups)


@program()
def dict_cleared_and_filled():
    table = {"a": 1, "b": 2}

    def step(x):
        table.clear()
        empty = not table, len(table)
        table["s"] = x.sum()
        table["m"] = x.mean()
        return empty, list(table), len(table), list(table.values())

    return Program(step, inputs(), {4: lambda: table.update(zz=1)}, state=table)


@program()
def dict_get_pop_with_defaults():
    table = {"a": 1}

    def step(x):
        a = table.pop("missing", 5)
        b = table.get("missing")
        table["b"] = 2
        c = table.pop("b"), table.pop("b", None), "b" in table
        try:
            table.pop("b")
        except KeyError as error:
            d = error.args
        try:
            del table["b"]
        except KeyError as error:
            e = error.args
        try:
            return table["b"]
        except KeyError as error:
            return a, b, c, d, e, error.args, x * 2

    return Program(step, inputs(), state=table)


@program()
def dict_of_equal_keys_of_other_types():
    table = {1: "int", 2: "two"}

    def step(x):
        table[1.0] = x.shape[0]
        table[True] = table[1] + 1
        return table[1], table[1.0], list(table), 2.0 in table, len(table)

    return Program(step, inputs(), state=table)


@program()
def dict_of_tuple_keys():
    table = {}
    state = {"n": 3}

    def step(x):
        table["a", 1] = table.get(("a", 1), 0) + 1
        table[("n", state["n"])] = x.sum().item()
        return ("a", 1) in table, len(table), table["n", 3]

    return Program(step, inputs(), state=(table, state))


@program()
def dict_views_kept_over_a_change():
    table = {"a": 1}

    def step(x):
        keys = table.keys()
        table["b"] = x.shape[0]
        seen = list(keys), len(keys), "b" in keys
        del table["b"]
        return seen, list(keys)

    return Program(step, inputs(), state=table)


@program()
def dict_changed_while_iterating():
    table = {"a": 1, "b": 2}

    def step(x):
        try:
            for key in table:
                table[key + "x"] = 1
        except RuntimeError as error:
            reported = str(error)
        del table["ax"]
        return reported, list(table), x + 1

    return Program(step, inputs(), state=table)


@program()
def dict_compared_and_copied_after_a_change():
    table = {"a": 1, "b": 2}

    def step(x):
        table["c"] = 3
        same = table == {"a": 1, "b": 2, "c": 3}, table != {"a": 1}
        copies = table.copy(), dict(table), {k: v for k, v in table.items() if v > 1}
        del table["c"]
        return same, copies, x * 2

    return Program(step, inputs(), state=table)


@program()
def dict_reversed_and_sorted():
    table = {"b": 2, "a": 1}

    def step(x):
        table["c"] = 0
        out = list(reversed(table)), sorted(table), sorted(table.items()), max(table), min(table.values())
        table.pop("c")
        return out, x

    return Program(step, inputs(), state=table)


@program()
def nested_dicts_made_on_the_way():
    stats = {}

    def step(x):
        layer = stats.setdefault("layer", {})
        layer["n"] = layer.get("n", 0) + 1
        layer.setdefault("sums", []).append(x.sum().item())
        return len(stats), list(stats["layer"]), stats["layer"]["n"]

    return Program(step, inputs(), state=stats)


# -- OrderedDict, defaultdict, Counter ------------------------------------------------------------------------------


@program()
def ordered_dict_move_to_end():
    cache = collections.OrderedDict(a=1, b=2, c=3)

    def step(x):
        cache.move_to_end("a")
        first = next(iter(cache))
        cache.move_to_end(first, last=False)
        cache.move_to_end("c", False)
        return list(cache), x * cache["a"]

    return Program(step, inputs(16), state=cache)


@program(compiles=4, speculated=5)
def ordered_dict_as_lru_cache():
    cache = collections.OrderedDict()

    def look(key, make):
        if key in cache:
            cache.move_to_end(key)
            return cache[key]
        cache[key] = make()
        if len(cache) > 2:
            cache.popitem(last=False)
        return cache[key]

    def step(x, key):
        return look(key, lambda: torch.ones(5) * len(key)) + x

    keys = ["a"] * 9 + ["bb", "a", "a", "a", "ccc", "a", "a", "a", "a"]
    return Program(step, [(torch.randn(4, 5), k) for k in keys], state=cache)


@program(speculated=4, compiles=3)
def ordered_dict_popitem_both_ends():
    queue = collections.OrderedDict(a=1.0, b=2.0, c=3.0)

    def step(x):
        key, value = queue.popitem(last=False)
        queue[key] = value + x.sum().item()
        last = queue.popitem()
        queue[last[0]] = last[1]
        return key, last[0], list(queue)

    return Program(step, inputs(), state=queue, before={})


@program()
def defaultdict_reads_make_entries():
    sums = collections.defaultdict(float)
    lists = collections.defaultdict(list)

    def step(x):
        sums["a"] += x.sum().item()
        sums["b"] -= 1
        lists["x"].append(x.shape[0])
        present = "nothing" in sums, sums.get("nothing")
        sums["made"]
        return list(sums), len(lists["x"]), present, next(iter(lists.items()))[0], len(sums)

    return Program(step, inputs(), state=(sums, lists))


@program(compiles=5)
def defaultdict_with_a_python_factory():
    state = {"made": 0}

    def make():
        state["made"] += 1
        return [state["made"], 0.0]

    table = collections.defaultdict(make)

    def step(x):
        entry = table["always"]
        entry[1] += x.sum().item()
        return entry[0], table["again"][0], state["made"]

    return Program(step, inputs(12), {6: table.clear}, state=(table, state))


@program()
def defaultdict_of_defaultdicts():
    table = collections.defaultdict(lambda: collections.defaultdict(int))

    def step(x):
        table["a"]["n"] += 1
        table["a"]["m"] += 2
        return table["a"]["n"], list(table), x

    return Program(step, inputs(), state=table)


class Missing(dict):
    made = 0

    def __missing__(self, key):
        type(self).made += 1
        self[key] = len(key)
        return self[key]


@program()
def subclass_with_missing():
    table = Missing()

    def step(x):
        total = table["abc"] + table["de"] + table["abc"]
        del table["de"]
        return x * total, Missing.made, list(table)

    return Program(step, inputs(), state=table)


@program()
def counter_update_subtract_most_common():
    seen = collections.Counter()

    def step(x):
        seen.update(["a", "b", "a"])
        seen["c"] += 4
        seen.subtract(b=1, c=1)
        seen.update({"a": 2})
        return seen.most_common(1), seen.most_common(), seen["nothing"], sum(seen.values())

    return Program(step, inputs(), state=seen)


@program()
def counter_arithmetic():
    seen = collections.Counter(a=3, b=1)

    def step(x):
        both = seen + collections.Counter(a=1, z=2)
        less = seen - collections.Counter(a=1)
        seen.update("ab")
        return both, less, seen["a"], x + seen["b"], seen & both, seen | less

    return Program(step, inputs(), state=seen)


@program()
def counter_in_place():
    seen = collections.Counter(a=3)

    def step(x):
        nonlocal seen
        seen += collections.Counter(b=1)
        seen -= collections.Counter(a=0)
        return dict(seen), x

    return Program(step, inputs())


@program()
def chain_map():
    low, high = {"a": 1, "b": 2}, {}
    both = collections.ChainMap(high, low)

    def step(x):
        both["a"] = both["a"] + 1
        return x * both["a"], both["b"], "c" in both, len(both), list(both)

    return Program(step, inputs(), state=(low, high))


# -- sets -----------------------------------------------------------------------------------------------------------


@program()
def set_changed_and_read():
    seen = {"a", "b"}

    def step(x):
        seen.add("c")
        seen.discard("zz")
        inside = "c" in seen, "d" in seen, len(seen), bool(seen), sorted(seen)
        seen.remove("c")
        return inside, "c" in seen, len(seen), x

    return Program(step, inputs(), state=seen)


@program()
def set_of_steps_seen():
    seen = set()
    state = {"n": 0}

    def step(x):
        state["n"] += 1
        seen.add("call")
        return len(seen), "call" in seen, x * state["n"]

    return Program(step, inputs(), state=seen)


@program()
def set_remove_raises():
    seen = {"a"}

    def step(x):
        try:
            seen.remove("b")
        except KeyError as error:
            reported = error.args
        return reported, x

    return Program(step, inputs(), state=seen)


@program()
def set_in_place_operators():
    seen, more = {1, 2}, {2, 3}

    def step(x):
        nonlocal seen
        seen |= more
        a = sorted(seen)
        seen -= {3}
        b = sorted(seen)
        seen ^= {9}
        c = sorted(seen)
        seen &= {1, 2}
        return a, b, c, sorted(seen), len(seen)

    return Program(step, inputs(), state=more)


@program()
def set_methods_in_place():
    seen = {1, 2, 3}

    def step(x):
        seen.update([4, 5], {6})
        a = sorted(seen)
        seen.difference_update([4], (5,))
        b = len(seen)
        seen.intersection_update({1, 2, 3, 6})
        seen.symmetric_difference_update({6})
        return a, b, sorted(seen), seen == {1, 2, 3}, x

    return Program(step, inputs(), state=seen)


@program()
def set_algebra_after_a_change():
    seen = {1, 2, 3}

    def step(x):
        seen.add(4)
        out = sorted(seen | {9}), sorted(seen & {4, 1}), sorted(seen - {1}), seen >= {1}, seen.isdisjoint({7})
        out = *out, sorted(seen.union([8])), seen.issubset({1, 2, 3, 4}), sorted(seen.copy())
        seen.discard(4)
        return out, x

    return Program(step, inputs(), state=seen)


@program()
def set_cleared():
    seen = {1, 2}

    def step(x):
        seen.clear()
        empty = not seen, len(seen)
        seen.add(x.shape[0])
        return empty, list(seen), x

    return Program(step, inputs(), {5: lambda: seen.add(77)}, state=seen)


@program(refused="the order of a set")
def set_iterated_after_a_change():
    seen = {"a", "b"}

    def step(x):
        seen.add("c")
        names = [name for name in seen]
        seen.remove("c")
        return names, x

    return Program(step, inputs(), state=seen)


@program(refused="the order of a set")
def set_pop():
    seen = {"a", "b"}

    def step(x):
        seen.add("c")
        return seen.pop(), x

    return Program(step, [(torch.ones(2),)] * 9, state=None)


# -- lists ----------------------------------------------------------------------------------------------------------


@program()
def list_every_mutation():
    items = [1, 2, 3]

    def step(x):
        items.append(4)
        items.extend((5, 6))
        items.insert(1, 9)
        a = list(items)
        items.remove(9)
        items.reverse()
        b = items[0], items[-1], len(items)
        del items[0]
        items.pop(0)
        items.pop()
        items.sort()
        c = items[:]
        items.clear()
        d = bool(items), items == []
        items.extend([1, 2, 3])
        return a, b, c, d, x * items[2]

    return Program(step, inputs(), state=items)


@program(speculated=6, compiles=3)
def list_slices_assigned_and_deleted():
    items = [1, 2, 3, 4]

    def step(x):
        items[1:3] = [7, 8, 9]
        a = list(items)
        del items[1:4]
        items[1:1] = [2, 3]
        items[::2] = [1, 3]
        b = list(items)
        del items[::2]
        items[:] = [1, 2, 3, 4]
        return a, b, x * items[3]

    return Program(step, inputs(), {6: lambda: items.reverse()}, state=items)


@program()
def list_sorted_by_changing_numbers():
    scores = [3.0, 1.0, 2.0]

    def step(x):
        scores[0] += 1.0
        scores.sort()
        order = sorted(range(3), key=lambda i: -scores[i])
        scores.sort(reverse=True)
        return scores[0], order, sorted(scores)[0], x * scores[-1]

    return Program(step, inputs(14), state=scores)


@program()
def list_sort_with_key():
    rows = [("b", 2.0), ("a", 1.0), ("c", 0.5)]

    def step(x):
        rows.sort(key=lambda row: row[1])
        first = rows[0]
        rows.sort(key=lambda row: row[0], reverse=True)
        return first, [r[0] for r in rows], x

    return Program(step, inputs(), state=rows)


@program()
def list_of_best_losses_kept_sorted():
    best = []

    def step(x):
        best.append(float(x.shape[0]))
        best.sort()
        del best[3:]
        return best[0], len(best)

    return Program(step, inputs(16), state=best)


@program()
def list_ring_buffer():
    ring = [0.0] * 4
    state = {"at": 0}

    def step(x):
        ring[state["at"] % 4] = x.sum().item()
        state["at"] += 1
        return state["at"]

    return Program(step, inputs(16), state=(ring, state))


@program(compiles=6, speculated=4)
def list_ring_buffer_read_back():
    ring = [0.0] * 2
    state = {"at": 0}

    def step(x):
        ring[state["at"] % 2] = x.sum().item()
        state["at"] += 1
        return ring[0], sum(ring), len(ring)

    return Program(step, inputs(16), state=(ring, state))


@program()
def list_stored_beyond_its_end():
    items = [0.0] * 12
    state = {"at": 0}

    def step(x):
        try:
            items[state["at"]] = x.sum().item()
        except IndexError as error:
            return str(error)
        finally:
            state["at"] += 1
        return len(items)

    return Program(step, inputs(18), state=(items, state))


@program()
def list_multiplied_and_added_in_place():
    items = [1, 2]

    def step(x):
        nonlocal items
        items *= 2
        a = list(items)
        items += (5,)
        items += [6]
        b = len(items), items.index(5), items.count(1), 6 in items
        del items[2:]
        return a, b, x

    return Program(step, inputs())


@program()
def list_store_then_read_by_other_index():
    items = [1.0, 2.0, 3.0]

    def step(x):
        items[-1] = x.sum().item()
        items[0] = 5
        a = items[2], items[-3], items[0]
        items[2] = 3.0
        return a, items[-1]

    return Program(step, inputs(), state=items)


@program()
def list_index_errors():
    items = [1]

    def step(x):
        reported = []
        for act in (lambda: items[3], lambda: items.pop(5), lambda: items.remove(9), lambda: items.index(9)):
            try:
                act()
            except (IndexError, ValueError) as error:
                reported.append((type(error).__name__, str(error)))
        try:
            items[3] = 1
        except IndexError as error:
            reported.append(str(error))
        try:
            del items[3]
        except IndexError as error:
            reported.append(str(error))
        return reported, x

    return Program(step, inputs(), state=items)


@program()
def list_of_lists():
    rows = [[1], [2, 3]]

    def step(x):
        rows[0].append(x.shape[0])
        rows.append(rows[0])
        out = len(rows[2]), rows[2] is rows[0], [len(r) for r in rows]
        rows.pop()
        rows[0].pop()
        return out, x

    return Program(step, inputs(), state=rows)


class Stack(list):
    pushes = 0

    def append(self, value):
        type(self).pushes += 1
        super().append(value)

    def pop(self, *args):
        type(self).pushes -= 1
        return super().pop(*args)


@program()
def subclass_of_list_with_own_methods():
    stack = Stack([1])

    def step(x):
        stack.append(x.shape[0])
        top = stack[-1], len(stack), Stack.pushes
        stack.append(9)
        return top, stack.pop(), stack.pop(), len(stack)

    return Program(step, inputs(), state=stack)


class Logged(dict):
    def __init__(self, *args):
        super().__init__(*args)
        self.log = []

    def __setitem__(self, key, value):
        self.log.append(key)
        super().__setitem__(key, value)

    def __getitem__(self, key):
        self.log.append(f"get {key}")
        return super().__getitem__(key)

    def __delitem__(self, key):
        self.log.append(f"del {key}")
        super().__delitem__(key)


@program()
def subclass_of_dict_with_own_methods():
    table = Logged({"a": 1})

    def step(x):
        table["b"] = table["a"] + x.shape[0]
        out = table["b"], list(table), len(table.log)
        del table["b"]
        return out, len(table)

    return Program(step, inputs(), state=table)


# -- deques ---------------------------------------------------------------------------------------------------------


@program()
def deque_every_mutation():
    window = collections.deque([1, 2, 3], maxlen=5)

    def step(x):
        window.append(4)
        window.appendleft(0)
        a = list(window)
        window.rotate(2)
        b = list(window), window[0], window[-1]
        window.rotate(-1)
        window.rotate()
        window.remove(4)
        window.reverse()
        c = list(window), len(window), 3 in window
        window.clear()
        window.extend([1, 2])
        window.insert(1, 9)
        del window[1]
        window[1] = 2
        window.extendleft([7])
        window.popleft()
        window.append(3)
        return a, b, c, x * window[2]

    return Program(step, inputs(), state=window)


@program()
def deque_window_that_is_full():
    window = collections.deque([0.0] * 3, maxlen=3)

    def step(x):
        window.append(x.sum().item())
        return sum(window) / len(window), max(window), window[0]

    return Program(step, inputs(), state=window)


@program()
def deque_queue():
    queue = collections.deque([torch.zeros(5)])

    def step(x):
        queue.append(x.mean(0))
        old = queue.popleft()
        return old, len(queue), bool(queue)

    return Program(step, inputs(), state=queue)


@program()
def deque_as_a_tensor():
    def step(rewards, w):
        returns, following = collections.deque(), 0.0
        for reward in rewards[::-1]:
            following = reward + 0.9 * following
            returns.appendleft(following)
        returns = torch.tensor(returns)
        return w * (returns - returns.mean()) / (returns.std() + 1e-6)

    return Program(step, [([0.5 * number, 1.0, number - 3.0, 0.25], torch.randn(4)) for number in range(CALLS)])


@program(compiles=3)
def deque_from_before_as_a_tensor():
    window = collections.deque([0.5] * 4, maxlen=4)

    def step(x):
        window.append(x.sum().item())
        return torch.tensor(window), torch.tensor(window, dtype=torch.float64).mean().item()

    return Program(step, inputs(14), {7: lambda: window.appendleft(3.5), 11: lambda: window.popleft()}, state=window)


@program()
def deque_of_sequences_and_the_classes_of_old():
    def step(x, rate):
        rows = collections.deque([(rate, 1.0), [2.0, rate]])
        return torch.tensor(rows) * x, x.new_tensor(rows), torch.FloatTensor(collections.deque([rate, rate + 1]))

    return Program(step, [(torch.randn(2, 2), 0.5 + number) for number in range(CALLS)])


@program()
def deque_that_an_operation_does_not_take():
    def step(x):
        try:
            return torch.stack(collections.deque([x, x]))
        except TypeError:
            return x + 1

    return Program(step, inputs())


# -- the same container on two paths --------------------------------------------------------------------------------


@program(compiles=3)
def same_list_passed_twice():
    def step(x, a, b):
        a.append(1)
        b.append(2)
        return len(a), len(b), a[-1], a is b, x

    calls = []
    for number in range(16):
        one, two = [0], [5]
        calls.append((torch.randn(3), one, one if number >= 8 else two))
    return Program(step, calls)


@program()
def argument_that_is_also_state():
    shared = {"n": 0}

    class Owner:
        pass

    owner = Owner()
    owner.table = shared

    def step(x, table):
        table["n"] += 1
        table["k"] = x.shape[0]
        out = owner.table["n"], list(owner.table)
        del owner.table["k"]
        return out, "k" in table

    return Program(step, [(torch.randn(3), shared) for _ in range(12)], state=owner)


@program(compiles=4)
def argument_that_becomes_state():
    class Owner:
        pass

    owner = Owner()
    owner.items = [0]

    def step(x, items):
        items.append(x.shape[0])
        return len(owner.items), len(items)

    calls = [(torch.randn(3), [1, 2] if number < 8 else owner.items) for number in range(16)]
    return Program(step, calls, state=owner)


@program()
def lists_swapped_between_owners():
    class Owner:
        pass

    owner = Owner()
    owner.now, owner.next = [1], [2, 3]

    def step(x):
        owner.next.append(x.shape[0])
        owner.now, owner.next = owner.next, owner.now
        owner.next.clear()
        return len(owner.now), owner.now[-1]

    return Program(step, inputs(14), state=owner)


# -- keys that are computed: which of them are equal decides ----------------------------------------------------------


@program(speculated=0, compiles=8)
def displays_with_computed_keys():
    state = {"n": 0}

    def step(x):
        state["n"] += 1
        n = state["n"]
        table, some = {n % 3: "a", n % 2: "b"}, {n % 3, n % 2}
        state["kept"] = {n % 3: 1, 0: 2}
        made = {k * n % 3: k for k in range(3)}
        return len(table), len(some), 1 in state["kept"], len(made), made, [*some], {**table, n % 2: "c"}, x

    return Program(step, inputs(20), state=state)


@program(speculated=1, compiles=8)
def displays_with_computed_keys_returned():
    state = {"n": 0}

    def step(x):
        state["n"] += 1
        return {state["n"] % 3: "a", state["n"] % 2: "b"}, {state["n"] % 3, state["n"] % 2}, x

    return Program(step, inputs(20), state=state)
