#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times of steps of PyTorch's own fully_shard on one GPU and one rank, beside the same model without
it: the work of bench/gpu_step.cpp's GPT, in blocks by turns.

  bench/gpu_fsdp2.py [tiny|gpt|offload]
  torchrun --nproc-per-node 2 bench/gpu_fsdp2.py [...]    (several ranks on one GPU, where NCCL can do that)
"""

import os
import pathlib
import statistics
import sys
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import peer_rank

STEPS_OF_BLOCK = 5
ROUNDS = 9

WORKS = {
    "tiny": ("tiny, 25 units", SimpleNamespace(
        layers=24, width=64, heads=2, sequence=16, batch=1, vocabulary=256)),
    "gpt": ("GPT 124 M", SimpleNamespace(
        layers=12, width=768, heads=12, sequence=1024, batch=16, vocabulary=50304)),
}
WORKS["offload"] = WORKS["gpt"]


def make_model(work):
    peer_rank.VOCABULARY = work.vocabulary
    with torch.device("cpu"):
        return peer_rank.Gpt(work).cuda()


def plain_bf16(work):
    model = make_model(work).to(torch.bfloat16)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def fsdp2(work, reshard, offload=False):
    model = make_model(work)
    options = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16,
                                                 reduce_dtype=torch.float32)}
    if offload:
        options["offload_policy"] = CPUOffloadPolicy()
    for block in model.h:
        fully_shard(block, reshard_after_forward=reshard, **options)
    fully_shard(model, reshard_after_forward=False, **options)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def step_of(model, optimizer, inputs, targets):
    def step():
        loss = model(inputs, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def time_block(step):
    step()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(STEPS_OF_BLOCK):
        step()
    given = time.perf_counter()
    torch.cuda.synchronize()
    end = time.perf_counter()
    return 1e3 * (end - begin) / STEPS_OF_BLOCK, 1e3 * (given - begin) / STEPS_OF_BLOCK


def compare(title, work, contenders):
    ids = torch.randint(work.vocabulary, (work.batch, work.sequence + 1), device="cuda")
    batch = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    steps, times = {}, {}
    for name, make in contenders.items():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        steps[name] = step_of(*make(work), *batch)
        for _ in range(5):
            loss = steps[name]().item()
        print(f"{title}, {name}: loss after 5 steps {loss:.4f}, "
              f"{(torch.cuda.max_memory_allocated() - before) >> 20} MiB allocated", flush=True)
        times[name] = []
    for _ in range(ROUNDS):
        for name, step in steps.items():
            times[name].append(time_block(step))
    for name, found in times.items():
        print(f"{title}, {name}: {statistics.median(t for t, _ in found):.2f} ms a step, "
              f"host {statistics.median(h for _, h in found):.2f} ms", flush=True)


CONTENDERS = {
    "PyTorch bf16": plain_bf16,
    "FSDP2 mixed, full_shard": lambda work: fsdp2(work, True),
    "FSDP2 mixed, shard_grad_op": lambda work: fsdp2(work, False),
}
OFFLOADED = {"FSDP2 mixed, cpu_offload": lambda work: fsdp2(work, True, offload=True)}


def main():
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    torch.set_default_device("cuda")
    dist.init_process_group("nccl")
    if dist.get_rank() > 0:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")
    for name in sys.argv[1:] or WORKS:
        compare(*WORKS[name], OFFLOADED if name == "offload" else CONTENDERS)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
