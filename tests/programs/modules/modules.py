"""Library modules in training and inference."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.programs.harness import CALLS, Program, program

RUN_ONE_IN = 12  # Each takes a second or two, or is much like the others.


def inputs(count=CALLS, *shape):
    return [(torch.randn(*(shape or (4, 5))),) for _ in range(count)]


def trained(model, calls, loss=lambda out: out.pow(2).mean(), optimizer=torch.optim.SGD):
    opt = optimizer(model.parameters(), lr=0.05)

    def step(*args):
        opt.zero_grad()
        value = loss(model(*args))
        value.backward()
        opt.step()
        return value.item()

    return Program(step, calls)


@program()
def lstm():
    return trained(nn.LSTM(5, 6, num_layers=2), inputs(CALLS, 3, 2, 5), lambda out: out[0].pow(2).mean())


@program()
def lstm_bidirectional_dropout():
    model = nn.LSTM(5, 6, num_layers=2, bidirectional=True, dropout=0.2, batch_first=True)
    return trained(model, inputs(CALLS, 2, 3, 5), lambda out: out[0].pow(2).mean() + out[1][0].sum())


@program()
def gru():
    return trained(nn.GRU(5, 6), inputs(CALLS, 3, 2, 5), lambda out: out[0].pow(2).mean())


@program()
def rnn():
    return trained(nn.RNN(5, 6), inputs(CALLS, 3, 2, 5), lambda out: out[0].pow(2).mean())


@program()
def truncated_bptt():
    model = nn.LSTM(5, 6)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    class State:
        hidden = None

    state = State()
    state.hidden = (torch.zeros(1, 2, 6), torch.zeros(1, 2, 6))

    def step(x):
        hidden = tuple(h.detach() for h in state.hidden)
        out, state.hidden = model(x, hidden)
        loss = out.pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, inputs(CALLS, 3, 2, 5))


@program()
def truncated_bptt_from_none():
    model = nn.GRU(5, 6)
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    state = {"hidden": None}

    def step(x):
        out, hidden = model(x, state["hidden"])
        loss = out.pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        state["hidden"] = hidden.detach()
        return loss.item()

    return Program(step, inputs(CALLS + 2, 3, 2, 5))


class HandLSTM(nn.Module):
    def __init__(self, i, h):
        super().__init__()
        self.x = nn.Linear(i, 4 * h)
        self.h = nn.Linear(h, 4 * h, bias=False)
        self.size = h

    def forward(self, xs):
        h = c = xs.new_zeros(xs.shape[1], self.size)
        outs = []
        for x in xs:
            i, f, g, o = (self.x(x) + self.h(h)).chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outs.append(h)
        return torch.stack(outs), (h, c)


@program()
def hand_written_lstm():
    return trained(HandLSTM(5, 6), inputs(CALLS, 4, 2, 5), lambda out: out[0].pow(2).mean())


@program()
def embedding():
    model = nn.Sequential(nn.Embedding(10, 4, padding_idx=0), nn.Linear(4, 3))
    return trained(model, [(torch.randint(10, (2, 6)),) for _ in range(CALLS)])


@program()
def embedding_max_norm():
    model = nn.Sequential(nn.Embedding(10, 4, max_norm=1.0), nn.Linear(4, 3))
    return trained(model, [(torch.randint(10, (2, 6)),) for _ in range(CALLS)])


@program()
def embedding_bag():
    model = nn.EmbeddingBag(10, 4, mode="mean")
    return trained(model, [(torch.randint(10, (2, 6)),) for _ in range(CALLS)])


@program()
def multihead_attention():
    model = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
    return trained(model, [(x, x, x) for (x,) in inputs(CALLS, 2, 3, 8)], lambda out: out[0].pow(2).mean())


@program()
def attention_with_mask():
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(3)

    def step(x):
        out, weights = model(x, x, x, attn_mask=mask, is_causal=True, need_weights=True)
        out.sum().backward()
        return out, weights

    return Program(step, inputs(CALLS, 2, 3, 8))


@program()
def transformer_encoder_layer():
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    return trained(model, inputs(CALLS, 2, 3, 8))


@program()
def transformer_encoder_eval():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()

    def step(x):
        with torch.no_grad():
            return model(x)

    return Program(step, inputs(CALLS, 2, 3, 8))


@program()
def convnet():
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3)
    )
    return trained(model, inputs(CALLS, 2, 1, 8, 8))


@program()
def conv_variants():
    model = nn.Sequential(
        nn.Conv1d(2, 4, 3, stride=2, groups=2, padding_mode="circular", padding=1),
        nn.GroupNorm(2, 4),
        nn.GELU(),
        nn.ConvTranspose1d(4, 2, 2),
        nn.AdaptiveAvgPool1d(3),
    )
    return trained(model, inputs(CALLS, 2, 2, 9))


@program()
def normalisations():
    model = nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 6), nn.RMSNorm(6), nn.PReLU(), nn.Dropout(0.5), nn.Softplus())
    return trained(model, inputs())


@program()
def batchnorm_without_momentum():
    model = nn.BatchNorm1d(5, momentum=None)

    def step(x):
        return model(x).detach()

    return Program(step, inputs(), state=model)


@program()
def instance_norm_and_pools():
    model = nn.Sequential(nn.InstanceNorm2d(2, track_running_stats=True), nn.AvgPool2d(2), nn.Upsample(scale_factor=2))

    def step(x):
        return model(x)

    return Program(step, inputs(CALLS, 2, 2, 4, 4))


@program()
def many_losses():
    model = nn.Linear(5, 3)
    weights = torch.tensor([0.2, 0.3, 0.5])
    ce, kl = nn.CrossEntropyLoss(weight=weights, label_smoothing=0.1), nn.KLDivLoss(reduction="batchmean")

    def step(x, y):
        model.zero_grad()
        out = model(x)
        one = F.one_hot(y, 3).float()
        loss = ce(out, y) + kl(out.log_softmax(-1), one.softmax(-1))
        loss = loss + F.mse_loss(out, one) + F.smooth_l1_loss(out, one) + F.binary_cross_entropy_with_logits(out, one)
        loss = (
            loss
            + F.nll_loss(out.log_softmax(-1), y)
            + F.hinge_embedding_loss(out, one * 2 - 1)
            + F.huber_loss(out, one)
        )
        loss.backward()
        return loss.item()

    return Program(step, [(torch.randn(4, 5), torch.randint(3, (4,))) for _ in range(CALLS)])


@program()
def module_speculated_directly():
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2)).eval().requires_grad_(False)
    return Program(model, inputs())


@program()
def module_with_keywords():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(5))

        def forward(self, x, *, scale=1.0, **extra):
            return (x * self.w * scale + extra.get("bias", 0)).detach()

    from tests.programs.harness import Call

    model = Net()
    return Program(model, [Call(x, scale=2.0, bias=i) for i, (x,) in enumerate(inputs())])


@program()
def module_containers():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(5, 5) for _ in range(3)])
            self.heads = nn.ModuleDict({"a": nn.Linear(5, 2), "b": nn.Linear(5, 3)})
            self.scales = nn.ParameterList([nn.Parameter(torch.ones(5)) for _ in range(2)])
            self.named = nn.ParameterDict({"bias": nn.Parameter(torch.zeros(5))})

        def forward(self, x):
            for i, block in enumerate(self.blocks):
                x = x + torch.tanh(block(x)) * self.scales[i % 2]
            x = x + self.named["bias"]
            return {name: head(x) for name, head in self.heads.items()}

    model = Net()
    return trained(model, inputs(), lambda out: sum(v.pow(2).mean() for v in out.values()))


@program()
def forward_hooks_from_the_start():
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    seen = {}

    def keep(module, args, out):
        seen["mean"] = out.detach().mean()
        return out * 2

    model[0].register_forward_hook(keep)
    model[2].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    return trained(model, inputs())


@program()
def spectral_norm():
    model = nn.utils.parametrizations.spectral_norm(nn.Linear(5, 3))
    return trained(model, inputs())


@program()
def weight_norm():
    model = nn.utils.parametrizations.weight_norm(nn.Linear(5, 3))
    return trained(model, inputs())


@program()
def checkpointed():
    from torch.utils.checkpoint import checkpoint

    one, two = nn.Linear(5, 5), nn.Linear(5, 3)

    def step(x):
        out = two(checkpoint(one, x, use_reentrant=False))
        out.sum().backward()
        return out.sum().item()

    return Program(step, inputs())


@program()
def residual_with_skips():
    class Block(nn.Module):
        def __init__(self, n, skip):
            super().__init__()
            self.lin, self.skip = nn.Linear(n, n), skip

        def forward(self, x):
            out = self.lin(x)
            if self.skip:
                out = out + x
            if self.training:
                out = F.dropout(out, 0.1)
            return out

    return trained(nn.Sequential(*[Block(5, i % 2 == 0) for i in range(4)]), inputs())


@program()
def inference_with_no_grad_decorator():
    model = nn.Linear(5, 3)

    @torch.no_grad()
    def predict(x):
        return model(x).argmax(-1)

    def step(x):
        return predict(x)

    return Program(step, inputs())


@program()
def step_decorated_with_no_grad():
    model = nn.Linear(5, 3)

    @torch.no_grad()
    def step(x):
        return model(x).softmax(-1)

    return Program(step, inputs())


@program()
def inference_mode_inside():
    model = nn.Linear(5, 3)

    def step(x):
        with torch.inference_mode():
            return model(x)

    return Program(step, inputs())


@program(slow=True)
def bert_classifier():
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
    )
    model = BertForSequenceClassification(config)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(ids, labels):
        opt.zero_grad()
        out = model(input_ids=ids, labels=labels)
        out.loss.backward()
        opt.step()
        return out.loss.item(), out.logits.detach()

    return Program(step, [(torch.randint(50, (2, 7)), torch.randint(2, (2,))) for _ in range(CALLS)])


@program()
def gpt2_model_output_returned():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)

    def step(ids):
        opt.zero_grad()
        out = model(input_ids=ids, labels=ids, use_cache=False)
        out.loss.backward()
        opt.step()
        return out

    return Program(step, [(torch.randint(40, (2, 6)),) for _ in range(CALLS)])
