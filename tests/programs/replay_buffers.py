"""Experience replay: transitions with tensors in a list or deque, from which the step draws by ``random``."""

import random
from collections import deque, namedtuple

import torch
from torch import nn

from tests.programs.harness import Program, program
from tests.programs.shapes import Trainer

Transition = namedtuple("Transition", ("state", "action", "reward"))


def transition(make=tuple):
    parts = torch.randn(1, 5), torch.randint(3, (1, 1)), random.random()
    return make(*parts) if make is Transition else make(parts)


class Agent(Trainer):
    def __init__(self, memory):
        super().__init__(nn.Linear(5, 3))
        self.memory = memory

    def learn(self, states, actions, rewards):
        values = self.model(states).gather(1, actions).squeeze(1)
        return self.update((values - rewards).square().mean())


def agent(kind=list, make=tuple, count=60):
    return Agent(kind(transition(make) for _ in range(count)))


CALLS = [(k,) for k in range(20)]


@program(speculated=17, compiles=1)
def a_sample_of_tuples():
    a = agent()

    def step(_):
        batch = random.sample(a.memory, 4)
        states = torch.cat([state for state, _, _ in batch])
        return a.learn(states, torch.cat([t[1] for t in batch]), torch.tensor([t[2] for t in batch]))

    return Program(step, CALLS, state=a)


@program(speculated=17, compiles=1)
def a_sample_of_named_tuples_turned_around():
    a = agent(deque, Transition)

    def step(_):
        batch = Transition(*zip(*random.sample(a.memory, 4), strict=True))
        return a.learn(torch.cat(batch.state), torch.cat(batch.action), torch.tensor(batch.reward))

    return Program(step, CALLS, state=a)


@program(speculated=17)
def one_transition_by_chance():
    a = agent()

    def step(_):
        state, action, reward = random.choice(a.memory)
        return a.learn(state, action, torch.tensor(reward)), reward

    return Program(step, CALLS, state=a)


@program(speculated=17, compiles=1)
def places_drawn_one_by_one():
    a = agent(deque)

    def step(_):
        places = [random.randrange(len(a.memory)) for _ in range(4)]
        states = torch.cat([a.memory[k][0] for k in places])
        return a.learn(states, torch.cat([a.memory[k][1] for k in places]), 1.0)

    return Program(step, CALLS, state=a)


@program(speculated=17, compiles=1)
def a_sample_of_places():
    a = agent()

    def step(_):
        batch = [a.memory[k] for k in random.sample(range(len(a.memory)), 3)]
        return a.learn(torch.cat([t[0] for t in batch]), torch.cat([t[1] for t in batch]), 0.5)

    return Program(step, CALLS, state=a)


@program(speculated=17)
def a_table_of_models_by_chance():
    a = agent()
    a.scales = {"small": torch.full((3,), 0.5), "large": torch.full((3,), 2.0)}

    def step(_):
        state, action, _ = a.memory[3]
        scale = a.scales[random.choice(("small", "large"))]
        return a.learn(state * scale[0], action, scale[1])

    return Program(step, CALLS, state=a)


@program(speculated=16, compiles=1)
def the_same_one_drawn_twice():
    a = agent(count=8)

    def step(_):
        batch = random.choices(a.memory, k=2)
        return a.learn(torch.cat([t[0] for t in batch]), torch.cat([t[1] for t in batch]), 0.5)

    return Program(step, CALLS, state=a)


@program(speculated=17, compiles=1)
def what_was_drawn_is_changed_in_place():
    a = agent(count=20)

    def step(_):
        state, action, _ = random.choice(a.memory)
        state.mul_(0.9)
        return a.learn(state, action, 0.5), state

    return Program(step, CALLS, state=a)


@program(refused="may read a deque that the step has changed")
def a_transition_joins_before_one_is_drawn():
    a = agent(deque)

    def step(_):
        a.memory.append((torch.randn(1, 5), torch.zeros(1, 1, dtype=torch.long), 0.0))
        state, action, _ = random.choice(a.memory)
        return a.learn(state, action, 0.5)

    return Program(step, CALLS, state=a)


@program(speculated=14)
def a_place_beyond_the_end():
    a = agent(count=5)

    def step(_):
        try:
            state, action, _ = a.memory[random.randrange(7)]
        except IndexError:
            return None
        return a.learn(state, action, 0.5)

    return Program(step, CALLS, state=a)
