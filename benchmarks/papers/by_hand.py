"""The papers' programs written by hand as graphs: what somebody would write who gives up the imperative program.

Python that decides (a schedule, which shapes, an early stop) stays outside and gives the graphs what it knows. Loops
over time and over an episode are written as whole tensors where they can be, and unrolled where not. The trees are
batched by hand over the nodes of all trees (``benchmarks.tree_batched``) and run by eager PyTorch, since no two
batches have levels of the same sizes. YOLOv3 and FasterRCNN have none: their sizes come out of tensors in mid-step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.metrics import f1_score
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.papers.base import Program
from benchmarks.papers.dropping import DropBlock
from benchmarks.papers.symbolic import Graphs, Net, Part, clip
from benchmarks.tree_batched import BATCHED

__all__ = ["BY_HAND"]

Step = Callable[..., float]
Kept = list[Tensor]


def float_of(results: list[Tensor]) -> float:
    return results[0].item()


# -- pictures ----------------------------------------------------------------------------------------------------------


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


def told_apart(real: Tensor, fake: Tensor) -> Tensor:
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
        first = told_apart(discriminator(pictures.flatten(1)), discriminator(made.detach()))
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
        judge_loss = 0.5 * told_apart(judge(original, wanted), judge(original, made.detach()))
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
        first, second = believed(fake), told_apart(real, fake)
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


# -- transformers ------------------------------------------------------------------------------------------------------


def bert_cls(program: Program) -> Step:
    model, optimizer, scores = program.state
    graphs = Graphs([Net(model, optimizer)])

    def train(parts: list[Part], kept: Kept, ids: Tensor, mask: Tensor, labels: Tensor) -> list[Tensor]:
        logits = parts[0](ids, mask).scores[:, 0]
        loss = F.cross_entropy(logits, labels)
        parts[0].update(parts[0].gradients(loss))
        return [loss, logits.argmax(1)]

    def step(ids: Tensor, mask: Tensor, labels: Tensor) -> float:
        loss, predicted = graphs.run(train, ids, mask, labels)
        scores.append(float(f1_score(labels.numpy(), predicted.numpy(), zero_division=0.0)))
        return loss.item()

    return step


def bert_qa(program: Program) -> Step:
    model, optimizer, warm_up, progress = program.state
    graphs = Graphs([Net(model, optimizer)], [torch.zeros_like(p) for p in model.parameters()])

    def train(
        parts: list[Part], kept: Kept, ids: Tensor, mask: Tensor | None, start: Tensor, end: Tensor, rate: Tensor | None
    ) -> list[Tensor]:
        (net,) = parts
        first, last = net(ids, mask).scores.unbind(-1)
        loss = (F.cross_entropy(first, start) + F.cross_entropy(last, end)) / 2
        gradients = net.gradients(loss / 2)
        if rate is None:  # the first of two calls
            for sum_, gradient in zip(kept, gradients, strict=True):
                assert gradient is not None
                sum_.copy_(gradient)
        else:
            sums = [sum_ + gradient for sum_, gradient in zip(kept, gradients, strict=True) if gradient is not None]
            net.update(clip(sums, 1.0), rate)
        return [loss]

    def step(ids: Tensor, mask: Tensor | None, start: Tensor, end: Tensor) -> float:
        progress["calls"] += 1
        rate = torch.tensor(warm_up.step()) if progress["calls"] % 2 == 0 else None
        return float_of(graphs.run(train, ids, mask, start, end, rate))

    return step


def gpt2(program: Program) -> Step:
    model, optimizer, losses = program.state
    graphs = Graphs([Net(model, optimizer)])

    def train(parts: list[Part], kept: Kept, ids: Tensor) -> list[Tensor]:
        (net,) = parts
        loss = F.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        net.update(net.gradients(loss))
        return [loss]

    def step(ids: Tensor) -> float:
        losses.append(float_of(graphs.run(train, ids, opened={0: 1})))
        if len(losses) % 10 == 0:
            print(f"step {len(losses)}: loss {losses[-1]:.4f}, perplexity {math.exp(losses[-1]):.2f}")
        return losses[-1]

    return step


class Music(nn.Module):
    """The network with its masks and its waves as inputs, and its weights as results."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, notes: Tensor, hide: Tensor, waves: Tensor) -> tuple[Tensor, list[Tensor]]:
        model = self.model
        x = model.dropout(model.words(notes) * math.sqrt(model.width) + waves[: notes.shape[1]])
        weights = []
        for block in model.blocks:
            block.attention.keep_weights = True
            x = block(x, hide)
            weights.append(block.attention.weights)
        return model.head(x), weights


