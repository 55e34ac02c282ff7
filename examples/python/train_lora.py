# SPDX-License-Identifier: Apache-2.0
"""peft's LoRA on a small Llama, sharded by sherd: the frozen base is gathered once.

    torchrun --nproc-per-node 2 examples/python/train_lora.py --text docs/guide
"""

import argparse
from pathlib import Path

import peft
import sherd
import torch
import transformers

CONTEXT = 64


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", default="docs/guide", help="a folder of text")
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    files = sorted(Path(options.text).glob("*.md"))
    if not files:
        parser.error(f"--text: expected a folder with *.md files, found {options.text}")
    text = torch.frombuffer(
        bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)

    transformers.set_seed(0)
    base = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=CONTEXT))
    model = peft.get_peft_model(base, peft.LoraConfig(
        r=8, target_modules="all-linear", modules_to_save=["lm_head"]))
    # "shard_grad_op" lets what was gathered stay while nothing changes it.
    handle = sherd.fully_shard(model, strategy="shard_grad_op")
    optimizer = torch.optim.AdamW(handle.parameters(), lr=1e-2)
    rank = handle.mesh.world.rank
    random = torch.Generator().manual_seed(rank)
    for step in range(options.steps):
        begins = torch.randint(len(text) - CONTEXT, (8,), generator=random)
        tokens = torch.stack([text[b:b + CONTEXT] for b in begins]).long()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and (step % 10 == 0 or step + 1 == options.steps):
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    if rank == 0:
        print(handle.report().to_text())


if __name__ == "__main__":
    main()
