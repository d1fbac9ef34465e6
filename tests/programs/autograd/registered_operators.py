"""Custom registered operators, TorchScript, and torch's own switches: no hook sees what they do."""

import itertools

import torch

from tests.operator_library import in_the_place_of, registered, scripted
from tests.programs.harness import Program, program

_NUMBERS = itertools.count()
_KNOWN_TO_NOBODY = "what its kernels do besides computing is known to nobody else"


def _inputs(n=8):
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(3, generator=generator),) for _ in range(n)]


def _custom(body):
    made = torch.library.custom_op(f"of_others_custom::op_{next(_NUMBERS)}", body, mutates_args=())
    made.register_fake(lambda x: torch.empty_like(x))
    return made


@program(refused=_KNOWN_TO_NOBODY)
def body_counts_and_the_count_is_read():
    n = [0]

    def body(x: torch.Tensor) -> torch.Tensor:
        n[0] += 1
        return x.clone()

    noisy = _custom(body)

    def step(x):
        return noisy(x) * n[0]

    return Program(step, _inputs(), state=n)


@program(refused=_KNOWN_TO_NOBODY)
def body_counts_and_gives_the_count():
    n = [0]

    def body(x: torch.Tensor) -> torch.Tensor:
        n[0] += 1
        return x * n[0]

    noisy = _custom(body)

    def step(x):
        return noisy(x) + 1

    return Program(step, _inputs(), state=n)


@program(refused=_KNOWN_TO_NOBODY)
def body_reads_what_the_step_writes():
    n = [0]

    def body(x: torch.Tensor) -> torch.Tensor:
        return x * n[0]

    reading = _custom(body)

    def step(x):
        n[0] += 1
        return reading(x) + 1

    return Program(step, _inputs(), state=n)


@program(refused=_KNOWN_TO_NOBODY)
def body_gives_nothing():
    kept = []

    @torch.library.custom_op(f"of_others_custom::keep_{next(_NUMBERS)}", mutates_args=())
    def keep(x: torch.Tensor) -> None:
        kept.append(float(x.sum()))

    def step(x):
        keep(x * 2)
        return x + len(kept)

    return Program(step, _inputs(), state=kept)


@program(refused=_KNOWN_TO_NOBODY)
def body_with_a_gradient_formula():
    n = [0]

    def body(x: torch.Tensor) -> torch.Tensor:
        n[0] += 1
        return x * 2

    def backward(ctx, grad):
        n[0] += 10
        return grad * 2

    doubled = _custom(body)
    doubled.register_autograd(backward)
    w = torch.ones(3, requires_grad=True)

    def step(x):
        w.grad = None
        doubled(w * x).sum().backward()
        return w.grad * n[0]

    return Program(step, _inputs(), state=(n, w))


@program(refused=_KNOWN_TO_NOBODY)
def kernel_registered_by_name():
    n = [0]

    def body(x):
        n[0] += 1
        return x.clone()

    ops = registered(f"of_others_{next(_NUMBERS)}", "noisy(Tensor x) -> Tensor", body, "CompositeExplicitAutograd")

    def step(x):
        return ops.noisy(x) * n[0]

    return Program(step, _inputs(), state=n)


@program(refused=_KNOWN_TO_NOBODY)
def kernel_made_of_others():
    n = [0]

    def body(x):
        n[0] += 1
        return x * 2

    ops = registered(f"of_others_{next(_NUMBERS)}", "noisy(Tensor x) -> Tensor", body, "CompositeImplicitAutograd")

    def step(x):
        return ops.noisy.default(x) * n[0]

    return Program(step, _inputs(), state=n)


@program(refused=_KNOWN_TO_NOBODY)
def called_like_a_question():
    n = [0]

    def body(x):
        n[0] += 1
        return x.clone()

    ops = registered(f"of_others_{next(_NUMBERS)}", "size(Tensor x) -> Tensor", body, "CompositeExplicitAutograd")

    def step(x):
        return ops.size(x) * n[0]

    return Program(step, _inputs(), state=n)


@program(refused=_KNOWN_TO_NOBODY)
def kernel_that_changes_its_argument():
    n = [0]

    def body(x):
        n[0] += 1
        x.add_(n[0])

    ops = registered(f"of_others_{next(_NUMBERS)}", "add_count_(Tensor(a!) x) -> ()", body, "CompositeExplicitAutograd")
    total = torch.zeros(3)

    def step(x):
        ops.add_count_(total)
        return x + total

    return Program(step, _inputs(), state=(n, total))


@program(refused=_KNOWN_TO_NOBODY)
def without_tensors():
    n = [0]

    def body(number):
        n[0] += number
        return n[0]

    ops = registered(f"of_others_{next(_NUMBERS)}", "count(int number) -> int", body, "BackendSelect")

    def step(x):
        return x * ops.count(2)

    return Program(step, _inputs(), state=n)


@program(refused="a function of Python's has been registered in its place")
def kernel_in_the_place_of_one_of_torchs():
    n = [0]

    def body(x):
        n[0] += 1
        return torch.sin(x)

    take_back = in_the_place_of("cosh", body)
    calls = _inputs()

    def step(x):
        return torch.cosh(x) * n[0]

    return Program(step, calls, before={len(calls) - 1: take_back}, state=n)


