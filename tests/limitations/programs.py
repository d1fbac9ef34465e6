"""What is refused, one program for each refusal that the corpus does not pin: docs/limitations.md quotes them all."""

import abc
import array
import collections
import contextlib
import contextvars
import copy
import ctypes
import datetime
import functools
import io
import logging
import operator
import queue
import sys
import threading
import traceback
import types
import warnings
import weakref

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.operator_library import registered, scripted
from tests.programs.harness import CALLS, Program, program


def inputs(count=CALLS, *shape):
    return [(torch.randn(*(shape or (4, 5))),) for _ in range(count)]


# -- attributes and containers ------------------------------------------------------------------------------------


@program(refused="eig is differentiated, and its vectors are complex")
def complex_eigenvectors_differentiated():
    def step(x):
        matrix = x.detach().requires_grad_()
        values, vectors = torch.linalg.eig(matrix)
        (gradient,) = torch.autograd.grad(vectors.abs().sum() + values.abs().sum(), matrix)
        return gradient

    return Program(step, inputs(CALLS, 4, 4))


@program(refused="reads the Python attribute '__dict__' of a tensor")
def attributes_of_a_tensor_read():
    w = torch.ones(5)
    w.note = 3.0

    def step(x):
        return x * w.__dict__["note"]

    return Program(step, inputs())


@program(refused="sets the Python attribute 'note' of a tensor")
def attribute_of_a_tensor_set():
    w = torch.ones(5)

    def step(x):
        w.note = 2
        return x * w

    return Program(step, inputs())


@program(refused="is a parameter or buffer that is not initialized yet")
def parameter_that_is_never_initialized():
    w = torch.nn.UninitializedParameter()

    def step(x):
        return x * (w is None)

    return Program(step, inputs(), state=[])


@program(refused="deletes the attribute 'note' of a tensor")
def attribute_of_a_tensor_deleted():
    w = torch.ones(5)

    def step(x):
        del w.note
        return x * w

    def note():
        w.note = 1

    return Program(step, inputs(), dict.fromkeys(range(CALLS), note))


@program(refused="deletes the variable 'k' of an enclosing function unseen")
def variable_of_an_enclosing_function_deleted():
    k = 1

    def put():
        nonlocal k
        k = 1

    def step(x):
        nonlocal k
        del k
        return x * 2

    return Program(step, inputs(), dict.fromkeys(range(CALLS), put))


@program(refused="uses a timezone that native code has given as a key")
def native_object_as_a_key():
    def step(x):
        zones = {datetime.timezone(datetime.timedelta(hours=hours)) for hours in (1, 1, 2)}
        return x * len(zones)

    return Program(step, inputs())


@program(refused="uses a new new_object_as_a_key.<locals>.Key as a key")
def new_object_as_a_key():
    class Key:
        def __init__(self, k):
            self.k = k

        def __eq__(self, other):
            return self.k == other.k

        def __hash__(self):
            return hash(self.k)

    table = {}

    def step(x):
        table[Key(1)] = 2
        return x * len(table)

    return Program(step, inputs())


@program(refused="a dictionary or set asks a key_that_counts.<locals>.Key for its hash")
def key_that_counts():
    class Key:
        asked = 0

        def __hash__(self):
            Key.asked += 1
            return 1

    key = Key()
    table = {key: 2}

    def step(x):
        return x * table[key]

    return Program(step, inputs())


@program(refused="asks hook_that_counts.<locals>.Kind for its kinds")
def hook_that_counts():
    class Kind(abc.ABC):
        asked = 0

        @classmethod
        def __subclasshook__(cls, other):
            Kind.asked += 1
            return NotImplemented

    def step(x):
        return x + isinstance(3, Kind)

    return Program(step, inputs())


class Weight:
    """Asked for its number by Python code, by whoever computes with it."""

    def __init__(self, k=0):
        self.k = k

    def __eq__(self, other):
        return self.k == getattr(other, "k", other)

    def __lt__(self, other):
        return self.k < getattr(other, "k", other)

    def __hash__(self):
        return hash(self.k)

    def __repr__(self):
        return f"weight {self.k}"


@program(refused="native code asks a list for what only Python code answers")
def objects_compared_in_native_code():
    weight = Weight()

    def step(x):
        weight.k += 1
        return x * operator.countOf([weight], 6)

    return Program(step, inputs(), state=weight)


@program(refused="a Weight is turned into text by native code")
def list_of_objects_turned_into_text():
    weight = Weight()

    def step(x):
        weight.k += 1
        return x * len(str([weight]))

    return Program(step, inputs(), state=weight)


@program(refused="locals()")
def all_variables_asked_for():
    def step(x):
        k = 2
        return x * len(locals()) * k

    return Program(step, inputs())


@program(refused="leaves the step: it holds itself")
def tuple_that_holds_itself():
    def step(x):
        parts = [x + 1]
        whole = (parts, 2)
        parts.append(whole)
        return whole

    return Program(step, inputs())


