"""The programs on pictures written by hand as graphs: classifiers, and networks against each other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.speed.papers.base import Program
from benchmarks.speed.papers.dropping import DropBlock
from benchmarks.speed.papers.symbolic import Graphs, Kept, Net, Part, Step, float_of

__all__ = ["an", "classifier", "dcgan", "dropblock", "lenet", "pix2pix", "sdpoint"]


def scored(scores: Any, labels: Tensor) -> Tensor:
    if isinstance(scores, tuple):
        return F.cross_entropy(scores[0], labels) + 0.4 * F.cross_entropy(scores[1], labels)
    return F.cross_entropy(scores, labels)


def train_classifier(parts: list[Part], kept: Kept, pictures: Tensor, labels: Tensor, *about: Any) -> list[Tensor]:
    (net,) = parts
    loss = scored(net(pictures), labels)
    net.update(net.gradients(loss))
    return [loss]


def evaluate(parts: list[Part], kept: Kept, pictures: Tensor, labels: Tensor) -> list[Tensor]:
    return [(parts[0].without_gradient(pictures).argmax(1) == labels).float().mean()]


def lenet(program: Program) -> Step:
    graphs = Graphs([Net(*program.state)])
    return lambda *batch: float_of(graphs.run(train_classifier, *batch))


def classifier(program: Program) -> Step:
    trainer = program.state
    graphs = Graphs([Net(trainer.model, trainer.optimizer)])

    def step(pictures: Tensor, labels: Tensor, training: bool) -> float:
        for module in trainer.model.modules():  # as the graph is made
            module.training = training
        return float_of(graphs.run(train_classifier if training else evaluate, pictures, labels))

    return step


def dropblock(program: Program) -> Step:
    training = program.state
    layers = [module for module in training.model.modules() if isinstance(module, DropBlock)]
    graphs = Graphs([Net(training.model, training.optimizer)])

    def train(parts: list[Part], kept: Kept, pictures: Tensor, labels: Tensor, keep: Tensor) -> list[Tensor]:
        for layer in layers:  # the schedule is an input, and there is no question whether it has begun
            layer.forward = lambda x, layer=layer: dropped(layer, x, keep)  # type: ignore[method-assign, misc]
        return train_classifier(parts, kept, pictures, labels)

    def dropped(layer: DropBlock, x: Tensor, keep: Tensor) -> Tensor:
        height, width = x.shape[2:]
        size = layer.size
        gamma = (1.0 - keep) * height * width / size**2 / ((height - size + 1) * (width - size + 1))
        seeds = torch.rand(x.shape[0], x.shape[1], height - size + 1, width - size + 1) < gamma
        blocks = F.max_pool2d(F.pad(seeds.float(), [size // 2] * 4), size, 1, size // 2)
        mask = 1.0 - blocks
        return x * mask * (mask.numel() / mask.sum())

    def step(pictures: Tensor, labels: Tensor) -> float:
        training.steps += 1
        keep = torch.tensor(1.0 - 0.1 * min(training.steps / training.total, 1.0), dtype=torch.float64)
        return float_of(graphs.run(train, pictures, labels, keep))

    return step


def sdpoint(program: Program) -> Step:
    training = program.state
    graphs = Graphs([Net(training.model, training.optimizer)])

    def step(pictures: Tensor, labels: Tensor) -> float:
        training.pick()
        about = training.model.point, training.model.ratio  # a graph for each
        return float_of(graphs.run(train_classifier, pictures, labels, *about))

    return step


# -- adversaries -------------------------------------------------------------------------------------------------------


def distinguished(real: Tensor, fake: Tensor) -> Tensor:
    entropy = F.binary_cross_entropy_with_logits
    return entropy(real, torch.ones_like(real)) + entropy(fake, torch.zeros_like(fake))


def believed(judged: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(judged, torch.ones_like(judged))


def an(program: Program) -> Step:
    nets = program.state
    graphs = Graphs([Net(getattr(nets, name), nets.optimizers[name]) for name in ("generator", "discriminator")])

    def train(parts: list[Part], kept: Kept, pictures: Tensor) -> list[Tensor]:
        generator, discriminator = parts
        made = generator(torch.randn(pictures.shape[0], nets.noise))
        first = distinguished(discriminator(pictures.flatten(1)), discriminator(made.detach()))
        discriminator.update(discriminator.gradients(first))
        discriminator.renew()
        second = believed(discriminator(made))
        generator.update(generator.gradients(second))
        return [first, second]

    def step(pictures: Tensor) -> float:
        first, second = graphs.run(train, pictures)
        nets.losses["discriminator"].append(first.item())
        nets.losses["generator"].append(second.item())
        return first.item()

    return step


def pix2pix(program: Program) -> Step:
    learner = program.state
    graphs = Graphs([Net(learner.generator, learner.generator_optimizer), Net(learner.judge, learner.judge_optimizer)])

    def train(parts: list[Part], kept: Kept, original: Tensor, wanted: Tensor) -> list[Tensor]:
        generator, judge = parts
        made = generator(original)
        judge_loss = 0.5 * distinguished(judge(original, wanted), judge(original, made.detach()))
        judge.update(judge.gradients(judge_loss))
        judge.renew()
        adversarial = believed(judge(original, made))
        distance = F.l1_loss(made, wanted)
        generator.update(generator.gradients(adversarial + 100 * distance))
        return [distance, judge_loss, adversarial]

    def step(original: Tensor, wanted: Tensor) -> float:
        distance, judge_loss, adversarial = (loss.item() for loss in graphs.run(train, original, wanted))
        learner.history.append((judge_loss, adversarial, distance))
        return distance

    return step


def dcgan(program: Program) -> Step:
    learner = program.state
    graphs = Graphs(
        [
            Net(learner.generator, learner.generator_optimizer),
            Net(learner.discriminator, learner.discriminator_optimizer),
        ]
    )

    def train(parts: list[Part], kept: Kept, pictures: Tensor) -> list[Tensor]:
        generator, discriminator = parts
        made = generator(torch.randn(pictures.shape[0], learner.noise))
        real, fake = discriminator(pictures), discriminator(made)
        first, second = believed(fake), distinguished(real, fake)
        gradients = generator.gradients(first, retain=True)
        discriminator.update(discriminator.gradients(second))
        generator.update(gradients)
        return [first, second]

    def step(pictures: Tensor) -> float:
        first, second = (loss.item() for loss in graphs.run(train, pictures))
        learner.means[0].update(first)
        learner.means[1].update(second)
        learner.steps += 1
        if learner.steps % 10 == 0:
            print(f"step {learner.steps}: " + ", ".join(f"{mean.name} {mean.result:.4f}" for mean in learner.means))
        return first

    return step