@program(speculated=5)
def operators_of_torchs_own_by_name():
    def step(x):
        return torch.ops.aten.mul.Tensor(x, x) + torch.ops.prims.sin(x) + torch.ops.aten.relu(x)

    return Program(step, _inputs())


@program(speculated=5)
def functions_that_no_list_of_torchs_names():
    def step(x):
        y = torch._softmax(x, 0, False)
        return torch.sin_(y.clone()) + torch.rand_like(x)

    return Program(step, _inputs())


# -- TorchScript -----------------------------------------------------------------------------------------------------


@program(refused="what TorchScript does is not watched")
def script_function():
    doubled = scripted(_doubled)

    def step(x):
        return doubled(x) + 1

    return Program(step, _inputs())


@program(refused="what TorchScript does is not watched")
def script_function_that_changes_a_tensor():
    grow = scripted(_grow)
    total = torch.zeros(3)

    def step(x):
        grow(total)
        return x * total

    return Program(step, _inputs(), state=total)


@program(refused="what TorchScript does is not watched")
def script_module():
    torch.manual_seed(0)
    net = scripted(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU()))

    def step(x):
        return net(x).detach()

    return Program(step, _inputs(), state=[p.detach() for p in net.parameters()])


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def _grow(x: torch.Tensor) -> None:
    x.add_(1)


@program(refused="calls torch.jit")
def forked_and_waited_for():
    n = [0]

    def work(x):
        n[0] += 1
        return x + 1

    def step(x):
        y = x * 2
        return torch.jit.wait(torch.jit.fork(work, y)) * n[0]

    return Program(step, _inputs(), state=n)


@program(refused="calls torch.jit")
def traced_by_torch_in_the_step():
    n = [0]

    def work(x):
        n[0] += 1
        return x + 1

    def step(x):
        y = x * 2
        return torch.jit.trace(work, y)(y) * n[0]

    return Program(step, _inputs(), state=n)


@program(refused="calls torch.fx")
def traced_by_fx_in_the_step():
    n = [0]

    def work(x):
        n[0] += 1
        return x + 1

    def step(x):
        y = x * 2
        return torch.fx.symbolic_trace(work)(y) * n[0]

    return Program(step, _inputs(), state=n)


# -- switches, questions, streams --------------------------------------------------------------------------------------


@program(refused="the call leaves a torch mode changed")  # on a GPU: calls torch._C._set_cudnn_benchmark
def switch_of_a_backend():
    def step(x):
        y = x + 1
        torch.backends.cudnn.benchmark = not torch.backends.cudnn.benchmark
        return y * 2

    def off():
        torch.backends.cudnn.benchmark = False

    return Program(step, _inputs(), before={0: off}, state=None)


@program(speculated=5)
def settings_of_a_backend_that_are_put_back():
    def step(x):
        with torch.backends.cudnn.flags(enabled=False, deterministic=True):
            loss = torch.nn.functional.ctc_loss(
                x.expand(4, 1, 3).log_softmax(-1), torch.tensor([[1, 2]]), torch.tensor([4]), torch.tensor([2])
            )
        return loss, torch.backends.cudnn.enabled

    return Program(step, _inputs())


@program(speculated=5)
def kernels_of_attention_are_chosen():
    kernels = torch.nn.attention.SDPBackend

    def step(x):
        q = x.reshape(1, 1, 3, 1).expand(2, 4, 3, 16) / 3
        with torch.nn.attention.sdpa_kernel(kernels.MATH):
            y = torch.nn.functional.scaled_dot_product_attention(q, q, q) * 2
        with torch.nn.attention.sdpa_kernel([kernels.FLASH_ATTENTION, kernels.MATH]):
            return y + torch.nn.functional.scaled_dot_product_attention(q, q, y)

    return Program(step, _inputs())


@program(speculated=8)
def kernels_of_attention_are_switched_off_between_calls():
    model = torch.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)

    def step(x):
        y = model(x.reshape(1, 3, 1).expand(2, 3, 16) / 3)
        y.sum().backward()
        return y.detach()

    def switch(on):
        torch.backends.cuda.enable_flash_sdp(on)

    changes = {0: lambda: switch(True), 5: lambda: switch(False), 12: lambda: switch(True)}
    return Program(step, _inputs(16), state=model, before=changes)


@program(refused="the call leaves a torch mode changed")
def kernels_of_attention_are_left_switched_off():
    def step(x):
        torch.backends.cuda.enable_math_sdp(not torch.backends.cuda.math_sdp_enabled())
        return x * 2

    return Program(step, _inputs(), before={0: lambda: torch.backends.cuda.enable_math_sdp(True)})


@program(speculated=5)
def what_there_is_is_asked():
    def step(x):
        if torch.cuda.is_available() or torch.backends.mps.is_available():
            return x
        return x * torch.get_num_threads() + torch.cuda.device_count()

    return Program(step, _inputs())


@program(speculated=5)
def streams_of_the_processor():
    stream = torch.cpu.Stream()

    def step(x):
        with torch.cpu.stream(stream):
            y = x + 1
        torch.cpu.synchronize()
        return y * 2

    return Program(step, _inputs())


@program(refused="it calls functions that are not watched")
def operator_that_calls_functions():
    def step(x):
        return torch.ops.higher_order.cond(x.sum() > 0, lambda x: x * 2, lambda x: x * 3, (x,))

    return Program(step, _inputs())