@program(refused="was changed by code that is not watched")
def changed_behind_the_step():
    state, asked, done = {"k": 1.0}, queue.Queue(), queue.Queue()

    def serve():
        while asked.get():
            state["k"] += 1
            done.put(True)

    threading.Thread(target=serve, daemon=True).start()

    def step(x):
        before = state["k"]
        asked.put(True)
        done.get()
        return x * before * state["k"]

    return Program(step, inputs())


# -- tensors --------------------------------------------------------------------------------------------------------


@program(refused="a tensor of type Tagged")
def subclass_of_tensor():
    class Tagged(torch.Tensor):
        pass

    w = torch.ones(5).as_subclass(Tagged)

    def step(x):
        return (x * w).sum().item()

    return Program(step, inputs())


@program(refused="is changed in place with gradients")
def input_changed_with_gradients():
    w = torch.ones(5, requires_grad=True)

    def step(x):
        x += w
        return x.detach() * 2

    return Program(step, inputs())


@program(refused="gradients flow into")
def gradients_leave_the_step():
    w = torch.ones(5, requires_grad=True)

    def step(x):
        x.sum().backward()
        return 1

    calls = [((torch.randn(5) * w),) for _ in range(CALLS)]
    return Program(step, calls, state=w)


@program(refused="shares its memory")
def argument_that_shares_memory():
    w = torch.zeros(10)

    def step(x):
        w.add_(1)
        return x * 2

    return Program(step, [(w[k % 3 : 5 + k % 3],) for k in range(CALLS)])


@program(refused="a tensor passed in shares memory with one that the step changes in place")
def argument_beside_what_changes():
    w = torch.zeros(10)
    direction = w[:5]

    def step(x):
        direction.add_(1)
        return x * 2

    return Program(step, [(w[5:],) for _ in range(CALLS)], state=direction)


@program(refused="holds a tensor made in this very call")
def tensor_stored_by_native_code():
    state = {"y": torch.ones(5)}
    put = ctypes.pythonapi.PyDict_SetItem
    put.argtypes = [ctypes.py_object] * 3

    def step(x):
        y = x * 2
        put(ctypes.py_object(state), "y", y)
        return state["y"] + 1

    return Program(step, inputs(), state=state)


@program(refused="two results overlap in memory")
def results_of_nothing_known_that_overlap():
    def step(x):
        y = x.flatten() + 1
        return y[:6].detach(), y[3:9].detach()

    return Program(step, inputs())


@program(refused="Tensor.untyped_storage inside the step")
def storage_of_a_tensor():
    def step(x):
        y = x * 2
        return y, y.untyped_storage().nbytes()

    return Program(step, inputs())


@program(refused="Tensor.resize_ inside the step")
def resized_in_place():
    def step(x):
        y = x * 2
        y.resize_(2, 5)
        return y

    return Program(step, inputs())


@program(refused="copy.deepcopy() of a tensor that is a part of another")
def tensor_deep_copied():
    def step(x):
        return copy.deepcopy(x[:2]) * 2

    return Program(step, inputs())


@program(refused="Tensor.data_ptr inside the step")
def address_of_a_tensor():
    def step(x):
        return x * 2, x.data_ptr() % 1

    return Program(step, inputs())


