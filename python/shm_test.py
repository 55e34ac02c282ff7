# SPDX-License-Identifier: Apache-2.0
"""PyTorch's DistributedDataParallel and fully_shard, and torch.distributed's
calls, over shm give what they give over Gloo.

Usage: shm_test.py FOLDER, which holds the package sherd_shm. Exits with 77
when it does not. Starts ranks of itself: shm_test.py FOLDER RANK STORE.
"""

import datetime
import os
import subprocess
import sys
import tempfile
import warnings

RANKS = 2
STEPS = 4


class Ranks:
    """What both backends are compared on, in one rank."""

    def __init__(self, rank):
        import torch
        self.torch = torch
        self.dist = torch.distributed
        self.rank = rank

    def model(self):
        """A small decoder: embedding, two layers of attention, a head."""
        nn = self.torch.nn
        self.torch.manual_seed(0)
        layers = [
            nn.TransformerEncoderLayer(
                32, 4, 64, dropout=0.0, batch_first=True) for _ in range(2)
        ]
        return nn.Sequential(
            nn.Embedding(64, 32), *layers, nn.Linear(32, 64))

    def losses(self, model, parameters):
        """Of a few steps, and what is left of the parameters."""
        torch = self.torch
        optimizer = torch.optim.AdamW(parameters, lr=1e-2)
        generator = torch.Generator().manual_seed(self.rank)
        losses = []
        for _ in range(STEPS):
            tokens = torch.randint(64, (4, 16), generator=generator)
            logits = model(tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    def ddp(self):
        wrapped = self.torch.nn.parallel.DistributedDataParallel(
            self.model(), bucket_cap_mb=0.05)
        return self.losses(wrapped, wrapped.parameters())

    def fsdp(self, mixed):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        torch = self.torch
        mesh = init_device_mesh("cpu", (RANKS,))
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16,
            reduce_dtype=torch.float32) if mixed else MixedPrecisionPolicy()
        model = self.model()
        for layer in list(model)[1:3]:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        return self.losses(model, model.parameters())

    def calls(self):
        """Results of torch.distributed's calls, as lists."""
        torch, dist = self.torch, self.dist
        own = torch.arange(6, dtype=torch.float32) * (self.rank + 1)
        found = {}
        for name in ("SUM", "AVG", "MAX", "MIN", "PRODUCT"):
            total = own.clone()
            dist.all_reduce(total, op=getattr(dist.ReduceOp, name))
            found[name] = total
        for name in ("BAND", "BOR", "BXOR"):
            bits = torch.arange(6) + self.rank
            dist.all_reduce(bits, op=getattr(dist.ReduceOp, name))
            found[name] = bits
        work = dist.all_reduce(found["SUM"].clone(), async_op=True)
        work.wait()
        found["future"] = work.get_future().wait()[0]
        whole = torch.empty(12)
        dist.all_gather_into_tensor(whole, own)
        found["gathered"] = whole
        part = torch.empty(3)
        dist.reduce_scatter_tensor(part, own)
        found["scattered"] = part
        swapped = torch.empty(6)
        dist.all_to_all_single(swapped, own)
        found["swapped"] = swapped
        group = dist.new_group([0, 1])
        dist.broadcast(own, src=1, group=group)
        found["broadcast"] = own
        dist.barrier()
        return {name: tensor.tolist() for name, tensor in found.items()}

    def everything(self, backend, store):
        self.dist.init_process_group(
            backend, init_method=f"file://{store}.{backend}", rank=self.rank,
            world_size=RANKS, timeout=datetime.timedelta(seconds=60))
        found = {
            "ddp": self.ddp(),
            "fsdp": self.fsdp(mixed=False),
            "fsdp bf16": self.fsdp(mixed=True),
            "calls": self.calls(),
        }
        self.dist.destroy_process_group()
        return found


def run_rank(folder, rank, store):
    warnings.simplefilter("ignore")
    sys.path.insert(0, folder)
    import sherd_shm  # noqa: F401  Registers the backend.
    ranks = Ranks(rank)
    over_shm = ranks.everything("shm", store)
    over_gloo = ranks.everything("gloo", store)
    # Two numbers have one sum, whatever the order: the bits are equal.
    for name, expected in over_gloo.items():
        assert over_shm[name] == expected, (
            f"{name}: expected {expected}, as over Gloo, "
            f"found {over_shm[name]}")
        print(f"rank {rank}: {name} equal", flush=True)


def main():
    folder = sys.argv[1]
    if not os.path.exists(os.path.join(folder, "sherd_shm")):
        print(f"expected the package in {folder}, found none; "
              "it needs python3-dev")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as scratch:
        ranks = [
            subprocess.Popen([
                sys.executable, __file__, folder,
                str(rank), os.path.join(scratch, "store")
            ]) for rank in range(RANKS)
        ]
        codes = [rank.wait(timeout=200) for rank in ranks]
    sys.exit(0 if codes == [0] * RANKS else 1)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        run_rank(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    else:
        main()
