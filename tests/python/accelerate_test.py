# SPDX-License-Identifier: Apache-2.0
"""A loop for accelerate, which sherd shards, does what one process does."""

import shutil
import sys
import unittest
from pathlib import Path

import clients
import ranks
import torch

STEPS = 6
ACCUMULATED = 2
BATCH = 2
CLIP = 0.5


def tokens():
    generator = torch.Generator().manual_seed(11)
    count = STEPS * ACCUMULATED * BATCH * ranks.size()
    return torch.randint(1, clients.VOCABULARY, (count, 16), generator=generator)


def optimizer_of(model):
    """Weight decay for matrices only, by the names of parameters."""
    named = list(model.named_parameters())
    is_plain = [name.endswith("bias") or "ln_" in name for name, _ in named]
    groups = [[p for (_, p), plain in zip(named, is_plain) if plain is wanted]
              for wanted in (False, True)]
    return torch.optim.AdamW(
        [{"params": groups[0], "weight_decay": 0.2},
         {"params": groups[1], "weight_decay": 0.0}], lr=1e-2, eps=1e-4)


def schedule_of(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))


def alone():
    """This rank's losses in one process that takes what all ranks take."""
    model = clients.gpt2()
    optimizer = optimizer_of(model)
    schedule = schedule_of(optimizer)
    losses = []
    parts = ACCUMULATED * ranks.size()
    for number, batch in enumerate(tokens().split(BATCH)):
        loss = model(input_ids=batch, labels=batch).loss
        (loss / parts).backward()
        if number % ranks.size() == ranks.rank():
            losses.append(loss.item())
        if (number + 1) % parts == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return model, losses


class Accelerate(unittest.TestCase):
    def prepared(self):
        """A sharded model and what trains it."""
        import accelerate
        from sherd.integrations.accelerate import shard
        accelerator = shard(accelerate.Accelerator(
            cpu=True, gradient_accumulation_steps=ACCUMULATED,
            step_scheduler_with_optimizer=False))
        model = clients.gpt2()
        optimizer = optimizer_of(model)
        loader = torch.utils.data.DataLoader(tokens(), batch_size=BATCH)
        return accelerator, accelerator.prepare(
            model, optimizer, loader, schedule_of(optimizer))

    def train(self, accelerator, prepared, first=0, save_at=None, folder=None):
        model, optimizer, loader, schedule = prepared
        losses = []
        for number, batch in enumerate(loader):
            if number < first:
                continue
            with accelerator.accumulate(model):
                loss = model(input_ids=batch, labels=batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), CLIP)
                optimizer.step()
                if accelerator.sync_gradients:
                    schedule.step()
                optimizer.zero_grad()
            losses.append(loss.item())
            if number + 1 == save_at:
                accelerator.save_state(folder)
                accelerator.wait_for_everyone()
        return losses

    def near(self, ours, theirs):
        self.assertEqual(len(ours), len(theirs))
        for a, b in zip(ours, theirs):
            self.assertLessEqual(abs(a - b), 2e-5 * b)

    def test_trains_saves_and_loads_as_one_process_would(self):
        folder = Path(sys.argv[1]).parent / "tests" / f"accelerate.{ranks.size()}"
        half = STEPS // 2 * ACCUMULATED
        plain, expected = alone()
        accelerator, prepared = self.prepared()
        if accelerator.is_main_process:
            shutil.rmtree(folder, ignore_errors=True)
        accelerator.wait_for_everyone()
        found = self.train(accelerator, prepared, save_at=half, folder=folder)
        self.near(found, expected)
        state = accelerator.get_state_dict(prepared[0])
        if accelerator.is_main_process:
            for name, value in plain.state_dict().items():
                self.assertTrue(torch.allclose(state[name], value, atol=2e-5), name)
        again, others = self.prepared()
        again.load_state(folder)
        self.near(self.train(again, others, first=half), expected[half:])

    def test_mistakes_are_told(self):
        import sherd
        accelerator, prepared = self.prepared()
        from sherd.integrations.accelerate import shard
        with self.assertRaisesRegex(sherd.InvalidArgumentError, "first prepare"):
            shard(accelerator)
        with self.assertRaisesRegex(sherd.InvalidArgumentError, "clip_grad_norm_"):
            accelerator.clip_grad_value_(prepared[0].parameters(), 1.0)
        other = torch.nn.Linear(3, 3)
        parameters = list(prepared[0].parameters()) + list(other.parameters())
        with self.assertRaisesRegex(sherd.FailedPreconditionError, "found 2 others"):
            accelerator.prepare(torch.optim.SGD(parameters, lr=0.1))


if __name__ == "__main__":
    clients.need("transformers", "accelerate")
    ranks.main(limit_s=900)
