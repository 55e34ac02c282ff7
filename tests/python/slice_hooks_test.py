# SPDX-License-Identifier: Apache-2.0
"""Hooks that slices have by Tensor.register_post_accumulate_grad_hook()."""

import collections
import unittest

import ranks
import torch
from torch import nn


class Net(nn.Module):
    """Several parameters of one element, of which most ranks have nothing."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))
        self.scale = nn.Parameter(torch.ones(1))
        self.shift = nn.Parameter(torch.zeros(1))
        self.unused = nn.Linear(3, 3)

    def forward(self, values):
        return self.body(values) * self.scale + self.shift


def loss_of(model, step):
    generator = torch.Generator().manual_seed(100 * step + ranks.rank())
    return model(torch.randn(4, 6, generator=generator)).square().mean()


class SliceHooks(unittest.TestCase):
    def setUp(self):
        import sherd  # pylint: disable=import-outside-toplevel
        self.sherd = sherd

    def whole(self, handle):
        with handle.summon_full_parameters(read_only=True) as full:
            return {name: full.tensor(name).clone()
                    for name, _ in handle.module.named_parameters()}

    def stepping_in_hooks(self, names):
        """A handle whose slices of these names make an optimizer's step in a hook."""
        model = Net()
        handle = self.sherd.fully_shard(model)
        optimizers = {}

        def update(part):
            optimizers[part].step()
            optimizers[part].zero_grad()

        for name, part in handle.named_parameters():
            if name in names and part.numel():
                optimizers[part] = torch.optim.SGD([part], lr=0.2, momentum=0.9)
                part.register_post_accumulate_grad_hook(update)
        return model, handle

    def stepping_by_hand(self, names):
        model = Net()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in names)
        handle = self.sherd.fully_shard(model)
        return model, handle, torch.optim.SGD(
            handle.parameters(), lr=0.2, momentum=0.9)

    def check_steps_in_hooks(self, names):
        model, handle = self.stepping_in_hooks(names)
        plain, reference, optimizer = self.stepping_by_hand(names)
        for step in range(4):
            found, expected = loss_of(model, step), loss_of(plain, step)
            self.assertTrue(torch.equal(found, expected))
            found.backward()
            expected.backward()
            optimizer.step()
            optimizer.zero_grad()
        ours = self.whole(handle)
        for name, theirs in self.whole(reference).items():
            self.assertTrue(torch.equal(ours[name], theirs), name)
        self.assertFalse(torch.equal(ours[names[0]], Net().state_dict()[names[0]]))
        handle.close()
        reference.close()

    def test_c16_an_optimizer_may_step_in_them(self):
        self.check_steps_in_hooks([name for name, _ in Net().named_parameters()])

    def test_ranks_may_have_none(self):
        self.check_steps_in_hooks(["scale"])

    def test_are_called_once_when_a_gradient_has_been_reduced(self):
        self.call_each_once()
        self.call_each_once(mixed_precision=self.sherd.MixedPrecision(param_dtype=torch.bfloat16))

    def call_each_once(self, **options):
        model = Net()
        handle = self.sherd.fully_shard(model, **options)
        calls = collections.Counter()
        slices = {name: part for name, part in handle.named_parameters() if part.numel()}
        registered = []
        for name, part in slices.items():
            def note(given, name=name, part=part):
                self.assertIs(given, part)
                self.assertIsNotNone(given.grad)
                self.assertFalse(torch.is_grad_enabled())
                calls[name] += 1
            registered.append(part.register_post_accumulate_grad_hook(note))
        with handle.no_sync():
            loss_of(model, 0).backward()
        self.assertEqual(calls, {})
        loss_of(model, 1).backward()
        used = {name for name in slices if not name.startswith("unused")}
        self.assertEqual(calls, dict.fromkeys(used, 1))
        with self.assertRaises(ZeroDivisionError):
            with torch.autograd.graph.save_on_cpu():
                loss = loss_of(model, 2)
                loss.register_hook(lambda grad: 1 / 0)
                loss.backward()
        self.assertEqual(calls, dict.fromkeys(used, 1))
        torch.autograd.grad(loss_of(model, 3), model.body[0].bias, allow_unused=True)
        for one in registered:
            one.remove()
        loss_of(model, 4).backward()
        self.assertEqual(calls, dict.fromkeys(used, 1))
        handle.close()

    def test_what_they_raise_ends_the_training_of_all(self):
        model = Net()
        # Of its own: a rank that gives up is lost to the others.
        world = self.sherd.World.from_environment().subset(list(range(ranks.size())))
        handle = self.sherd.fully_shard(model, world)

        def refuse(_part):
            raise ValueError("not today")

        last = ranks.rank() == ranks.size() - 1
        if last:
            dict(handle.named_parameters())[
                "body.2.bias"].register_post_accumulate_grad_hook(refuse)
        with self.assertRaisesRegex((ValueError, self.sherd.Error),
                                    "not today" if last else "hook|lost|not today"):
            loss_of(model, 0).backward()
        handle.close()


if __name__ == "__main__":
    ranks.main()
