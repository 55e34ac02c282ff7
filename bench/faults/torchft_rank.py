#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One replica under torchft, for torchft_compare.py: the model and the batches
of `sherd train`, wrapped as torchft's example train_ddp.py does it. Appends to
--journal a line of JSON for each step that was committed or discarded, and in
the end the hash of parameters and optimizer. Then it stays until its standard
input ends, so that the others can finish their last step with it.

With --lighthouse it is torchft's coordinator instead and prints its address.
"""

import argparse
import ctypes
import datetime
import hashlib
import json
import os
import pathlib
import sys
import time

STARTED_S = time.monotonic()
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist
from peer_rank import Gpt
from torchft import DistributedDataParallel, Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.data import DistributedSampler


class Windows(torch.utils.data.Dataset):
    """Of a file of text, whose bytes are tokens."""

    def __init__(self, path, sequence):
        data = bytearray(pathlib.Path(path).read_bytes())
        self.tokens = torch.frombuffer(data, dtype=torch.uint8)
        self.sequence = sequence

    def __len__(self):
        return (len(self.tokens) - 1) // self.sequence

    def __getitem__(self, index):
        begin = index * self.sequence
        row = self.tokens[begin : begin + self.sequence + 1].long()
        return row[:-1], row[1:]


def batches(options):
    rows = Windows(options.data, options.sequence)
    sampler = DistributedSampler(
        rows,
        replica_rank=options.replica,
        num_replica_groups=options.replicas,
        group_rank=0,
        num_replicas=1,
        shuffle=True,
    )
    while True:
        yield from torch.utils.data.DataLoader(
            rows, batch_size=options.batch, sampler=sampler, drop_last=True
        )


def tensors_of(state):
    """In a fixed order, of nested dictionaries."""
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, dict):
        for key in sorted(state, key=str):
            yield from tensors_of(state[key])


def digest(state):
    hashed = hashlib.sha256()
    for tensor in tensors_of(state):
        whole = tensor.detach().contiguous()
        hashed.update(ctypes.string_at(whole.data_ptr(), whole.nbytes))
    return hashed.hexdigest()[:16]


class Journal:
    def __init__(self, path):
        self.file = open(path, "a", encoding="utf-8")

    def add(self, kind, **values):
        self.file.write(json.dumps({"kind": kind, **values}) + "\n")
        self.file.flush()


def lighthouse(options):
    server = LighthouseServer(
        bind="127.0.0.1:0",
        min_replicas=1,
        join_timeout_ms=options.join_ms,
        quorum_tick_ms=100,
        heartbeat_timeout_ms=options.heartbeat_ms,
    )
    print(server.address(), flush=True)
    sys.stdin.read()
    os._exit(0)


def train(options):
    journal = Journal(options.journal)
    journal.add("ready", import_s=time.monotonic() - STARTED_S)
    model = Gpt(options)
    adamw = torch.optim.AdamW(model.parameters(), lr=options.lr, fused=True)

    def state_dict():
        return {"model": model.state_dict(), "optimizer": adamw.state_dict()}

    def load_state_dict(state):
        model.load_state_dict(state["model"])
        adamw.load_state_dict(state["optimizer"])

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    timeout = datetime.timedelta(seconds=options.timeout_s)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=datetime.timedelta(seconds=5)),
        min_replica_size=1,
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        replica_id=f"replica_{options.replica}",
        timeout=timeout,
        quorum_timeout=timeout,
        connect_timeout=timeout,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
    )
    wrapped = DistributedDataParallel(manager, model)
    for inputs, targets in batches(options):
        if manager.current_step() >= options.steps:
            break
        # torchft.optim.OptimizerWrapper in three lines, to hear the decision.
        manager.start_quorum()
        adamw.zero_grad()
        wrapped(inputs, targets).backward()
        made = manager.should_commit()
        if made:
            adamw.step()
        journal.add("commit" if made else "discard", step=manager.current_step())
    journal.add("end", hash=digest(state_dict()), step=manager.current_step())
    sys.stdin.read()
    os._exit(0)  # Gloo's threads may outlive the interpreter's state.


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lighthouse", action="store_true")
    parser.add_argument("--heartbeat-ms", type=int, default=5000)
    parser.add_argument("--join-ms", type=int, default=60000)
    parser.add_argument("--timeout-s", type=float, default=60)
    parser.add_argument("--lr", type=float, default=3e-4)
    for name in ("replica", "replicas", "steps"):
        parser.add_argument(f"--{name}", type=int, default=1)
    for name in ("layers", "width", "heads", "sequence", "batch"):
        parser.add_argument(f"--{name}", type=int, default=1)
    parser.add_argument("--data")
    parser.add_argument("--journal")
    options = parser.parse_args()
    if options.lighthouse:
        lighthouse(options)
    torch.set_num_threads(1)
    train(options)


if __name__ == "__main__":
    main()
