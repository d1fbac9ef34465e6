"""Steps of two processes that communicate, each run eagerly and speculated: a module, for it is imported by both."""

# No annotations as texts: torch compares those of communication hooks with classes.

import contextlib
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

import torchjanus
from tests.ranks import together

CALLS = 9
Made = tuple[Callable[..., Any], Callable[[], Any]]  # a step, and what it leaves behind
STEPS: dict[str, Callable[[], Made]] = {}


def step_of_two(make: Callable[[], Made]) -> Callable[[], Made]:
    STEPS[make.__name__] = make
    return make


def _net() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))


def _training(model: Any, before_the_update: Callable[[], Any] = lambda: None) -> Made:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        before_the_update()
        optimizer.step()
        return loss.detach()

    return step, lambda: [p.detach().clone() for p in model.parameters()]


@step_of_two
def data_parallel() -> Made:
    return _training(DistributedDataParallel(_net()))


def _deep(unused: bool = False, **options: Any) -> Any:
    """A model of several buckets, with buffers, and with a parameter that it does not use."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(3, 6), torch.nn.BatchNorm1d(6), torch.nn.Tanh(), torch.nn.Linear(6, 6)]
    net = torch.nn.Sequential(*layers, torch.nn.Tanh(), torch.nn.Linear(6, 2))
    net.register_parameter("unused", torch.nn.Parameter(torch.ones(3)) if unused else None)
    return DistributedDataParallel(net, bucket_cap_mb=0.00005, **options)


@step_of_two
def several_buckets_and_buffers() -> Made:
    model = _deep()
    step, parameters = _training(model)
    return step, lambda: (parameters(), [buffer.clone() for buffer in model.buffers()])


@step_of_two
def unused_parameters_are_found() -> Made:
    return _training(_deep(unused=True, find_unused_parameters=True))


@step_of_two
def unused_parameters_are_not_found() -> Made:
    """Eager raises in the second call: the first one has not reduced all gradients."""
    return _training(_deep(unused=True))


@step_of_two
def static_graph() -> Made:
    return _training(_deep(static_graph=True))


@step_of_two
def gradients_are_views_of_buckets() -> Made:
    return _training(_deep(gradient_as_bucket_view=True))


@step_of_two
def buffers_are_not_broadcast() -> Made:
    return _training(_deep(broadcast_buffers=False))


@step_of_two
def buckets_are_compressed() -> Made:
    """To float16: DistributedDataParallel allows bfloat16 with NCCL only."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    model = _deep()
    model.register_comm_hook(None, fp16_compress_hook)
    return _training(model)


@step_of_two
def gradients_are_added_up() -> Made:
    net = _net()

    def together() -> None:
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= 2

    return _training(net, together)


@step_of_two
def gradients_are_added_up_meanwhile() -> Made:
    net = _net()

    def together() -> None:
        handles = [dist.all_reduce(parameter.grad, async_op=True) for parameter in net.parameters()]
        for handle in handles:
            handle.wait()

    return _training(net, together)


