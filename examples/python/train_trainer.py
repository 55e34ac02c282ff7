# SPDX-License-Identifier: Apache-2.0
"""transformers.Trainer trains a small GPT-2 on bytes of text files, sharded by sherd.

    torchrun --nproc-per-node 2 examples/python/train_trainer.py --text docs/guide

Three lines are sherd's: the import, shard() and use_cpu.
"""

import argparse
import tempfile
from pathlib import Path

import torch
import transformers
from sherd.integrations.transformers import shard

CONTEXT = 64


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", default="docs/guide", help="a folder of text")
    parser.add_argument("--steps", type=int, default=11)
    options = parser.parse_args()
    files = sorted(Path(options.text).glob("*.md"))
    if not files:
        parser.error(f"--text: expected a folder with *.md files, found {options.text}")
    text = b"".join(file.read_bytes() for file in files)
    blocks = [torch.tensor(list(text[begin:begin + CONTEXT]))
              for begin in range(0, len(text) - CONTEXT, CONTEXT)]
    dataset = [{"input_ids": block, "labels": block} for block in blocks]

    transformers.set_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=256, n_positions=CONTEXT, n_embd=64, n_layer=2, n_head=4))
    with tempfile.TemporaryDirectory() as folder:
        trainer = transformers.Trainer(
            model, transformers.TrainingArguments(
                folder, use_cpu=True, max_steps=options.steps, logging_steps=1,
                per_device_train_batch_size=8, gradient_accumulation_steps=2,
                learning_rate=5e-3, weight_decay=0.1, save_strategy="no",
                disable_tqdm=True, report_to="none"),
            train_dataset=dataset)
        shard(trainer).train()
    if trainer.is_world_process_zero():
        for entry in trainer.state.log_history:
            if "loss" in entry:
                print(f"loss {float(entry['loss']):.3f}")


if __name__ == "__main__":
    main()