def music_transformer(program: Program) -> Step:
    model, optimizer, history = program.state
    graphs = Graphs([Net(Music(model), optimizer)])
    length = model.waves.shape[0]
    ahead = torch.from_numpy(np.triu(np.ones((length, length), dtype=bool), k=1))

    def train(parts: list[Part], kept: Kept, notes: Tensor, ahead: Tensor, waves: Tensor, rate: Tensor) -> list[Tensor]:
        (net,) = parts
        before, wanted = notes[:, :-1], notes[:, 1:]
        scores, weights = net(before, ahead | (before == model.pad)[:, None, None, :], waves)
        loss = F.cross_entropy(scores.flatten(0, 1), wanted.flatten(), ignore_index=model.pad, label_smoothing=0.1)
        net.update(net.gradients(loss), rate)
        there = wanted != model.pad
        right = ((scores.argmax(-1) == wanted) & there).sum() / there.sum()
        return [loss, right, torch.stack([weight.amax(-1).mean() for weight in weights]).mean()]

    def step(notes: Tensor) -> float:
        model.step_count += 1
        count = model.step_count
        rate = torch.tensor(model.width**-0.5 * min(count**-0.5, count * 4000**-1.5))
        results = [result.item() for result in graphs.run(train, notes, ahead, model.waves, rate)]
        for name, result in zip(history, results, strict=True):
            history[name].append(result)
        return results[0]

    return step


# -- loops over time ---------------------------------------------------------------------------------------------------


class Unrolled(nn.Module):
    """LSTM: the words of all places looked up at once, and the states as inputs and results."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, words: Tensor, *states: Tensor) -> tuple[Tensor, list[Tensor]]:
        states_of = list(zip(states[::2], states[1::2], strict=True))
        outputs = []
        for x in self.model.embedding(words).unbind(1):
            for layer, cell in enumerate(self.model.cells):
                states_of[layer] = cell(x, states_of[layer])
                x = states_of[layer][0]
            outputs.append(x)
        return self.model.decoder(torch.stack(outputs, 1)), [part for state in states_of for part in state]


def lstm(program: Program) -> Step:
    model, optimizer, perplexities = program.state
    graphs: list[Graphs] = []

    def train(parts: list[Part], kept: Kept, words: Tensor, begins: bool) -> list[Tensor]:
        (net,) = parts
        before = [torch.zeros_like(state) for state in kept] if begins else [state.clone() for state in kept]
        scores, after = net(words[:, :-1], *before)
        loss = F.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())
        for state, new in zip(kept, after, strict=True):
            state.copy_(new.detach())
        net.update(clip(net.gradients(loss), 5.0))
        return [loss]

    def step(words: Tensor, begins: bool) -> float:
        if not graphs:
            kept = [torch.zeros(len(words), cell.width) for cell in model.cells for _ in range(2)]
            graphs.append(Graphs([Net(Unrolled(model), optimizer)], kept))
        loss = float_of(graphs[0].run(train, words, begins))
        perplexities.append(math.exp(min(loss, 20.0)))
        return loss

    return step


class Sampled(nn.Module):
    """LM: with its sampled words and its states as inputs."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, words: Tensor, rivals: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        model = self.model
        outputs = []
        for x in model.embedding(words[:, :-1]).unbind(1):
            h, c = model.cell(model.dropout(x), (h, c))
            outputs.append(model.dropout(h))
        found, targets = torch.cat(outputs), words[:, 1:].t().flatten()
        right = (found * model.weight[targets]).sum(1) + model.bias[targets] - model.log_chance(targets)
        wrong = found @ model.weight[rivals].t() + model.bias[rivals] - model.log_chance(rivals)
        wrong = wrong.masked_fill(rivals[None, :] == targets[:, None], -1e9)
        return (torch.logsumexp(torch.cat([right[:, None], wrong], 1), 1) - right).mean(), h, c


def lm(program: Program) -> Step:
    model, optimizer = program.state
    net = Net(Sampled(model), optimizer)
    clipped = [name.startswith("model.cell.") for name in net.parameters]
    graphs: list[Graphs] = []

    def train(parts: list[Part], kept: Kept, words: Tensor, rivals: Tensor) -> list[Tensor]:
        (part,) = parts
        loss, *after = part(words, rivals, *(state.clone() for state in kept))
        for state, new in zip(kept, after, strict=True):
            state.copy_(new.detach())
        gradients = part.gradients(loss)
        of_cell = iter(clip([g for g, there in zip(gradients, clipped, strict=True) if there], 1.0))
        part.update([next(of_cell) if there else g for g, there in zip(gradients, clipped, strict=True)])
        return [loss]

    def step(words: Tensor) -> float:
        if not graphs:
            kept = [torch.zeros(len(words), width) for width in (model.cell.out, model.cell.width)]
            graphs.append(Graphs([net], kept))
        drawn = np.random.random(model.samples)
        rivals = torch.from_numpy((np.exp(drawn * np.log(model.vocabulary)) - 1).astype(np.int64))
        return float_of(graphs[0].run(train, words, rivals))

    return step


# -- agents ------------------------------------------------------------------------------------------------------------


