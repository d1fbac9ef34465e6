"""A word language model (LSTM, truncated backpropagation) with growing lengths, annealing, early stopping."""

import argparse
import math
import random

import torch
import torch.nn as nn


class Corpus:
    def __init__(self, n, vocab, seed):
        rng = random.Random(seed)
        state, out = 0, []
        for _ in range(n):
            state = (state * 5 + rng.choice([1, 1, 1, 3, 7])) % vocab
            out.append(state)
        self.ids = torch.tensor(out)


class RNNModel(nn.Module):
    def __init__(self, rnn_type, ntoken, ninp, nhid, nlayers, dropout=0.2, tie_weights=True):
        super().__init__()
        self.ntoken = ntoken
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = getattr(nn, rnn_type)(ninp, nhid, nlayers, dropout=dropout)
        self.decoder = nn.Linear(nhid, ntoken)
        if tie_weights:
            self.decoder.weight = self.encoder.weight
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        self.rnn_type, self.nhid, self.nlayers = rnn_type, nhid, nlayers

    def forward(self, input, hidden):
        emb = self.drop(self.encoder(input))
        output, hidden = self.rnn(emb, hidden)
        decoded = self.decoder(self.drop(output))
        return torch.log_softmax(decoded.view(-1, self.ntoken), dim=1), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        if self.rnn_type == "LSTM":
            return (weight.new_zeros(self.nlayers, bsz, self.nhid), weight.new_zeros(self.nlayers, bsz, self.nhid))
        return weight.new_zeros(self.nlayers, bsz, self.nhid)


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    return data.narrow(0, 0, nbatch * bsz).view(bsz, -1).t().contiguous()


def repackage_hidden(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


def get_batch(source, i, bptt):
    seq_len = min(bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].view(-1)


def evaluate(model, data_source, criterion, bptt):
    model.eval()
    total_loss = 0.0
    hidden = model.init_hidden(10)
    with torch.no_grad():
        for i in range(0, data_source.size(0) - 1, bptt):
            data, targets = get_batch(data_source, i, bptt)
            output, hidden = model(data, hidden)
            hidden = repackage_hidden(hidden)
            total_loss += len(data) * criterion(output, targets).item()
    return total_loss / (len(data_source) - 1)


def train(model, train_data, criterion, args, lr, epoch, bptt):
    model.train()
    total_loss = 0.0
    hidden = model.init_hidden(args.batch_size)
    for batch, i in enumerate(range(0, train_data.size(0) - 1, bptt)):
        data, targets = get_batch(train_data, i, bptt)
        model.zero_grad()
        hidden = repackage_hidden(hidden)
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
        total_loss += loss.item()
        if batch % args.log_interval == 0 and batch > 0:
            cur_loss = total_loss / args.log_interval
            print(
                "| epoch {:3d} | {:5d}/{:5d} batches | lr {:02.2f} | loss {:5.4f} | ppl {:8.3f}".format(
                    epoch, batch, len(train_data) // bptt, lr, cur_loss, math.exp(cur_loss)
                )
            )
            total_loss = 0
        if args.dry_run:
            break


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", default="LSTM")
    p.add_argument("--epochs", type=int, default=8)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--clip", type=float, default=0.25)
    p.add_argument("--log-interval", type=int, default=50)
    p.add_argument("--dry-run", action="store_true")
    args = p.parse_args()
    torch.manual_seed(1)
    corpus, valid = Corpus(24000, 60, 0), Corpus(3000, 60, 1)
    train_data, val_data = batchify(corpus.ids, args.batch_size), batchify(valid.ids, 10)
    model = RNNModel(args.model, 60, 48, 48, 2)
    criterion = nn.NLLLoss()
    lr, best_val_loss, waited = 5.0, None, 0
    for epoch in range(1, args.epochs + 1):
        bptt = min(6 + 4 * (epoch // 4), 18)
        train(model, train_data, criterion, args, lr, epoch, bptt)
        val_loss = evaluate(model, val_data, criterion, bptt)
        print("-" * 60)
        print(
            "| end of epoch {:3d} | bptt {} | valid loss {:5.4f} | valid ppl {:8.3f}".format(
                epoch, bptt, val_loss, math.exp(val_loss)
            )
        )
        if not best_val_loss or val_loss < best_val_loss:
            best_val_loss, waited = val_loss, 0
        else:
            lr /= 4.0
            waited += 1
            if waited > 4:
                print("early stop")
                break


if __name__ == "__main__":
    main()
