# SPDX-License-Identifier: Apache-2.0
"""Twenty steps of models of several kinds give the losses of one process.

Bits can differ, because one process adds gradients of ranks in another order. Every
model is trained by both ways of sharding and both exchanges, and the losses may
differ by TOLERANCE of the largest.
"""

import unittest

import ranks
import torch
from torch import nn
from torch.nn import functional as F

STEPS = 20
TOLERANCE = 1e-4


class ResNet(nn.Module):
    """Two residual blocks with BatchNorm, and a shortcut of other sizes."""

    class Block(nn.Module):
        def __init__(self, planes, out, stride):
            super().__init__()
            self.conv1 = nn.Conv2d(planes, out, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(out)
            self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(out)
            self.shortcut = nn.Identity() if planes == out and stride == 1 else (
                nn.Sequential(nn.Conv2d(planes, out, 1, stride, bias=False),
                              nn.BatchNorm2d(out)))

        def forward(self, x):
            y = F.relu(self.bn1(self.conv1(x)), inplace=True)
            y = self.bn2(self.conv2(y))
            y += self.shortcut(x)
            return F.relu(y, inplace=True)

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.Sequential(self.Block(8, 8, 1), self.Block(8, 16, 2))
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))

    @staticmethod
    def batch(generator):
        return (torch.randn(4, 3, 8, 8, generator=generator),
                torch.randint(10, (4,), generator=generator))

    def loss(self, images, classes):
        return F.cross_entropy(self(images), classes)


class Lstm(nn.Module):
    """Two layers of nn.LSTM, whose one operator takes all weights as a list."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.lstm = nn.LSTM(16, 24, num_layers=2, batch_first=True, bidirectional=True)
        self.cell = nn.GRUCell(48, 12)
        self.head = nn.Linear(12, 32)

    def forward(self, tokens):
        states, _ = self.lstm(self.embedding(tokens))
        state = states.new_zeros(len(tokens), 12)
        for step in states.unbind(1):
            state = self.cell(step, state)
        return self.head(state)

    @staticmethod
    def batch(generator):
        return (torch.randint(32, (4, 7), generator=generator),)

    def loss(self, tokens):
        return F.cross_entropy(self(tokens[:, :-1]), tokens[:, -1])


class Tied(nn.Module):
    """An embedding that is the head, and one layer that is used twice."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.layers = nn.ModuleList([layer, layer])
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))

    batch = Lstm.batch

    def loss(self, tokens):
        logits = self(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class Scripted(nn.Module):
    """A part of it is a script, which takes no hooks."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(8, 16)
        self.part = torch.jit.script(nn.Sequential(nn.Linear(16, 16), nn.Tanh()))
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.part(self.stem(x)))

    @staticmethod
    def batch(generator):
        return (torch.randn(4, 8, generator=generator),
                torch.randint(10, (4,), generator=generator))

    loss = ResNet.loss


def made(kind):
    torch.manual_seed(0)
    return kind()


def batch_of(kind, step, rank):
    """One of two batches of the rank, which it sees ten times."""
    return kind.batch(torch.Generator().manual_seed(1000 * (step % 2) + rank))


def optimizer_over(parameters):
    return torch.optim.AdamW(parameters, lr=3e-3, eps=1e-4)


def alone(kind):
    """Losses of one process that takes the batches of all ranks one by one, so that
    BatchNorm sees those of a rank together."""
    model = made(kind)
    optimizer = optimizer_over(model.parameters())
    losses = []
    for step in range(STEPS):
        of_ranks = [model.loss(*batch_of(kind, step, rank))
                    for rank in range(ranks.size())]
        (sum(of_ranks) / ranks.size()).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(of_ranks[ranks.rank()].item())
    return losses, model


def together(kind, model, optimizer):
    losses = []
    for step in range(STEPS):
        loss = model.loss(*batch_of(kind, step, ranks.rank()))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


class Models(unittest.TestCase):
    def setUp(self):
        import sherd  # pylint: disable=import-outside-toplevel
        self.sherd = sherd

    def check(self, kind):
        expected, plain = alone(kind)
        # Of one batch: the steps change far more than may differ.
        self.assertGreater(abs(expected[-2] - expected[0]), 20 * TOLERANCE * max(expected))
        for exchange in ("shared_memory", "messages"):
            with self.subTest(exchange=exchange, by="fully_shard"):
                model = made(kind)
                handle = self.sherd.fully_shard(model, exchange=exchange)
                optimizer = optimizer_over(handle.parameters())
                self.close(together(kind, model, optimizer), expected)
                with handle.summon_full_parameters(read_only=True):
                    for ours, theirs in zip(model.parameters(), plain.parameters()):
                        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-3)
                handle.close()
            with self.subTest(exchange=exchange, by="replicate"):
                model = made(kind)
                handle = self.sherd.replicate(
                    model, exchange=exchange, broadcast_buffers=False)
                self.close(
                    together(kind, model, optimizer_over(model.parameters())), expected)
                handle.close()

    def close(self, found, expected):
        for ours, theirs in zip(found, expected):
            self.assertLessEqual(abs(ours - theirs), TOLERANCE * max(expected))

    def test_resnet(self):
        self.check(ResNet)

    def test_lstm(self):
        self.check(Lstm)

    def test_tied_weights(self):
        self.check(Tied)

    def test_scripted_part(self):
        self.check(Scripted)
        model = made(Scripted)
        handle = self.sherd.fully_shard(model, units=[])
        with self.assertRaisesRegex(self.sherd.Error, "of a sharded module"):
            model.state_dict()
        self.assertEqual(list(handle.state_dict()), list(made(Scripted).state_dict()))
        handle.close()
        with self.assertRaisesRegex(self.sherd.InvalidArgumentError, "found a script"):
            self.sherd.fully_shard(torch.jit.script(nn.Linear(2, 2)))


if __name__ == "__main__":
    ranks.main()