def a3c(program: Program) -> Step:
    worker = program.state
    graphs = Graphs([Net(worker.shared, worker.optimizer)])

    def train(
        parts: list[Part], kept: Kept, states: Tensor, actions: Tensor, rewards: Tensor, alive: Tensor
    ) -> list[Tensor]:
        (net,) = parts
        count = rewards.shape[0]
        turns = torch.arange(count)
        later = turns[None, :] - turns[:, None]  # how much later the reward of a column is than the move of a row
        discounts = torch.where(later >= 0, 0.99 ** later.clamp(min=0).float(), 0.0)
        last = net.without_gradient(states[-1])[1] * alive
        targets = (discounts * rewards).sum(1) + 0.99 ** (count - turns).float() * last
        log_policy, value = net(states[:-1])
        advantage = targets - value
        policy_loss = -(log_policy.gather(1, actions[:, None]).squeeze(1) * advantage.detach()).sum()
        entropy = -(log_policy.exp() * log_policy).sum()
        loss = policy_loss + 0.5 * advantage.square().sum() - 0.01 * entropy
        net.update(clip(net.gradients(loss), 40.0))
        return [loss]

    def step(states: Tensor, actions: list[int], rewards: list[float], done: bool) -> float:
        given = states, torch.tensor(actions), torch.tensor(rewards), torch.tensor(0.0 if done else 1.0)
        # Episodes of one move have a graph of their own: a size of one is another matter to broadcasting.
        opened = {0: 0, 1: 0, 2: 0} if len(rewards) > 1 else {}
        loss = float_of(graphs.run(train, *given, opened=opened))
        worker.running += sum(rewards)
        if done:
            worker.episodes += 1
            worker.scores.append(worker.running)
            worker.running = 0.0
        return loss

    return step


def ppo(program: Program) -> Step:
    learner = program.state
    graphs = Graphs([Net(learner.model, learner.optimizer)])

    def epoch(
        parts: list[Part],
        kept: Kept,
        states: Tensor,
        actions: Tensor,
        chances: Tensor,
        advantages: Tensor,
        targets: Tensor,
    ) -> list[Tensor]:
        (net,) = parts
        order = torch.randperm(len(targets))
        total = torch.zeros(())
        ratio = torch.zeros(())
        for picked in order.split(len(targets) // learner.pieces):
            now, value = net(states[picked])
            ratio = (now.gather(1, actions[picked, None]).squeeze(1) - chances[picked]).exp()
            gain = torch.min(ratio * advantages[picked], ratio.clamp(0.8, 1.2) * advantages[picked]).mean()
            entropy = -(now.exp() * now).sum(1).mean()
            loss = F.mse_loss(value, targets[picked]) - gain - 0.01 * entropy
            net.update(clip(net.gradients(loss), 0.5))
            net.renew()
            total = total + loss.detach()
        moved = (chances - net.without_gradient(states)[0].gather(1, actions[:, None]).squeeze(1)).mean()
        return [total, moved, ((ratio.detach() - 1).abs() > 0.2).float().mean()]

    def first(
        parts: list[Part], kept: Kept, states: Tensor, actions: Tensor, rewards: Tensor, alive: Tensor
    ) -> list[Tensor]:
        before, values = parts[0].without_gradient(states)
        chances = before[:-1].gather(-1, actions[..., None]).squeeze(-1)
        errors = rewards + 0.99 * values[1:] * alive - values[:-1]
        running = torch.zeros_like(rewards[0])
        found = []
        for turn in reversed(range(rewards.shape[0])):
            running = errors[turn] + 0.99 * 0.95 * alive[turn] * running
            found.append(running)
        advantages = torch.stack(found[::-1])
        targets = (advantages + values[:-1]).flatten()
        advantages = advantages.flatten()
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        given = states[:-1].flatten(0, 1), actions.flatten(), chances.flatten(), advantages, targets
        return [*epoch(parts, kept, *given), *given]

    def step(states: Tensor, actions: Tensor, rewards: Tensor, alive: Tensor) -> float:
        total, moved, clipped, *given = graphs.run(first, states, actions, rewards, alive)
        loss = total.item()
        for _ in range(learner.epochs - 1):
            if moved > learner.limit:
                break
            total, moved, clipped = graphs.run(epoch, *given)
            loss += total.item()
        learner.clipped.append(clipped.item())
        return loss

    return step


# -- trees -------------------------------------------------------------------------------------------------------------


def trees(kind: str) -> Callable[[Program], Step]:
    def made(program: Program) -> Step:
        progress = program.state
        model = BATCHED[kind](progress.model.embedding.embedding_dim)
        model.load_state_dict(progress.model.state_dict())
        progress.model = model
        progress.optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
        step: Step = progress.step
        return step

    return made


BY_HAND: dict[str, Callable[[Program], Step]] = {
    "a3c": a3c,
    "an": an,
    "bert_cls": bert_cls,
    "bert_qa": bert_qa,
    "dcgan": dcgan,
    "dropblock": dropblock,
    "gpt2": gpt2,
    "inception": classifier,
    "lenet": lenet,
    "lm": lm,
    "lstm": lstm,
    "music_transformer": music_transformer,
    "pix2pix": pix2pix,
    "ppo": ppo,
    "resnet50": classifier,
    "sdpoint": sdpoint,
    "treelstm": trees("treelstm"),
    "treernn": trees("treernn"),
}
