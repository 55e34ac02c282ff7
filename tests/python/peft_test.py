# SPDX-License-Identifier: Apache-2.0
"""LoRA by peft on a sharded Llama trains as in one process."""

import unittest

import clients
import ranks
import torch

STEPS = 20


def adapted():
    """A Llama with adapters whose values are random, too."""
    import peft  # pylint: disable=import-outside-toplevel
    base = clients.llama()
    return peft.get_peft_model(base, peft.LoraConfig(
        r=4, target_modules=["q_proj", "v_proj", "down_proj"], lora_dropout=0.0,
        init_lora_weights=False))


class Peft(unittest.TestCase):
    def setUp(self):
        import sherd  # pylint: disable=import-outside-toplevel
        self.sherd = sherd

    def test_trains_as_one_process_would(self):
        plain = adapted()
        trained = [p for p in plain.parameters() if p.requires_grad]
        expected = clients.alone(
            plain, torch.optim.AdamW(trained, lr=1e-2, eps=1e-4), STEPS, clip=1.0)
        self.assertLess(expected[-1], expected[0])
        for exchange in ("shared_memory", "messages"):
            model = adapted()
            handle = self.sherd.fully_shard(
                model, exchange=exchange, strategy="shard_grad_op")
            optimizer = torch.optim.AdamW(handle.parameters(), lr=1e-2, eps=1e-4)
            found = clients.together(model, optimizer, STEPS, clip=1.0)
            for step, (ours, theirs) in enumerate(zip(found, expected)):
                self.assertLessEqual(abs(ours - theirs), 1e-5 * theirs, step)
            if exchange == "messages" and ranks.size() > 1:
                self.frozen_units_are_gathered_once(handle)
            with handle.summon_full_parameters(read_only=True) as full:
                for name, parameter in plain.named_parameters():
                    self.assertTrue(torch.allclose(
                        full.tensor(name), parameter, atol=1e-5), name)
            handle.close()

    def frozen_units_are_gathered_once(self, handle):
        gathers = {unit.name: unit.gathers for unit in handle.report().by_unit}
        frozen = [name for name in gathers if name.endswith("(frozen)")]
        self.assertEqual(len(frozen), 2)  # The layers.
        for name in frozen:
            self.assertEqual(gathers[name], 1, name)
            trained = name.removesuffix(" (frozen)")
            self.assertEqual(gathers[trained], STEPS, trained)


if __name__ == "__main__":
    clients.need("transformers", "peft", "accelerate")
    ranks.main(limit_s=900)
