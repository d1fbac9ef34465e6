"""Hooks on autograd nodes that accumulate gradients of leaves, as data-parallel libraries use them."""

import torch
from torch.utils.hooks import RemovableHandle

from tests.programs.harness import CALLS, Program, program

_REFUSED = "a hook is registered on the node of autograd that adds to the gradient of"


def _inputs(n=CALLS):
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(4, 3, generator=generator),) for _ in range(n)]


def _net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))


def _node(parameter):
    return parameter.view_as(parameter).grad_fn.next_functions[0][0]


def _training(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


NODES = []


def _nodes(parameters):
    made = list(map(_node, parameters))
    NODES.append(made)  # they live as long as somebody holds them
    return made


@program(refused=_REFUSED)
def behind_the_sum():
    net, seen = _net(), []
    for node in _nodes(net.parameters()):
        node.register_hook(lambda *_: seen.append(1))
    return Program(_training(net), _inputs(), state=(net, seen))


@program(refused=_REFUSED)
def before_the_sum_and_it_changes_the_gradient():
    net = _net()
    for node in _nodes(net.parameters()):
        node.register_prehook(lambda grads: (grads[0] * 2,))
    return Program(_training(net), _inputs(), state=net)


@program(refused=_REFUSED)
def on_one_of_many():
    net, seen = _net(), []
    _nodes([net[2].bias])[0].register_hook(lambda *_: seen.append(1))
    return Program(_training(net), _inputs(), state=(net, seen))


@program(refused=_REFUSED)
def of_a_parameter_that_is_used_after_its_gradient_was_thrown_away():
    w, seen = torch.ones(3, requires_grad=True), []
    _nodes([w])[0].register_hook(lambda *_: seen.append(1))

    def step(x):
        w.grad = None
        (w * x).sum().backward()
        return w.grad * 2

    return Program(step, _inputs(), state=(w, seen))


@program(refused=_REFUSED)
def that_counts_and_the_count_is_read():
    w, seen = torch.ones(3, requires_grad=True), []
    _nodes([w])[0].register_hook(lambda *_: seen.append(1))

    def step(x):
        (w * x).sum().backward()
        return x * len(seen)

    return Program(step, _inputs(), state=(w, seen))


@program(refused=_REFUSED)
def that_is_given_to_grad():
    w, seen = torch.ones(3, requires_grad=True), []
    _nodes([w])[0].register_prehook(lambda grads: seen.append(1))

    def step(x):
        return torch.autograd.grad((w * x).sum(), w)[0] * 2

    return Program(step, _inputs(), state=(w, seen))


@program(speculated=3)
def that_is_registered_between_calls():
    net, seen = _net(), []

    def register():
        for node in _nodes(net.parameters()):
            node.register_hook(lambda *_: seen.append(1))

    return Program(_training(net), _inputs(), before={6: register}, state=(net, seen))


@program(speculated=5)
def that_is_removed_between_calls():
    net, seen = _net(), []
    handles = []

    def register():
        for node in _nodes(net.parameters()):
            handles.append(node.register_hook(lambda *_: seen.append(1)))

    def remove():
        for handle in handles:
            handle.remove()

    return Program(_training(net), _inputs(16), before={5: register, 6: remove}, state=(net, seen))


@program(speculated=7)
def whose_parameter_is_only_evaluated():
    net, seen = _net(), []
    for node in _nodes(net.parameters()):
        node.register_hook(lambda *_: seen.append(1))

    def step(x):
        with torch.no_grad():
            return net(x)

    return Program(step, _inputs(), state=(net, seen))


@program(speculated=3)
def on_a_tensor_that_is_passed():
    w, seen = torch.ones(3, requires_grad=True), []

    def register():
        _nodes([w])[0].register_hook(lambda *_: seen.append(1))

    def step(x, w):
        w.grad = None
        (w * x).sum().backward()
        return w.grad * 2

    return Program(step, [(x, w) for (x,) in _inputs()], before={6: register}, state=(w, seen))


@program(refused="calls torch._C._current_graph_task_id")
def of_several_tensors_together():
    net, seen = _net(), []
    torch.autograd.graph.register_multi_grad_hook(tuple(net.parameters()), lambda grads: seen.append(len(grads)))
    return Program(_training(net), _inputs(), state=(net, seen))


@program(refused="calls torch._C._current_graph_task_id")
def of_any_of_several_tensors():
    net, seen = _net(), []
    torch.autograd.graph.register_multi_grad_hook(tuple(net.parameters()), lambda grad: seen.append(1), mode="any")
    return Program(_training(net), _inputs(), state=(net, seen))


@program(speculated=7)
def handles_are_numbered_as_they_were():
    """Looking for hooks registers some, for a moment."""
    net = _net()
    net.register_forward_hook(lambda module, given, result: None)
    first, numbers = RemovableHandle.next_id, []
    step = _training(net)

    def note():
        numbers.append(RemovableHandle.next_id - first)

    return Program(step, _inputs(), before=dict.fromkeys(range(1, CALLS), note), state=(net, numbers))


@program(refused="the step runs under saved_tensors_hooks")
def saved_tensors_are_packed_by_whoever_calls():
    net, seen = _net(), []

    def pack(tensor):
        seen.append(1)
        return tensor

    def around(call):
        return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)

    return Program(_training(net), _inputs(), state=(net, seen), around=around)


@program(refused="_push_saved_tensors_default_hooks")
def saved_tensors_are_packed_in_the_step():
    net, seen = _net(), []

    def pack(tensor):
        seen.append(1)
        return tensor * 2

    def step(x):
        y = x * 2
        net.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor / 2):
            loss = net(y).square().mean()
        loss.backward()
        return loss.detach() * len(seen)

    return Program(step, _inputs(), state=(net, seen))


@program(speculated=7)
def on_nodes_of_the_step():
    net, seen = _net(), []

    def step(x):
        net.zero_grad()
        loss = net(x).square().mean()
        loss.grad_fn.register_hook(lambda *_: seen.append(1))
        loss.backward()
        return loss.detach() * len(seen)

    return Program(step, _inputs(), state=(net, seen))
