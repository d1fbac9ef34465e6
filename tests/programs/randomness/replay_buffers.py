"""Experience replay: transitions with tensors in a list or deque, from which the step draws by ``random``."""

import random
from collections import deque, namedtuple

import numpy as np
import torch
from torch import nn

from tests.programs.changes.shapes import Trainer
from tests.programs.harness import Program, program

RUN_ONE_IN = 12  # Each takes a second or two, or is much like the others.

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


def fresh(k):
    return torch.full((1, 5), 0.1 * (k + 1)), torch.tensor([[k % 3]]), 0.25


@program(speculated=15)
def a_transition_joins_before_one_is_drawn():
    a = agent(deque)

    def step(_):
        a.memory.append((torch.randn(1, 5), torch.zeros(1, 1, dtype=torch.long), 0.0))
        state, action, _ = random.choice(a.memory)
        return a.learn(state, action, 0.5)

    return Program(step, CALLS, state=a)


@program(speculated=14, compiles=4)
def transitions_join_a_full_deque_before_some_are_drawn():
    a = agent(deque)
    a.memory = deque(a.memory, maxlen=66)

    def step(k):
        a.memory.append(fresh(k))
        batch = random.sample(a.memory, 4)
        states = torch.cat([state for state, _, _ in batch])
        return a.learn(states, torch.cat([t[1] for t in batch]), torch.tensor([t[2] for t in batch]))

    return Program(step, CALLS, state=a)


@program(speculated=8, compiles=8)
def the_one_that_joins_is_often_drawn():
    a = agent(list, Transition, count=3)

    def step(k):
        a.memory.append(Transition(*fresh(k)))
        batch = Transition(*zip(*random.choices(a.memory, k=2), strict=True))
        return a.learn(torch.cat(batch.state), torch.cat(batch.action), torch.tensor(batch.reward)), batch.state[0]

    return Program(step, [(k,) for k in range(40)], state=a)


class Ring(Agent):
    """A list that is filled, and then written over from its beginning."""

    def __init__(self, memory, capacity):
        super().__init__(memory)
        self.capacity = capacity
        self.place = len(memory) % capacity

    def push(self, one):
        if len(self.memory) < self.capacity:
            self.memory.append(None)
        self.memory[self.place] = one
        self.place = (self.place + 1) % self.capacity


@program(speculated=22, compiles=6)
def a_ring_that_is_filled_and_written_over():
    a = Ring([transition() for _ in range(40)], 52)

    def step(k):
        a.push(fresh(k))
        batch = random.sample(a.memory, 3)
        return a.learn(torch.cat([t[0] for t in batch]), torch.cat([t[1] for t in batch]), 0.5)

    return Program(step, [(k,) for k in range(40)], state=a)


@program(speculated=12, compiles=8)
def a_small_ring_whose_newest_is_read_by_its_place():
    a = Ring([transition() for _ in range(5)], 5)

    def step(k):
        a.push(fresh(k))
        state, action, _ = a.memory[np.random.randint(len(a.memory))]
        return a.learn(state, action, 0.5), state

    return Program(step, [(k,) for k in range(40)], state=a)


@program(speculated=15, compiles=2)
def places_by_numpy_in_what_has_grown():
    a = agent()

    def step(k):
        a.memory.append(fresh(k))
        a.memory.append(fresh(k + 1))
        batch = [a.memory[place] for place in np.random.choice(len(a.memory), 3, replace=False)]
        return a.learn(torch.cat([t[0] for t in batch]), torch.cat([t[1] for t in batch]), 0.5)

    return Program(step, CALLS, state=a)


@program(speculated=14, compiles=2)
def a_generator_of_its_own_draws():
    a = agent()
    draws = random.Random(4)

    def step(k):
        a.memory.append(fresh(k))
        (one,) = draws.choices(a.memory, k=1)
        return a.learn(one[0], one[1], 0.5), draws.random()

    return Program(step, CALLS, state=(a, draws))


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


@program(speculated=24, compiles=1)
def neighbours_share_states_and_some_end():
    """Which tensors a sample shares, and where it holds ``None``, differs in each call: the step is cut behind the last
    statement that looks at samples, not behind the first one."""
    states = [torch.randn(1, 5) for _ in range(61)]
    memory = deque(
        (states[k], torch.randint(3, (1, 1)), None if k % 7 == 6 else states[k + 1], torch.randn(1)) for k in range(60)
    )
    a = Agent(memory)

    def step(_):
        samples = random.sample(a.memory, 16)
        state, action, following, reward = zip(*samples, strict=True)
        ended = torch.tensor([one is None for one in following])
        first, actions = torch.cat(state), torch.cat(action)
        rewards = torch.cat(reward)
        values = a.model(first).gather(1, actions).squeeze(1)
        return a.update((values - rewards * (1 - 0.5 * ended.float())).square().mean())

    return Program(step, [(k,) for k in range(30)], state=a)