@program(refused="Tensor.storage inside the step")
def typed_storage_of_a_tensor():
    def step(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return x * 2, x.storage().nbytes()

    return Program(step, inputs())


@program(refused="Tensor.__dlpack__ inside the step")
def memory_by_dlpack():
    def step(x):
        return torch.from_dlpack(x) * 2

    return Program(step, inputs())


@program(refused="Tensor.share_memory_ inside the step")
def memory_shared_between_processes():
    def step(x):
        y = x * 2
        y.share_memory_()
        return y

    return Program(step, inputs())


@program(refused="Tensor.set_ inside the step")
def storage_replaced():
    def step(x):
        y = x * 2
        y.set_(x.clone())
        return y

    return Program(step, inputs())


@program(refused="Tensor.untyped_storage inside the step")
def tensor_pickled():
    def step(x):
        return len(x.__reduce_ex__(2)) + x.sum()

    return Program(step, inputs())


@program(refused="a new Tagged leaves the step")
def subclass_of_tensor_returned():
    class Tagged(torch.Tensor):
        pass

    def step(x):
        return Tagged(x + 1) * 2

    return Program(step, inputs())


@program(refused="Tensor.as_subclass inside the step")
def tensor_given_another_class():
    class Tagged(torch.Tensor):
        pass

    def step(x):
        return (x + 1).as_subclass(Tagged)

    return Program(step, inputs())


@program(refused="tolist() gives complexs")
def list_of_complex_numbers():
    def step(x):
        return torch.complex(x, x).tolist()

    return Program(step, inputs(CALLS, 3))


@program(refused="Tensor.equal returns a bool")
def python_result_that_depends_on_data():
    def step(x):
        if torch.Tensor.equal(x, x):
            return x * 2
        return x

    return Program(step, inputs())


@program(refused="meets a tensor of one")
def fetched_number_meets_a_small_tensor():
    w = torch.ones((), dtype=torch.float16)

    def step(x):
        return w * x.sum().item()

    return Program(step, inputs())


@program(refused="reads a tensor that it has changed earlier in its list")
def foreach_over_aliases():
    def step(x):
        a, b = x[0] + 1, x[1] + 1
        torch._foreach_add_([a, b], [b, a])
        return a, b

    return Program(step, inputs())


# -- texts ----------------------------------------------------------------------------------------------------------


@program(refused="a tensor is given to str.format_map()")
def tensor_in_format_map():
    def step(x):
        return "{a}".format_map({"a": x})

    return Program(step, inputs())


@program(refused="is turned into text inside the step")
def text_of_a_sparse_tensor():
    def step(x):
        return str(x.to_sparse())

    return Program(step, inputs())


@program(refused="print options are changed inside the step")
def print_options_changed():
    def step(x):
        torch.set_printoptions(precision=2)
        text = str(x)
        torch.set_printoptions(precision=4)
        return text

    return Program(step, inputs())


@program(refused="warns in its caller's name")
def warning_in_the_callers_name():
    def step(x):
        warnings.warn("slow", stacklevel=2)
        return x * 2

    return Program(step, inputs())


@program(refused="logs in its caller's name")
def log_in_the_callers_name():
    log = logging.getLogger("program")

    def step(x):
        log.info("slow", stacklevel=2)
        return x * 2

    return Program(step, inputs())


@program(refused="asks for the error that is being handled")
def traceback_as_a_text():
    def step(x):
        try:
            raise ValueError("no")
        except ValueError:
            print(traceback.format_exc().splitlines()[-1])
        return x * 2

    return Program(step, inputs())


# -- native code ----------------------------------------------------------------------------------------------------


@program(refused="is called in the middle of the step, and may read")
def generator_that_may_read_what_was_written():
    state = {"k": 0.0}

    def batches():
        while True:
            yield torch.ones(5) * state["k"]

    source = batches()

    def step(x):
        state["k"] += 1.0
        return x * next(source)

    return Program(step, inputs(), state=state)


def own_log(name, emit):
    handler, log = logging.Handler(), logging.getLogger(f"limits.{name}")
    handler.emit = emit
    log.handlers[:], log.propagate = [handler], False
    log.setLevel(logging.INFO)
    return log


@program(refused="is read after logging.Logger.info, which may have changed it")
def a_count_of_the_lines_that_a_handler_has_seen():
    seen = []
    log = own_log("seen", lambda record: seen.append(record.getMessage()))

    def step(x):
        log.info("a")
        return x * len(seen)

    return Program(step, inputs(), state=seen)


@program(refused="is called in the middle of the step, and may change a list that the step has read before it")
def generator_that_changes_what_was_read():
    seen = [0.0]

    def batches():
        while True:
            seen[0] += 1.0
            yield torch.ones(5)

    source = batches()

    def step(x):
        before = seen[0]
        return x * next(source) + before

    return Program(step, inputs(), state=seen)


@program(refused="a tensor that logging.Logger.info may look at is changed later in the step")
def a_handler_that_shows_a_tensor():
    total, seen = torch.zeros(()), []
    log = own_log("total", lambda record: seen.append(total.item()))

    def step(x):
        log.info("a")
        total.add_(x.sum())
        return x * 2

    return Program(step, inputs(), state=(total, seen))


@program(refused="may run code of the program's own that sets modes of torch")
def a_handler_that_sets_a_mode():
    log = own_log("mode", lambda record: torch.set_grad_enabled(True))

    def step(x):
        log.info("a")
        return x * 2

    return Program(step, inputs())


@program(refused="an error goes through 'with' of a")
def error_through_a_native_context():
    lock = threading.Lock()

    def step(x):
        with contextlib.suppress(ValueError), lock:
            raise ValueError("no")
        return x * 2

    return Program(step, inputs())


@program(refused="reads ctx.")
def context_asked_for_more():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.name_of_it = ctx.name()
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    w = torch.ones(5, requires_grad=True)

    def step(x):
        w.grad = None
        Double.apply(x * w).sum().backward()

    return Program(step, inputs(), state=w)


# -- steps -----------------------------------------------------------------------------------------------------------


@program(refused="reads a weak reference that was there before the call")
def weak_proxy_of_a_set():
    kept = {1, 2}
    proxy = weakref.proxy(kept)

    def step(x):
        total = x
        for k in proxy:
            total = total * k
        return total + len(proxy)

    return Program(step, inputs(), state=kept)


@program(refused="reads a weak reference that was there before the call")
def weak_proxy_of_a_dictionary():
    kept = collections.OrderedDict(k=2)
    proxy = weakref.proxy(kept)

    def step(x):
        proxy["n"] = proxy["k"] + 1
        return x * proxy["n"]

    return Program(step, inputs(), state=kept)


def _grows(received, size_of, grow):
    """Return a program whose step takes a view of ``received`` and changes its size."""

    def step(x):
        size = size_of(received)
        grow(received)
        return x * size

    return Program(step, inputs(), state=received)


@program(refused="uses a memoryview of memory whose size may change")
def view_of_a_bytearray_that_grows():
    return _grows(bytearray(b"abc"), lambda b: memoryview(b).nbytes, lambda b: b.extend([1]))


@program(refused="uses a memoryview of memory whose size may change")
def view_of_an_array_that_grows():
    return _grows(array.array("b", [1, 2]), lambda b: len(memoryview(b)[1:].cast("B")), lambda b: b.append(1))


@program(refused="uses a memoryview of memory whose size may change")
def view_of_a_file_in_memory_that_grows():
    return _grows(io.BytesIO(b"abc"), lambda b: b.getbuffer().nbytes, lambda b: b.write(b"abcde"))


@program(refused="uses a ndarray of memory whose size may change")
def array_over_a_bytearray_that_grows():
    return _grows(bytearray(b"abc"), lambda b: int(np.frombuffer(b, np.uint8).sum()), lambda b: b.extend([1]))


@program(refused="uses a memoryview of memory whose size may change")
def view_that_the_step_drops():
    received = bytearray(b"abc")

    def step(x):
        view = memoryview(received)
        size = view.nbytes
        view = None  # or the bytes could not grow
        received.append(1)
        return x * size

    return Program(step, inputs(), state=received)


@program(refused="reads the attribute 'scale' of a GenericAlias")
def attribute_through_a_generic_alias():
    class Batch:
        scale = 2.0
        __class_getitem__ = classmethod(types.GenericAlias)

    alias = Batch[int]

    def step(x):
        return x * alias.scale

    return Program(step, inputs())


@program(refused="takes the length of a Context")
def length_of_a_context():
    context = contextvars.copy_context()

    def step(x):
        return x * len(context)

    return Program(step, inputs())


@program(refused="iterates over a Context")
def variables_of_a_context():
    context = contextvars.copy_context()

    def step(x):
        return x * sum(1 for _ in context)

    return Program(step, inputs())


@program(refused="deletes an item of a WeakKeyDictionary")
def item_deleted_from_a_weak_dictionary():
    key = Meter(1)
    table = weakref.WeakKeyDictionary()

    def step(x):
        del table[key]
        return x * 2

    def put():
        table[key] = 1

    return Program(step, inputs(), dict.fromkeys(range(CALLS), put))


@program(refused="computes a number by more than 200 operations of Python")
def long_row_of_operations():
    state = {"k": 1.0}

    def step(x):
        k = state["k"]
        for _ in range(2000):
            k = k * 1.0001
        state["k"] = k % 3
        return x * k

    return Program(step, inputs(), state=state)


@program(refused="takes a Index")
def index_of_ones_own():
    class Index:
        def __index__(self):
            return 1

    one = Index()

    def step(x):
        return x[one] * 2

    return Program(step, inputs())


class Cache:
    """Gives out a tensor that no program can find: it is in a list that only a native function knows."""

    cached = functools.lru_cache(torch.ones)  # not the program's own function


@program(refused="uses a tensor of unknown origin")
def tensor_out_of_a_cache():
    def step(x):
        return x * Cache.cached(5)

    return Program(step, inputs())


@program(refused="a tensor leaves the step that no watched operation made")
def tensor_out_of_a_cache_returned():
    def step(x):
        return x * 2, Cache.cached(5)

    return Program(step, inputs())


@program(refused="with layout torch.sparse_coo is read")
def sparse_tensor():
    def step(x):
        return torch.sparse.mm(EYE, x.T)

    return Program(step, inputs())


EYE = torch.eye(5).to_sparse()


@program(refused="a tensor is kept that belongs to a transform of torch.func")
def tensors_of_a_transform_that_are_kept():
    seen = {"w": None}

    def step(x):
        def loss(w):
            seen["w"] = w * 2
            print("somebody may look")
            seen["w"] = None
            return (x @ w).pow(2).sum()

        return torch.func.grad(loss)(torch.ones(5))

    return Program(step, inputs(), state=seen)


@program(refused="gives a tensor with layout torch.sparse_coo")
def sparse_gradients():
    table = torch.nn.Embedding(9, 3, sparse=True)
    opt = torch.optim.SparseAdam(table.parameters())

    def step(x):
        loss = table(x[0].abs().long()).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return Program(step, inputs(), state=table)


@program(refused="text made of")
def text_of_a_number_decides():
    def step(x):
        name = f"{x.sum().item():.3f}"
        return x * (2 if name.startswith("-") else 3)

    return Program(step, [(torch.ones(3),) for _ in range(CALLS)])


@program(refused="a Meter made in this call is turned into text beside numbers that change")
def object_in_a_text():
    def step(x):
        return "%s %s" % (1, [Meter(3), x.sum().item()])

    return Program(step, inputs())


class Meter:
    def __init__(self, k):
        self.k = k

    def __repr__(self):
        return f"<{self.k}>"


@program(
    speculated=1, reported="a backward pass with create_graph=True goes through the results of a graph", close=1e-5
)
def gradients_of_gradients_outside():
    w = torch.ones(5, requires_grad=True)

    def penalty(loss):
        (grad,) = torch.autograd.grad(loss, w, create_graph=True)
        (loss + grad.square().sum()).backward()

    return Program(lambda x: (w * x).sin().sum(), inputs(), between=penalty, state=w)


@program(refused="a tensor leaves the step with its backward pass still to come, and")
def a_view_of_what_needs_gradients():
    w = torch.ones(5, requires_grad=True)
    return Program(lambda x: (x, w[1:]), inputs(), state=w)


@program(refused="is given a tensor with a backward graph")
def native_code_given_a_backward_graph():
    w = torch.ones(5, requires_grad=True)
    kept = queue.SimpleQueue()

    def step(x):
        kept.put(x * w)
        return 1

    return Program(step, inputs(), state=w)


@program(refused="gives back a tensor that was made in this call")
def native_code_gives_a_tensor_back():
    kept = queue.SimpleQueue()

    def step(x):
        kept.put(x * 2)
        return kept.get() + 1

    return Program(step, inputs())


@program(refused="native code works with a tensor of the step that it was not given")
def generator_that_works_with_the_model():
    w = torch.ones(5)

    def work():
        while True:
            yield (w * 2).sum().item()

    source = work()

    def step(x):
        y = x * w
        return y * next(source)

    return Program(step, inputs(), state=w)


@program(refused="a list changes after native code was given it")
def list_that_changes_after_native_code_got_it():
    kept = queue.SimpleQueue()

    def step(x):
        parts = [1]
        kept.put(parts)
        parts.append(2)
        return x * len(parts)

    return Program(step, inputs())


@program(refused="a tensor that .put was given is changed later in the step")
def tensor_that_changes_after_native_code_got_it():
    kept = queue.SimpleQueue()

    def step(x):
        y = x * 2
        kept.put(y)
        y.add_(1)
        return y

    return Program(step, inputs())


@program(refused="a Function returns a tensor of unknown origin")
def function_that_returns_a_tensor_out_of_a_cache():
    class Cached(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return Cache.cached(5)

        @staticmethod
        def backward(ctx, grad):
            return grad

    w = torch.ones(5, requires_grad=True)

    def step(x):
        w.grad = None
        (Cached.apply(w) * x).sum().backward()

    return Program(step, inputs(), state=w)


@program(refused="autograd calls the step's code in a thread of its own")
def backward_within_backward_many_times():
    class Deep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, depth):
            ctx.depth = depth
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            if ctx.depth:
                with torch.enable_grad():
                    y = torch.ones(5, requires_grad=True)
                    Deep.apply(y, ctx.depth - 1).sum().backward()
            return grad * 2, None

    w = torch.ones(5, requires_grad=True)

    def step(x):
        w.grad = None
        Deep.apply(w * x, 70).sum().backward()

    return Program(step, inputs(), state=w)


@program(refused="changes a tensor in a way that cannot be held back")
def operator_of_its_own_that_changes_its_argument():
    def step(x):
        y = x * 2
        torch.ops.torchjanus.doubled_in_tests_(y)
        return y

    return Program(step, inputs())


def _define_double():
    if not hasattr(torch.ops.torchjanus, "doubled_in_tests_"):

        @torch.library.custom_op("torchjanus::doubled_in_tests_", mutates_args={"x"})
        def double_(x: torch.Tensor) -> None:
            x.mul_(2)


_define_double()


@program(refused="calls the operator torchjanus_tests_of_limits::double_")
def custom_operator_that_changes_its_argument():
    def body(x):
        x.mul_(2)

    ops = registered("torchjanus_tests_of_limits", "double_(Tensor(a!) x) -> ()", body)

    def step(x):
        y = x * 2
        ops.double_(y)
        return y

    return Program(step, inputs())


@program(refused="processes communicate there")
def new_store_of_processes():
    def step(x):
        y = x * 2
        torch.distributed.HashStore()
        return y * 2

    return Program(step, inputs(), state=None)


@program(refused="what TorchScript does is not watched")
def script_function():
    doubled = scripted(_doubled)

    def step(x):
        y = x * 2
        return doubled(y) * 2

    return Program(step, inputs())


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@program(refused="it calls functions that are not watched")
def operator_that_calls_functions():
    def step(x):
        y = x * 2
        return torch.ops.higher_order.cond(y.sum() > 0, lambda y: y * 2, lambda y: y * 3, (y,))

    return Program(step, inputs())


@program(refused="a hook is registered on the node of autograd that adds to the gradient of")
def hook_on_a_node_of_autograd():
    w = torch.ones(5, requires_grad=True)
    node = w.view_as(w).grad_fn.next_functions[0][0]
    node.register_hook(lambda *_: None)
    NODES.append(node)

    def step(x):
        w.grad = None
        (w * x).sum().backward()

    return Program(step, inputs(), state=w)


NODES = []


@program(refused="cannot be rewritten")
def step_without_source():
    namespace = {"__name__": "made"}
    exec("def step(x):\n    return x * 2\n", namespace)
    return Program(namespace["step"], inputs())


@program(refused="the step is a generator")
def step_is_a_generator(jit):
    @jit
    def rows(x):
        yield x * 2

    return Program(lambda x: list(rows(x)), inputs())


# -- steps that never settle -----------------------------------------------------------------------------------------


@program(speculated=0, reported="no two runs are alike; the last two part here")
def step_that_differs_at_each_call():
    names = iter(range(100))

    def step(x, name):
        return {name: x * 2}

    return Program(step, [(torch.ones(2), f"name {next(names)}") for _ in range(52)])


@program(speculated=0, compiles=24, reported="24 graphs were made and calls still differ from what was assumed")
def step_of_many_kinds_of_tensors():
    def step(x):
        return x * 2

    return Program(step, [(torch.ones((1,) * (1 + k // 6)),) for k in range(180)])


@program(speculated=2, compiles=3, reported="An entry is made for each size.")
def size_that_torch_holds():
    def step(x):
        return x * torch.logspace(0, 1, x.shape[0])

    return Program(step, [(torch.ones(size),) for size in (3, 4, 5, 3, 4, 3, 4, 5)])


@program(speculated=0, reported="its assertions keep failing: a tensor decides which path is taken")
def tensor_that_decides():
    def step(x):
        if x.sum() > 0:
            return x * 2
        return torch.ones(2).set_(x * 3)  # this variant is refused

    calls = [(torch.full((2,), 1.0 if k < 4 or k % 2 else -1.0),) for k in range(24)]
    return Program(step, calls)


@program(speculated=0, reported="its graph raises more often than not")
def step_that_raises_more_often_than_not():
    def step(x):
        return torch.linalg.cholesky(x)

    def between(k):
        return torch.eye(2) if k < 4 else -torch.eye(2)

    return Program(step, [(between(k),) for k in range(30)])


@program(refused="by identity")
def equal_numbers_compared_by_identity():
    limit = [1000.5]

    def step(x, n):
        return x * 2 if n is limit[0] else x * 3

    return Program(step, [(x, limit[0]) for (x,) in inputs()])


@program(refused="looks up NaN")
def nan_looked_up():
    last = [float("nan")]
    worst = list(last)

    def step(x):
        return x * 2, worst[0] in last

    return Program(step, inputs())


@program(refused="* of an array and a tensor is left to NumPy")
def array_times_a_tensor():
    array = np.ones(5)

    def step(x):
        try:
            return array * x
        except TypeError:
            return x * 2

    return Program(step, inputs())


@program(refused="an array is changed in the step, and a tensor that shares its memory is used after that")
def array_changed_under_a_tensor():
    array = np.zeros(3)
    tensor = torch.from_numpy(array)

    def step(x):
        array[0] += 1.0
        return tensor * 2, x.sum()

    return Program(step, inputs(), state=(tensor,))


@program(refused="a tensor that shares memory with an array is changed in the step, and native code is given it")
def tensor_changed_over_an_array():
    array = np.zeros(3)
    tensor = torch.from_numpy(array)

    def step(x):
        tensor.add_(1)
        return x * float(array.sum())

    return Program(step, inputs(), state=(tensor,))


@program(refused="a tensor that was made under inference_mode() is changed")
def inference_tensor_changed():
    with torch.inference_mode():
        total = torch.zeros(3)

    def step(x):
        with torch.inference_mode():
            total.add_(1)
            return total.sum()

    return Program(step, inputs(), state=(total,))


@program(refused="writes into a given tensor that is not contiguous")
def pooled_into_columns():
    def step(x):
        columns = torch.zeros(2, 2, 2, 1).permute(3, 2, 1, 0)
        torch._C._nn.avg_pool3d(x.reshape(1, 4, 4, 4), 2, out=columns)
        return columns.sum()

    return Program(step, inputs(CALLS, 64))


@program(refused="writes a product into a tensor that is not contiguous")
def product_written_by_columns():
    def step(x):
        total = torch.zeros(3, 3).t()
        total.addmm_(x[:, None], x[None])
        return total.sum()

    return Program(step, inputs(CALLS, 3))


@program(refused="does not write to what it is given as out= when it is traced")
def write_that_tracing_loses():
    rank = torch.zeros((), dtype=torch.int64)

    def step(x):
        return x.sum() + torch.linalg.matrix_rank(x[None] * x[:, None], out=rank)

    return Program(step, inputs(CALLS, 3))


@program(refused="which is asked for by a __subclasshook__ that may change something")
def class_of_a_hook_that_counts():
    class Counted(abc.ABC):
        asked = 0

        @classmethod
        def __subclasshook__(cls, other):
            Counted.asked += 1
            return NotImplemented

    def step(x):
        class Kind(Counted):
            pass

        return x * len(Kind.__mro__)

    return Program(step, inputs())


@program(refused="makes the class Made, which calls")
def class_made_with_a_hook():
    made = []

    class Base:
        def __init_subclass__(cls):
            made.append(cls.__name__)

    def step(x):
        class Made(Base):
            factor = 2

        return x * Made.factor

    return Program(step, inputs(), state=made)


# -- co-execution -------------------------------------------------------------------------------------------------


def _coexecuted(jit, step, calls=None):
    return Program(jit(step, executor="coexecute"), inputs() if calls is None else calls)


@program(refused="shows a tensor with its backward graph")
def coexecuted_text_of_a_loss(jit):
    w = torch.ones(5, requires_grad=True)
    return _coexecuted(jit, lambda x: str((x * w).sum()))


@program(refused="a call of torch gives what no path can hold (Tensor._version")
def coexecuted_version(jit):
    return _coexecuted(jit, lambda x: x.mul(2)._version)


@program(refused="gives Tensor.__deepcopy__ an argument of type dict")
def coexecuted_copy_of_a_tensor(jit):
    return _coexecuted(jit, lambda x: copy.deepcopy(x * 2, {1: object()}))


@program(refused="makes a tensor of elements of tensors (torch.tensor)")
def coexecuted_tensor_of_tensors(jit):
    return _coexecuted(jit, lambda x: torch.tensor([x.sum(), x.max()]))


@program(refused="sets Tensor.data")
def coexecuted_data(jit):
    def step(x):
        y = x * 2
        y.data = x + 1
        return y

    return _coexecuted(jit, step)


@program(refused="the step computes nothing")
def coexecuted_nothing(jit):
    return _coexecuted(jit, lambda x: x.shape[0])


@program(refused="a tensor has hooks")
def coexecuted_hook(jit):
    w = torch.ones(5, requires_grad=True)
    seen = []
    w.register_hook(lambda gradient: seen.append(gradient.sum().item()))

    def step(x):
        w.grad = None
        (x * w).sum().backward()
        return list(seen)

    return _coexecuted(jit, step)


@program(refused="registers a hook (Tensor.register_hook)")
def coexecuted_hook_on_a_result(jit):
    w = torch.ones(5, requires_grad=True)

    def step(x):
        w.grad = None
        y = x * w
        y.register_hook(lambda gradient: gradient * 2)
        y.sum().backward()
        return w.grad.clone()

    return _coexecuted(jit, step)


class _OfTheirOwn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


@program(refused="calls a torch.autograd.Function")
def coexecuted_function_of_autograd(jit):
    w = torch.ones(5, requires_grad=True)

    def step(x):
        w.grad = None
        _OfTheirOwn.apply(x * w).sum().backward()
        return w.grad.clone()

    return _coexecuted(jit, step)


@program(refused="torch calls coexecuted_hook_of_a_node.<locals>.hook: its code would run within an operation")
def coexecuted_hook_of_a_node(jit):
    w = torch.ones(5, requires_grad=True)
    node = w.expand_as(w).grad_fn.next_functions[0][0]
    seen = []

    def hook(given, received):
        seen.append(received[0].sum().item())

    node.register_hook(hook)

    def step(x):
        w.grad = None
        (x * w).sum().backward()
        return list(seen)

    return Program(jit(step, executor="coexecute"), inputs(), state=node)


@program(refused="sets how torch computes (set_flush_denormal)")
def coexecuted_setting(jit):
    def step(x):
        torch.set_flush_denormal(True)
        y = x * 1e-39
        torch.set_flush_denormal(False)
        return y

    return _coexecuted(jit, step)


@program(refused="sets hooks for saved tensors")
def coexecuted_saved_tensors(jit):
    w = torch.ones(5, requires_grad=True)

    def step(x):
        w.grad = None
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            y = (x * w).exp()
        y.sum().backward()
        return w.grad.clone()

    return _coexecuted(jit, step)


@program(refused="the program writes to an array that shares memory with a tensor")
def coexecuted_array_written_to(jit):
    def step(x):
        h = x * 2
        array = h.numpy()
        array *= 0.5
        return h.sum()

    return _coexecuted(jit, step)


@program(refused="an array of 80000 bytes shares memory with a tensor")
def coexecuted_large_array(jit):
    return _coexecuted(jit, lambda x: float((x.expand(4000, 5) * 2).numpy().sum()), inputs(CALLS, 1, 5))


@program(refused="an array and a tensor that live on after the step share memory")
def coexecuted_array_that_lives_on(jit):
    def step(x):
        h = x * 2
        return h, h.numpy()

    return _coexecuted(jit, step)


@program(refused="an array shares memory with a tensor that the step has changed")
def coexecuted_array_of_a_changed_tensor(jit):
    total = torch.zeros(5)

    def step(x):
        total.add_(x.sum(0))
        return float(total.numpy().sum())

    return _coexecuted(jit, step)


@program(refused="the step changes a tensor that shares memory with an array")
def coexecuted_tensor_of_an_array(jit):
    array = np.zeros(5, np.float32)
    total = torch.from_numpy(array)

    def step(x):
        total.add_(x.sum(0))
        return x.sum()

    return _coexecuted(jit, step)


@program(refused="takes the memory of a tensor (Tensor.data_ptr)")
def coexecuted_address(jit):
    return _coexecuted(jit, lambda x: (x * 2).data_ptr() > 0)


@program(refused="uses a tensor of type Tensor with layout torch.sparse_coo")
def coexecuted_sparse_tensor(jit):
    sparse = torch.eye(5).to_sparse()
    return _coexecuted(jit, lambda x: torch.sparse.mm(sparse, x.T))


@program(refused="uses a tensor from outside that is not a plain leaf on the CPU")
def coexecuted_gradient_to_outside(jit):
    w = torch.ones(5, requires_grad=True)
    doubled = w * 2
    return _coexecuted(jit, lambda x: (x * doubled).sum().item())


@program(refused="a gradient has a backward graph itself")
def coexecuted_gradient_of_a_gradient(jit):
    w = torch.ones(5, requires_grad=True)
    w.grad = torch.ones(5, requires_grad=True)
    return _coexecuted(jit, lambda x: (x * w).sum().item())


@program(refused="makes a parameter: it is an object of a class")
def coexecuted_parameter(jit):
    return _coexecuted(jit, lambda x: torch.nn.Parameter(x * 2).detach().sum())


@program(refused="runs under torch.inference_mode() or torch.autocast()")
def coexecuted_autocast(jit):
    def step(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (x @ x.T).float().sum()

    return _coexecuted(jit, step)


@program(refused="uses a transform of torch.func")
def coexecuted_transform(jit):
    return _coexecuted(jit, lambda x: torch.func.grad(lambda y: (y * y).sum())(x))


@program(refused="calls torch under a transform or a dispatch mode")
def coexecuted_dispatch_mode(jit):
    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    def step(x):
        with Seeing():
            return (x * 2).sum()

    return _coexecuted(jit, step)


@program(refused="calls a compiled function")
def coexecuted_compiled_function(jit):
    return _coexecuted(jit, torch.compile(lambda x: x * 2, backend="eager"))


@contextlib.contextmanager
def _profiled():
    sys.setprofile(lambda frame, event, arg: None)
    try:
        yield
    finally:
        sys.setprofile(None)


@program(refused="a profiler is at work")
def coexecuted_profiler(jit):
    step = jit(lambda x: x * 2, executor="coexecute")
    return Program(step, inputs(), around=lambda _: _profiled())


@program(refused="no call is co-executed: the step runs under anomaly detection")
def coexecuted_anomaly_detection(jit):
    step = jit(lambda x: x * 2, executor="coexecute")
    return Program(step, inputs(), around=lambda _: torch.autograd.set_detect_anomaly(True))


@program(refused="of a generator: the graph's draws are made at another time")
def coexecuted_seed(jit):
    def step(x):
        torch.manual_seed(3)
        return x + torch.randn(5)

    return _coexecuted(jit, step)


@program(refused="asks for the exact class of an object")
def coexecuted_class(jit):
    def step(x):
        h = x * 2
        return h.sum() if type(h) is torch.Tensor else None

    return _coexecuted(jit, step)


@program(refused="gives a tensor whose size depends on contents, with its backward graph")
def coexecuted_selection_with_gradients(jit):
    w = torch.ones(5, requires_grad=True)

    def step(x):
        w.grad = None
        (x * w)[x > 0].sum().backward()
        return w.grad.clone()

    return _coexecuted(jit, step)


@program(refused="an operation raises: a skeleton could not raise it there")
def coexecuted_error(jit):
    def step(x):
        try:
            return (x @ x).sum()
        except RuntimeError:
            return x.sum()

    return _coexecuted(jit, step)


@program(refused="an operation may raise because of the contents of tensors that the graph computes")
def coexecuted_risk(jit):
    return _coexecuted(jit, lambda x: torch.linalg.cholesky(x @ x.T + torch.eye(4)).sum())


@program(refused="a tensor with its backward graph lives on after the step")
def coexecuted_loss(jit):
    w = torch.ones(5, requires_grad=True)
    return _coexecuted(jit, lambda x: (x * w).sum())


@program(refused="a number that varies shapes the graph")
def coexecuted_probability(jit):
    def step(x, p):
        return torch.nn.functional.dropout(x, p).sum()

    return _coexecuted(jit, step, [(torch.randn(4, 5), 0.1 * k) for k in range(1, 9)])


@program(refused="the graph's results differ from eager's")
def coexecuted_calls_that_torch_does_not_tell_of(jit):
    w = torch.ones(5)

    def step(x):
        y = (x * w).sum()
        with torch._C.DisableTorchFunction():
            w.add_(1)
        return y

    return _coexecuted(jit, step)


@program(refused="a packed sequence goes into a recurrent layer")
def packed_sequence_under_autocast():
    layer = torch.nn.LSTM(3, 4)
    lengths = torch.tensor([4, 3, 1])

    def step(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths)
            return torch.nn.utils.rnn.pad_packed_sequence(layer(packed)[0])[0].sum().detach()

    return Program(step, [(torch.randn(4, 3, 3),) for _ in range(CALLS)], state=layer)