@step_of_two
def gradients_are_accumulated() -> Made:
    model = DistributedDataParallel(_net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with model.no_sync():
            model(x[:2]).square().mean().backward()
        loss = model(x[2:]).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, lambda: [p.detach().clone() for p in model.parameters()]


@step_of_two
def gradients_are_accumulated_over_calls() -> Made:
    """The buckets are sorted after the third call."""
    model = DistributedDataParallel(_net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls = [0]

    def step(x: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        ends = calls[0] % 3 == 0
        with contextlib.nullcontext() if ends else model.no_sync():
            loss = model(x).square().mean()
            loss.backward()
        if ends:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return step, lambda: [p.detach().clone() for p in model.parameters()]


@step_of_two
def hook_on_communication() -> Made:
    model = DistributedDataParallel(_net())
    seen = [0]

    def hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        seen[0] += 1
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0] / 4)

    model.register_comm_hook(None, hook)
    step, parameters = _training(model)
    return step, lambda: (*parameters(), seen[0])


@step_of_two
def hook_on_the_gradients_of_parameters() -> Made:
    net = _net()

    def together(parameter: torch.Tensor) -> None:
        dist.all_reduce(parameter.grad)

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(together)
    return _training(net)


@step_of_two
def hook_beside_a_reducer() -> Made:
    model = DistributedDataParallel(_net())

    def together(parameter: torch.Tensor) -> None:
        dist.all_reduce(parameter.grad)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(together)
    return _training(model)


@step_of_two
def parameters_are_sent_around() -> Made:
    net = _net()
    step, parameters = _training(net)

    def sending(x: torch.Tensor) -> torch.Tensor:
        loss = step(x)
        with torch.no_grad():
            for parameter in net.parameters():
                dist.broadcast(parameter, src=0)
        return loss

    return sending, parameters


@step_of_two
def collectives_of_all_kinds() -> Made:
    kept: list[Any] = []

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        parts = [torch.empty_like(y) for _ in range(2)]
        dist.all_gather(parts, y)
        whole = torch.empty(8, 3)
        dist.all_gather_into_tensor(whole, y)
        least = parts[0] + parts[1]
        dist.all_reduce(least, op=dist.ReduceOp.MIN)
        dist.reduce(least, dst=0)
        objects: list[Any] = [None, None]
        dist.all_gather_object(objects, dist.get_rank() + len(kept))
        kept.append(sum(objects))
        dist.barrier()
        return whole.sum() + least * kept[-1]

    return step, lambda: list(kept)


@step_of_two
def shares_are_added_up() -> Made:
    def step(x: torch.Tensor) -> torch.Tensor:
        y = (x * 2).reshape(-1)
        share = torch.empty(6)
        dist.reduce_scatter_tensor(share, y)
        return share * 2

    return step, lambda: None


@step_of_two
def tensors_are_exchanged() -> Made:
    """Of a collective that gloo does not have, the error of eager."""
    rank = dist.get_rank()

    def step(x: torch.Tensor) -> list[torch.Tensor]:
        y = x * 2
        gathered = [torch.empty_like(y) for _ in range(2)] if rank == 0 else None
        dist.gather(y, gathered, dst=0)
        given = torch.empty(3)
        dist.scatter(given, [y[0], y[1]] if rank else None, src=1)
        swapped = torch.empty_like(y)
        dist.all_to_all_single(swapped, y)
        handle = dist.all_to_all_single(torch.empty_like(y), swapped + 1, async_op=True)
        handle.wait()
        return [given, swapped, *(gathered or [])]

    return step, lambda: None


@step_of_two
def lists_of_tensors_are_exchanged() -> Made:
    def step(x: torch.Tensor) -> list[torch.Tensor]:
        y = x * 2
        got = [torch.empty_like(y[:2]) for _ in range(2)]
        dist.all_to_all(got, [y[:2], y[2:]])
        share = torch.empty(2, 3)
        dist.reduce_scatter(share, [got[0] + 1, got[1]])
        return [*got, share]

    return step, lambda: None


@step_of_two
def objects_are_sent() -> Made:
    rank = dist.get_rank()

    def step(x: torch.Tensor) -> Any:
        y = x * 2
        objects = [{"rank": rank}, rank]
        dist.broadcast_object_list(objects, src=1)
        every: Any = [None, None] if rank == 0 else None
        dist.gather_object({"from": rank}, every)
        return y * objects[1], str(objects), str(every)

    return step, lambda: None


@step_of_two
def functional_collectives() -> Made:
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        total = functional.all_reduce(y, "sum", dist.group.WORLD)
        return total * 2 + y

    return step, lambda: None


@step_of_two
def functional_collectives_by_name() -> Made:
    name = dist.group.WORLD.group_name

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        total = torch.ops._c10d_functional.all_reduce(y, "sum", name)
        return torch.ops._c10d_functional.wait_tensor(total) * 2 + y

    return step, lambda: None


@step_of_two
def collectives_with_gradients() -> Made:
    import torch.distributed.nn.functional as differentiable

    w = torch.ones(3, requires_grad=True)

    def step(x: torch.Tensor) -> Any:
        w.grad = None
        differentiable.all_reduce(x * w).square().sum().backward()
        return w.grad

    return step, lambda: w.grad


@step_of_two
def metrics_are_averaged_behind_the_training() -> Made:
    net = _net()
    step, parameters = _training(net)
    seen: list[float] = []

    def measured(x: torch.Tensor) -> torch.Tensor:
        loss = step(x)
        mean = loss.clone()
        dist.all_reduce(mean)
        seen.append(float(mean) / dist.get_world_size())
        return loss

    return measured, lambda: (*parameters(), torch.tensor(seen))


@step_of_two
def who_there_is_is_asked() -> Made:
    net = _net()
    step, parameters = _training(net)

    def asking(x: torch.Tensor) -> torch.Tensor:
        if not (dist.is_available() and dist.is_initialized()):
            return x
        return step(x) * (1 + dist.get_rank()) / dist.get_world_size()

    return asking, parameters


@step_of_two
def store_of_both() -> Made:
    store, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        store.set(f"last {rank}", "a value")
        return y * store.add(f"count {rank}", 1) * len(store.get(f"last {rank}"))

    return step, lambda: None


@step_of_two
def numbers_are_sent() -> Made:
    """Point to point, in a group of its own, and with an in-place operation on what was given before."""
    group, rank = dist.new_group([0, 1]), dist.get_rank()

    def step(x: torch.Tensor) -> Any:
        y = x * 2
        got = torch.empty_like(y)
        if rank:
            dist.send(y, 0, group=group)
            source = dist.recv(got, 0, group=group)
        else:
            source = dist.recv(got, 1, group=group)
            dist.send(y, 1, group=group)
        y.mul_(source + 2)
        begun = dist.isend(y, 1 - rank), dist.irecv(got, 1 - rank)
        for handle in begun:
            handle.wait()
        return got * y, source

    return step, lambda: None


@step_of_two
def handle_outlives_the_step() -> Made:
    pending: list[Any] = []
    total = torch.zeros(3)

    def step(x: torch.Tensor) -> torch.Tensor:
        while pending:
            pending.pop().wait()
        result = total * 2
        total.add_(x.sum(0))
        pending.append(dist.all_reduce(total, async_op=True))
        return result

    def last() -> Any:
        while pending:
            pending.pop().wait()
        return total

    return step, last


@step_of_two
def autograd_follows() -> Made:
    w = torch.ones(3, requires_grad=True)

    def step(x: torch.Tensor) -> Any:
        y = (w * x).sum()
        dist.all_reduce(y)
        return y.detach() * 2

    return step, lambda: w.grad


@step_of_two
def sharded() -> Made:
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(_net())
    step, _ = _training(model)
    return step, lambda: [p.to_local().detach().clone() for p in model.parameters()]


@step_of_two
def distributed_tensors() -> Made:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    w = distribute_tensor(torch.randn(4, 3), mesh, [Shard(0)])

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return (w * 2).full_tensor() * y

    return step, lambda: None


def run(rank: int, store: str, names: list[str], changing: bool, results: str) -> None:
    """In each of both processes: run the steps, eagerly and speculated, and save (name, way, results, how many calls
    were served, what the report says), and the rows of ``_changed`` if ``changing``."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    rows: list[tuple[str, str, Any, int, str]] = []
    for name in names:
        for variant in ("eager", "speculated"):
            before = dist.distributed_c10d._get_default_store()
            with contextlib.suppress(RuntimeError):
                before.delete_key(f"count {rank}")
            dist.barrier()
            rows.append((name, variant, *_run(name, variant, rank)))
    torch.save((rows, list(_changed(rank)) if changing else []), f"{results}.{rank}")
    dist.destroy_process_group()


def _run(name: str, variant: str, rank: int) -> tuple[Any, int, str]:
    step, state = STEPS[name]()
    fast = torchjanus.speculate(step, executor="replay") if variant == "speculated" else step
    generator = torch.Generator().manual_seed(1 + rank)
    results: list[Any] = []
    for _ in range(CALLS):
        try:
            results.append(fast(torch.randn(4, 3, generator=generator)))
        except Exception as error:
            results.append(f"{type(error).__name__}: {error}")
    kept: Any = [r.detach().clone() if isinstance(r, torch.Tensor) else r for r in results]
    if variant == "eager":
        return (kept, state()), 0, ""
    return (kept, state()), fast.statistics().speculated, str(torchjanus.explain(fast, detail=True))  # type: ignore[attr-defined]


def _changed(rank: int) -> Iterator[tuple[str, list[Any], Any, int, int]]:
    """Steps that are served, until something else becomes true of their model: uneven batches under ``join()``, a hook
    for its buffers. Yield what changed, what they gave and left, eagerly and speculated, and how many calls were served
    before and after."""
    for change in ("join", "buffer hook"):
        for speculating in (False, True):
            model = _deep()
            step, parameters = _training(model)
            fast: Any = torchjanus.speculate(step, executor="replay") if speculating else step
            generator = torch.Generator().manual_seed(1 + rank)
            batches = [torch.randn(4, 3, generator=generator) for _ in range(20)]
            given = [fast(x) for x in batches[:8]]
            before = fast.statistics().speculated if speculating else 0
            if change == "join":
                with model.join():
                    given += [fast(x) for x in batches[8 : 11 + 3 * rank]]
            else:
                model._register_buffer_comm_hook(None, lambda *_: None)
                given += [fast(x) for x in batches[8:14]]
            after = fast.statistics().speculated - before if speculating else 0
            yield change, given, parameters(), before, after


def run_both(names: list[str], folder: Path, *, changing: bool = False) -> tuple[list[list[Any]], list[list[Any]]]:
    """Return both processes' rows of the steps, and those of what changes while steps are served."""
    store = tempfile.mktemp(dir=folder)
    results = str(folder / "results")
    together(run, (store, names, changing, results), 2)
    ranks = [torch.load(f"{results}.{rank}", weights_only=False) for rank in range(2)]
    return [rows for rows, _ in ranks], [rows for _, rows in ranks]
