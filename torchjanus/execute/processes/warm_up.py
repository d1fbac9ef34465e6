"""Lowers a small training step, so that a process has imported and cached what lowering any program takes.

PyTorch imports much of what tracing, partitioning and serialising need at the first use: seconds, which each process
that lowers one program would spend again. The server of children does it once, before it forks them. The program has an
element of each kind that lowering treats differently: a backward pass, a loop, an in-place update, a number that the
host supplies. This module does not know who lowers what.
"""

from __future__ import annotations

import torch

from torchjanus.execute.processes.lowering import Lowering, lower_request
from torchjanus.graph.ir.program import Input, Node, Program, Ref, Slot, SlotKind
from torchjanus.graph.lowering.graph_bytes import signature
from torchjanus.graph.operators.loop_op import unused_keys
from torchjanus.graph.regions.loop import Loop

__all__ = ["small_step", "warm_up"]

_WIDTH, _STEPS = 4, 3


def warm_up() -> None:
    """Lower the program as a child does. No tensor is computed, and no thread started, so the process may be forked
    afterwards. With an accelerator autograd would start threads: then nothing is done."""
    if torch.accelerator.is_available():
        return
    program = small_step()
    with unused_keys() as keys:
        request = Lowering.request(program, signature(program) or "", keys)
        assert request is not None
        lower_request(request)


def small_step() -> Program:
    """Return a program: three iterations of a recurrent cell, a loss, its gradients, and one step of SGD with the rate
    that the host supplies."""
    weight = torch.zeros(_WIDTH, _WIDTH, requires_grad=True)
    state, rows = torch.zeros(2, _WIDTH), torch.zeros(_STEPS, 2, _WIDTH)
    inputs = (Input(state, False, True), Input(rows, False, True), Input(weight, True, True))
    state_in, rows_in, weight_in, state_out, outputs, squares, loss = map(Ref, range(7))
    gradient, step = Ref(7), Ref(8)
    nodes = (
        Node(_cell(), (_STEPS, [state_in], [rows_in], [weight_in]), {}, (state_out, outputs)),
        Node(torch.Tensor.pow, (outputs, 2), {}, (squares,)),
        Node(torch.Tensor.mean, (squares,), {}, (loss,)),
        Node(torch.autograd.grad, (loss, [weight_in]), {}, (gradient,)),
        Node(torch.Tensor.detach, (weight_in,), {}, (step,)),
        Node(torch.Tensor.add_, (step, gradient), {"alpha": Slot(0)}, (step,)),
    )
    slots = (SlotKind(float, (-0.1, -0.2)),)
    return Program(inputs, slots, nodes, (loss, state_out), (len(nodes),) * 2, (), (weight_in,))


def _cell() -> Loop:
    """Return a loop of which one iteration is ``h = tanh(x + h @ w)``."""
    weight = torch.zeros(_WIDTH, _WIDTH, requires_grad=True)
    given = (torch.zeros(2, _WIDTH), torch.zeros(2, _WIDTH), weight)
    inputs = tuple(Input(tensor, tensor.requires_grad, True) for tensor in given)
    nodes = (
        Node(torch.nn.functional.linear, (Ref(0), Ref(2)), {}, (Ref(3),)),
        Node(torch.add, (Ref(1), Ref(3)), {}, (Ref(4),)),
        Node(torch.tanh, (Ref(4),), {}, (Ref(5),)),
    )
    body = Program(inputs, (), nodes, (Ref(5), Ref(5)), (len(nodes),) * 2, (), ())
    return Loop(body, 1, 1)
