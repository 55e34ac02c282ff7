# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT, byte by byte, on text files; parameters are sharded by sherd.

    torchrun --nproc-per-node 2 examples/python/train_gpt2.py --text docs
    sherd run -n 2 -- python examples/python/train_gpt2.py --text docs
"""

import argparse
from pathlib import Path

import sherd
import torch
from torch import nn


class GPT(nn.Module):
    def __init__(self, width=128, heads=4, layers=4, context=128):
        super().__init__()
        self.context = context
        self.bytes = nn.Embedding(256, width)
        self.positions = nn.Embedding(context, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu",
                                       batch_first=True, norm_first=True)
            for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(self.context)
        x = self.bytes(tokens) + self.positions.weight
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.norm(x) @ self.bytes.weight.T  # The head is the embedding.


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", default="docs", help="a file or folder of text")
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    path = Path(options.text)
    files = [path] if path.is_file() else sorted(path.rglob("*.md"))
    if not files:
        parser.error(f"--text: expected a file or a folder with *.md files, found {path}")
    text = torch.frombuffer(
        bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)

    torch.manual_seed(0)  # The same first values on every rank.
    model = GPT()
    nn.init.normal_(model.bytes.weight, std=0.02)
    handle = sherd.fully_shard(model)
    optimizer = torch.optim.AdamW(handle.parameters(), lr=1e-3)
    rank = handle.mesh.world.rank
    random = torch.Generator().manual_seed(rank)  # Other text on every rank.
    for step in range(options.steps):
        begins = torch.randint(len(text) - model.context, (8,), generator=random)
        batch = torch.stack([text[b:b + model.context + 1] for b in begins]).long()
        logits = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        handle.clip_grad_norm(1.0)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and (step % 10 == 0 or step + 1 == options.steps):
            print(f"step {step} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
