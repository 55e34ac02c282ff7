#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One replica under sherd.ft.Session, for torchft_compare.py: model, batches and
optimizer of torchft_rank.py. Appends to a file in --run, one for each process, a
line of JSON for each step that it has, the last one with a hash of parameters and
optimizer."""

import argparse
import ctypes
import hashlib
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import torch
from peer_rank import Gpt

import sherd


def rows_of(tokens, samples, length):
    """Inputs and targets [samples, length] of a text whose bytes are tokens."""
    begins = samples % ((len(tokens) - 1) // length) * length
    rows = tokens[begins.unsqueeze(1) + torch.arange(length + 1)].long()
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def digest(tensors):
    hashed = hashlib.sha256()
    for tensor in tensors:
        hashed.update(ctypes.string_at(tensor.data_ptr(), tensor.nbytes))
    return hashed.hexdigest()[:16]


def train(options):
    data = bytearray(pathlib.Path(options.data).read_bytes())
    tokens = torch.frombuffer(data, dtype=torch.uint8)
    handle = sherd.fully_shard(Gpt(options), strategy="no_shard")
    model = handle.module
    adamw = sherd.AdamW(handle, lr=options.lr)
    folder = pathlib.Path(options.run, f"replica-{os.environ['SHERD_REPLICA']}")
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / "metrics.new"  # Which its reader takes for another file.
    with open(new, "w", encoding="utf-8", buffering=1) as journal:
        new.rename(folder / "metrics.jsonl")
        computed = False  # What a returning replica has fetched does not count.
        with sherd.ft.Session(handle, adamw) as session:
            for step in session:
                if step.number > options.steps:
                    break
                if computed:
                    journal.write(json.dumps({"step": step.number - 1}) + "\n")
                computed = len(step.samples) > 0
                if computed:
                    loss = model(*rows_of(tokens, step.samples, options.sequence))
                    session.last_backward()
                    loss.backward()
        end = {"step": options.steps, "hash": digest(handle.parameters())}
        journal.write(json.dumps(end) + "\n")
    handle.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("layers", "width", "heads", "sequence", "batch", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--run", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    train(options)


if __name__ == "__main__":
    main()
