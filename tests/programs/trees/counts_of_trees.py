"""Numbers that a step fetches for each of its trees, counts and adds up beside the calls; batches of any size."""

import random

import torch
import torch.nn.functional as F

from tests.programs.harness import Program, program
from tests.programs.recursion.recursion import CLOSE, WIDTH, binary, parameter
from tests.programs.trees.numbered_trees import CLASSES
from tests.programs.trees.results_of_trees import Encoder as Words

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

CALLS = 24


class Encoder(Words):
    def __init__(self):
        super().__init__()
        self.v = parameter(WIDTH, CLASSES)
        self.opt.add_param_group({"params": [self.v]})

    def __call__(self, tree):
        return self.encode(tree) @ self.v


def sizes(least, most):
    return (random.randint(least, most) for _ in range(CALLS))


def tensors(least=2, most=7):
    return [([(binary(), torch.tensor(random.randrange(CLASSES))) for _ in range(n)],) for n in sizes(least, most)]


def numbers(least=2, most=7):
    return [([binary() for _ in range(n)], [random.randrange(CLASSES) for _ in range(n)]) for n in sizes(least, most)]


@program(speculated=18, close=CLOSE, compiles=3)
def hits_by_int():
    model = Encoder()

    def step(batch):
        loss, correct = 0.0, 0
        for tree, label in batch:
            logits = model(tree)
            loss = loss + F.cross_entropy(logits, label)
            correct += int(logits.argmax() == label)
        model.update(loss / len(batch))
        return correct / len(batch)

    return Program(step, tensors(), state=model)


@program(speculated=18, close=CLOSE, compiles=3)
def hits_by_item():
    model = Encoder()

    def step(trees, labels):
        loss, correct, total = torch.zeros(()), 0, 0.0
        for tree, label in zip(trees, labels, strict=True):
            logits = model(tree)
            one = F.cross_entropy(logits.unsqueeze(0), torch.tensor([label]))
            loss = loss + one
            correct += (logits.argmax() == label).item()
            total += one.item()
        model.update(loss / len(trees))
        return correct / len(trees), total / len(trees)

    return Program(step, numbers(), state=model)


@program(speculated=18, close=CLOSE, compiles=3)
def hits_by_if():
    model = Encoder()

    def step(trees, labels):
        loss, correct, predictions = 0.0, 0, []
        for tree, label in zip(trees, labels):
            logits = model(tree)
            loss = loss + F.cross_entropy(logits, torch.tensor(label))
            predicted = logits.argmax().item()
            predictions.append(predicted)
            if predicted == label:
                correct += 1
        model.update(loss)
        return predictions, correct / len(trees)

    return Program(step, numbers(), state=model)


@program(speculated=18, close=CLOSE, compiles=3)
def hits_of_an_evaluation():
    model = Encoder()

    @torch.no_grad()
    def step(trees, labels):
        correct = 0
        for tree, label in zip(trees, labels):
            if model(tree).argmax().item() == label:
                correct += 1
        return correct / len(trees)

    return Program(step, numbers(), state=model)


@program(speculated=18, close=CLOSE, compiles=3)
def sums_in_a_dictionary_and_a_log():
    model, stats, log = Encoder(), {"loss": 0.0, "correct": 0, "seen": 0}, []

    def step(batch):
        loss = 0
        for tree, label in batch:
            logits = model(tree)
            one = F.cross_entropy(logits, label)
            loss += one
            stats["loss"] += one.item()
            stats["correct"] += (logits.argmax() == label).item()
            stats["seen"] += 1
            log.append({"loss": one.item(), "best": logits.argmax().item(), "of": logits.detach().softmax(0)})
            print(f"{one.item():.2f}")
        return model.update(loss)

    return Program(step, tensors(), state=(model, stats, log))


@program(speculated=18, close=CLOSE, compiles=3)
def worst_of_a_batch():
    model = Encoder()

    def step(batch):
        loss, worst = 0, 0.0
        for tree, label in batch:
            one = F.cross_entropy(model(tree), label)
            loss = loss + one
            worst = max(worst, one.item())
        return model.update(loss), worst

    return Program(step, tensors(), state=model)


@program(speculated=20, close=CLOSE, compiles=6)
def batches_of_one_or_none():
    model = Encoder()

    def step(batch):
        loss, correct = torch.zeros(()), 0
        for tree, label in batch:
            logits = model(tree)
            loss = loss + F.cross_entropy(logits, label)
            correct += int(logits.argmax() == label)
        return loss.item(), correct, correct / len(batch)

    return Program(step, [*tensors(2, 7)[:10], *tensors(0, 3)], state=model)


@program(speculated=12, close=CLOSE, compiles=6)
def labels_that_are_too_few():
    model = Encoder()

    def step(trees, labels):
        correct = 0
        for tree, label in zip(trees, labels):
            correct += int(model(tree).argmax().item() == label)
        return correct / len(trees)

    calls = numbers(3, 7)
    for place in (9, 12, 17):
        calls[place][1].pop()
    calls[14][1].append(1)
    calls[19][1][0] = True
    return Program(step, calls, state=model)


@program(speculated=9, close=CLOSE, compiles=12)
def a_count_that_decides():
    model = Encoder()

    def step(batch):
        loss, correct = 0.0, 0
        for tree, label in batch:
            logits = model(tree)
            correct += int(logits.argmax() == label)
            loss = loss + (F.cross_entropy(logits, label) if correct < 2 else logits.sum())
        return model.update(loss), correct

    return Program(step, tensors(3, 4), state=model)


@program(speculated=7, close=CLOSE, compiles=12)
def truths_that_are_no_numbers():
    model = Encoder()

    def step(batch):
        found, loss = [], 0.0
        for tree, label in batch:
            logits = model(tree)
            loss = loss + F.cross_entropy(logits, label)
            hit = (logits.argmax() == label).item()
            found.append(hit)
            loss = loss + (logits.argmax() == label).item() * logits.sum()
        return model.update(loss), found, [1] * (logits.argmax() == 1).item(), {True: 1}[1 == (label.item() >= 0)]

    return Program(step, tensors(3, 3), state=model)


@program(speculated=9, close=CLOSE, compiles=12)
def a_log_that_is_changed_elsewhere():
    model, log = Encoder(), []

    def step(batch):
        loss = 0.0
        for tree, label in batch:
            logits = model(tree)
            loss = loss + F.cross_entropy(logits, label)
            log.append(logits.argmax().item())
            if len(log) > 20:
                log.pop(0)
        return model.update(loss), len(log)

    return Program(step, tensors(3, 4), state=(model, log), before={9: log.clear})


@program(speculated=16, close=CLOSE, compiles=12)
def a_tensor_that_is_changed_after_it_was_shown():
    model, shown = Encoder(), []

    def step(batch):
        total = torch.zeros(CLASSES)
        with torch.no_grad():
            for tree, _ in batch:
                logits = model(tree)
                shown.append(logits)
                shown.append(logits.sum().item())
                logits.add_(1)
                total = total + logits
        return total

    return Program(step, tensors(3, 5), state=(model, shown))
