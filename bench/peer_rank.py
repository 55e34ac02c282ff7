#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of `sherd bench`'s contenders that are written in Python, on the
model, data and optimizer of the others: `fsdp2` and `ddp`, PyTorch's own
fully_shard and DistributedDataParallel over Gloo, and `python`, sherd's. Started by `sherd run`, driven through rank 0's stdin
by the lines that bench/contender_protocol.h describes.

The model is sherd::models::Gpt operator by operator (src/models/gpt.cpp), its
initial values too; `sherd bench` compares the losses.
"""

import argparse
import datetime
import json
import math
import os
import resource
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

VOCABULARY = 256
LEARNING_RATE = 3e-4  # kLearningRate of bench/workload.h.
BATCHES = 64
MASK = 2**64 - 1


def finalise(x):
    """SplitMix64's finaliser."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def seed_of(name):
    """The generator of a parameter's initial values, as sherd's Gpt has it
    with seed 0: FNV-1a over the name, then the finaliser."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return finalise(value)


class Projection(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x):
        shape = (*x.shape[:-1], self.weight.shape[1])
        rows = x.reshape(-1, self.weight.shape[0])
        return torch.addmm(self.bias, rows, self.weight).view(shape)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.c_attn = Projection(width, 3 * width)
        self.c_proj = Projection(width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            part.view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for part in self.c_attn(x).split(c, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(mixed.transpose(1, 2).reshape(b, t, c))


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_fc = Projection(width, 4 * width)
        self.c_proj = Projection(4 * width, width)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = Mlp(width)

    def forward(self, x):
        attended = x + self.attn(self.ln_1(x))
        return attended + self.mlp(self.ln_2(attended))


class Gpt(nn.Module):
    def __init__(self, work):
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, work.width)
        self.wpe = nn.Embedding(work.sequence, work.width)
        self.h = nn.ModuleList(
            Block(work.width, work.heads) for _ in range(work.layers)
        )
        self.ln_f = nn.LayerNorm(work.width)
        self.lm_head = nn.Linear(work.width, VOCABULARY, bias=False)
        self.initialise(work.layers)

    @torch.no_grad()
    def initialise(self, layers):
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:
                parameter.fill_(1.0 if name.endswith(".weight") else 0.0)
                continue
            deviation = 0.02
            if name.endswith("c_proj.weight"):
                deviation /= math.sqrt(2.0 * layers)
            generator = torch.Generator().manual_seed(seed_of(name))
            parameter.normal_(0.0, deviation, generator=generator)

    def forward(self, inputs, targets):
        x = self.wte(inputs) + self.wpe(torch.arange(inputs.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x)).float()
        return F.cross_entropy(
            logits.view(-1, VOCABULARY), targets.reshape(-1)
        )


def batch_of(work, step, rank, ranks):
    count = work.batch * (work.sequence + 1)
    part = (step * ranks + rank) * count
    golden = 0x9E3779B97F4A7C15
    numbers = [
        finalise((part + i + golden) & MASK) >> 56 for i in range(count)
    ]
    rows = torch.tensor(numbers).view(work.batch, work.sequence + 1)
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


EXCHANGES = {"collective": "messages", "shm": "shared_memory"}
IDLE_S = 7 * 24 * 3600  # Idle contenders wait until it is their turn.


def sharded_by_sherd(model, work):
    """The handle of sherd, as in its guide."""
    import sherd

    world = sherd.World.from_process_group(deadline_s=IDLE_S)
    exchange = EXCHANGES.get(work.exchange, work.exchange)
    if work.mode == "ddp":
        return sherd.replicate(model, world, exchange=exchange)
    bf16 = torch.bfloat16 if work.dtype == "bf16" else None
    return sherd.fully_shard(
        model,
        sherd.Mesh(world, replicate=work.replicate),
        units=Block,
        strategy=work.strategy,
        budget_bytes=work.budget_bytes,
        exchange=exchange,
        mixed_precision=sherd.MixedPrecision(param_dtype=bf16),
    )


def with_optimizer(model, work):
    """The distributed model and its optimizer, the fastest of its system."""
    if work.contender == "python":
        import sherd

        handle = sharded_by_sherd(model, work)
        in_backward = work.update == "backward"
        return model, sherd.AdamW(
            handle, lr=LEARNING_RATE, in_backward=in_backward
        )
    model = distributed(model, work)
    return model, torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, fused=True
    )


def distributed(model, work):
    """Each with what is documented as fastest for it here."""
    if work.contender == "ddp":
        return nn.parallel.DistributedDataParallel(
            model, gradient_as_bucket_view=True
        )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    shape, names = (dist.get_world_size(),), ("shard",)
    if work.replicate > 1:  # Hybrid sharding.
        shape = (work.replicate, shape[0] // work.replicate)
        names = ("replicate", "shard")
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    reshard = work.strategy == "full_shard"
    bf16 = torch.bfloat16 if work.dtype == "bf16" else None
    precision = MixedPrecisionPolicy(param_dtype=bf16)
    for block in model.h:
        fully_shard(
            block,
            mesh=mesh,
            reshard_after_forward=reshard,
            mp_policy=precision,
        )
    # The root stays whole between forward and backward either way, as sherd's
    # does: that is fully_shard's own preset.
    return fully_shard(model, mesh=mesh, mp_policy=precision)


def usage():
    """Minor page faults and milliseconds of processor time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_minflt, (used.ru_utime + used.ru_stime) * 1e3


