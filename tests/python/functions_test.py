# SPDX-License-Identifier: Apache-2.0
"""Models whose parameters are used inside torch.autograd.Function only, where operators record
nothing: hand-written ones, those of torch.compile, and reentrant checkpoints."""

import unittest

import ranks
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from works_with_test import batch_of, loss_of, mlp, sgd


class Affine(torch.autograd.Function):
    """A linear layer, inside which operators record nothing."""
    @staticmethod
    def forward(ctx, x, weight, bias):  # pylint: disable=arguments-differ
        ctx.save_for_backward(x, weight)
        return torch.addmm(bias, x, weight.t())

    @staticmethod
    def backward(ctx, gradient):  # pylint: disable=arguments-differ
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.t() @ x, gradient.sum(0)


def by_functions(model, x):
    """What the mlp() returns, whose parameters are used inside functions only."""
    for layer in model:
        is_linear = isinstance(layer, nn.Linear)
        x = Affine.apply(x, layer.weight, layer.bias) if is_linear else layer(x)
    return x


def by_reentrant_checkpoint(model, x):
    """The same in the backward of a function."""
    return checkpoint(model, x.requires_grad_(), use_reentrant=True)


class Functions(unittest.TestCase):
    def setUp(self):
        import sherd  # pylint: disable=import-outside-toplevel
        self.sherd = sherd

    def in_functions(self):
        """A handle, its model, and a function that calls it, of each kind."""
        for call in (by_functions, by_reentrant_checkpoint,
                     torch.compile(lambda model, x: model(x), backend="aot_eager")):
            for wrap in (lambda m: self.sherd.fully_shard(m, exchange="shared_memory"),
                         lambda m: self.sherd.fully_shard(m, exchange="messages"),
                         self.sherd.replicate):
                model = mlp()
                handle = wrap(model)
                yield handle, model, call
                handle.close()

    def parameters_of(self, handle, model):
        return (handle if hasattr(handle, "publish") else model).parameters()

    def same_values(self, handle, plain):
        whole = (handle.state_dict() if hasattr(handle, "publish")
                 else dict(handle.module.named_parameters()))
        for name, theirs in plain.named_parameters():
            torch.testing.assert_close(whole[name].detach(), theirs.detach())

    def test_losses_of_functions_that_a_rank_leaves_out(self):
        """The backward of a rank does not come to the model, which has run, though."""
        left_out = ((1, ranks.size() - 1), (3, 0))  # Step and rank.
        other = nn.Parameter(torch.ones(1))
        plain = mlp()
        optimizer = sgd(plain.parameters())
        for step in range(5):
            losses = [loss_of(plain, batch_of(step, rank)) for rank in range(ranks.size())
                      if (step, rank) not in left_out]
            ((sum(losses) + other.sum()) / ranks.size()).backward()
            optimizer.step()
            optimizer.zero_grad()
        for handle, model, call in self.in_functions():
            optimizer = sgd(self.parameters_of(handle, model))
            for step in range(5):
                loss = call(model, batch_of(step, ranks.rank())).square().mean()
                if (step, ranks.rank()) in left_out:
                    loss = loss.detach()
                (loss + other.sum()).backward()
                optimizer.step()
                optimizer.zero_grad()
            self.same_values(handle, plain)

    def test_micro_batches_of_functions(self):
        plain = mlp()
        optimizer = sgd(plain.parameters())
        for step in range(4):
            for rank in range(ranks.size()):
                (loss_of(plain, batch_of(step, rank)) / ranks.size()).backward()
            if step % 2 == 1:
                optimizer.step()
                optimizer.zero_grad()
        for handle, model, call in self.in_functions():
            optimizer = sgd(self.parameters_of(handle, model))
            for step in range(4):
                call(model, batch_of(step, ranks.rank())).square().mean().backward()
                if step % 2 == 1:
                    optimizer.step()
                    optimizer.zero_grad()
            self.same_values(handle, plain)

    def test_functions_are_compiled_in_one_graph(self):
        plain, model = mlp(), mlp()
        handle = self.sherd.fully_shard(model)
        call = torch.compile(by_functions, backend="eager", fullgraph=True)
        values = batch_of(0, 0)
        torch.testing.assert_close(call(model, values), plain(values))
        handle.close()


if __name__ == "__main__":
    ranks.main()
