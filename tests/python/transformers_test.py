# SPDX-License-Identifier: Apache-2.0
"""Models of transformers, unmodified, train and generate as in one process."""

import unittest
import unittest.mock

import clients
import ranks
import torch

STEPS = 20


class Transformers(unittest.TestCase):
    def setUp(self):
        import sherd  # pylint: disable=import-outside-toplevel
        self.sherd = sherd

    def trains_as_one_process_would(self, make, clip, tolerance):
        plain = make()
        plain.gradient_checkpointing_enable()
        expected = clients.alone(
            plain, torch.optim.AdamW(plain.parameters(), lr=1e-2, eps=1e-4), STEPS, clip)
        self.assertLess(expected[-1], expected[0] - 1.0)
        for exchange in ("shared_memory", "messages"):
            model = make()
            model.gradient_checkpointing_enable()
            handle = self.sherd.fully_shard(model, exchange=exchange)
            optimizer = torch.optim.AdamW(handle.parameters(), lr=1e-2, eps=1e-4)
            found = clients.together(model, optimizer, STEPS, clip)
            for step, (ours, theirs) in enumerate(zip(found, expected)):
                self.assertLessEqual(abs(ours - theirs), tolerance * theirs, step)
            handle.close()

    def test_the_same_bits_without_clipping(self):
        # A sum of two gradients is the same in either order.
        tolerance = 0 if ranks.size() <= 2 else 1e-5
        self.trains_as_one_process_would(clients.gpt2, None, tolerance)
        self.trains_as_one_process_would(clients.llama, None, tolerance)

    def test_the_same_to_rounding_with_clipping(self):
        # A norm is a sum of sums of ranks.
        self.trains_as_one_process_would(clients.gpt2, 0.5, 1e-5)
        self.trains_as_one_process_would(clients.llama, 0.5, 1e-5)

    def test_generate(self):
        for make in (clients.gpt2, clients.llama):
            prompt = clients.batch_of(0, 0)[:, :5]
            options = {"max_new_tokens": 12, "do_sample": False}
            expected = make().eval().generate(prompt, **options)
            for exchange in ("shared_memory", "messages"):
                model = make().eval()
                handle = self.sherd.fully_shard(model, exchange=exchange)
                with torch.no_grad():
                    found = model.generate(prompt, **options)
                self.assertTrue(torch.equal(found, expected))
                handle.close()

    def test_a_trainer_of_an_older_version_is_refused(self):
        import transformers  # pylint: disable=import-outside-toplevel
        # pylint: disable-next=import-outside-toplevel
        from sherd.integrations.transformers import shard
        with unittest.mock.patch.object(transformers, "__version__", "4.57.1"):
            with self.assertRaisesRegex(
                    self.sherd.InvalidArgumentError,
                    "expected transformers 5 or newer.*found transformers 4.57.1"):
                shard(None)


if __name__ == "__main__":
    clients.need("transformers")
    ranks.main(limit_s=900)