class RankLoop:
    def __init__(self, work):
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.batches = [
            batch_of(work, step, self.rank, self.ranks)
            for step in range(BATCHES)
        ]
        self.model, self.optimizer = with_optimizer(Gpt(work), work)
        # DistributedDataParallel has no mixed precision over fp32 weights on
        # the CPU but this one.
        self.autocast = torch.autocast(
            "cpu",
            dtype=torch.bfloat16,
            enabled=work.dtype == "bf16" and work.contender == "ddp",
        )
        self.next = 0

    def gather(self, values):
        mine = torch.tensor(values, dtype=torch.float64)
        everyone = [torch.empty_like(mine) for _ in range(self.ranks)]
        dist.all_gather(everyone, mine)
        return torch.stack(everyone)

    def answer(self, **reply):
        if self.rank == 0:
            print("bench:", json.dumps(reply), flush=True)

    def next_steps(self):
        steps = torch.zeros(1, dtype=torch.int64)
        if self.rank == 0:
            steps[0] = int(sys.stdin.readline() or 0)
        dist.broadcast(steps, 0)
        return int(steps)

    def step(self):
        inputs, targets = self.batches[self.next % BATCHES]
        self.next += 1
        with self.autocast:
            loss = self.model(inputs, targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def take(self, steps):
        milliseconds, losses = [], []
        dist.barrier()
        used = usage()
        before = time.perf_counter()
        for _ in range(steps):
            losses.append(self.step())
            now = time.perf_counter()
            milliseconds.append((now - before) * 1e3)
            before = now
        mine = [now - then for now, then in zip(usage(), used)]
        faults, cpu_ms = self.gather(mine).sum(0).tolist()
        return {
            "step_ms": self.gather(milliseconds).amax(0).tolist(),
            "losses": self.gather(losses).mean(0).tolist(),
            "faults": int(faults),
            "cpu_ms": cpu_ms,
        }

    def run(self):
        processes = self.gather([os.getpid()]).view(-1).long().tolist()
        self.answer(torch_version=torch.__version__, processes=processes)
        while steps := self.next_steps():
            self.answer(**self.take(steps))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--contender", choices=("fsdp2", "ddp", "python"), required=True
    )
    for name in ("layers", "width", "heads", "sequence", "batch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--strategy", required=True)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--replicate", type=int, default=1)
    # Of `python` only.
    parser.add_argument("--mode", choices=("fsdp", "ddp"), default="fsdp")
    parser.add_argument("--exchange", default="auto")
    parser.add_argument("--update", default="step")
    parser.add_argument("--budget-bytes", type=int)
    parser.add_argument("--package", help="The folder in which sherd lies")
    work = parser.parse_args()
    if work.package:
        sys.path.insert(0, work.package)
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=IDLE_S)
    dist.init_process_group("gloo", timeout=timeout)
    RankLoop(work).run()
    dist.barrier()
    dist.destroy_process_group()
    # Gloo's threads may outlive the group, and then the interpreter's end calls
    # std::terminate (pytorch/pytorch#190489).
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
