# SPDX-License-Identifier: Apache-2.0
"""PyTorch's DistributedDataParallel and fully_shard, and torch.distributed's
calls, over shm give what they give over Gloo.

Usage: shm_test.py FOLDER, which holds the package sherd. Exits with 77
when it does not. Starts ranks of itself: shm_test.py FOLDER RANK STORE,
shm_test.py FOLDER drop, and shm_test.py FOLDER fork STORE.
"""

import atexit
import datetime
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings

RANKS = 2
STEPS = 4
KEPT = []


class Ranks:
    """What both backends are compared on, in one rank."""

    def __init__(self, rank):
        import torch
        self.torch = torch
        self.dist = torch.distributed
        self.rank = rank

    def model(self, layers=2):
        """A small decoder: embedding, layers of attention, a head."""
        nn = self.torch.nn
        self.torch.manual_seed(0)
        attention = [
            nn.TransformerEncoderLayer(
                32, 4, 64, dropout=0.0, batch_first=True)
            for _ in range(layers)
        ]
        return nn.Sequential(
            nn.Embedding(64, 32), *attention, nn.Linear(32, 64))

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

    def hooked(self, bucket_cap_mb):
        """With a hook whose callbacks wait for collectives: PyTorch's
        powerSGD_hook, which needs NumPy, or one that waits as it does."""
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
        wrapped = self.torch.nn.parallel.DistributedDataParallel(
            self.model(layers=0), bucket_cap_mb=bucket_cap_mb)
        if importlib.util.find_spec("numpy"):
            state = powerSGD_hook.PowerSGDState(
                None, start_powerSGD_iter=2, min_compression_rate=1)
            wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        else:
            wrapped.register_comm_hook(None, self.waits_in_callbacks)
        return self.losses(wrapped, wrapped.parameters())

    def waits_in_callbacks(self, _state, bucket):
        def reduce_async(tensor):
            return self.dist.all_reduce(tensor, async_op=True).get_future()

        def average(future):
            [total] = future.value()
            return reduce_async(total / RANKS).wait()

        future = reduce_async(bucket.buffer()).then(average).then(average)
        return future.then(lambda last: last.value()[0])

    def many_buckets(self):
        """Over Gloo the ranks would not agree on the order of the calls."""
        self.hooked(bucket_cap_mb=0.001)
        total = self.torch.ones(3)
        self.dist.all_reduce(total)
        assert total.tolist() == [RANKS] * 3, total

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
        found["in a callback"] = self.call_in_a_callback(own.clone())
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
        found.update(self.shared())
        dist.barrier()
        return {name: tensor.tolist() for name, tensor in found.items()}

    def call_in_a_callback(self, tensor):
        """Rank 1 comes late, so that rank 0's callback runs on the thread of
        the group."""
        dist = self.dist
        token = self.torch.ones(1)
        if self.rank == 1:
            dist.recv(token, src=0)
        first = dist.all_reduce(token.clone(), async_op=True).get_future()
        future = first.then(
            lambda _: dist.all_reduce(tensor, async_op=True).get_future()
            .wait()[0])
        if self.rank == 0:
            dist.send(token, dst=1)
        return future.wait()

    def shared(self):
        """Calls whose tensors share memory."""
        torch, dist = self.torch, self.dist
        found = {}
        own = torch.arange(8, dtype=torch.float32) * (self.rank + 1)
        for name, first, second in (
                ("twice", slice(0, 8), slice(0, 8)),
                ("overlapping", slice(0, 5), slice(2, 8)),
                ("with gaps", slice(0, 8, 2), slice(1, 6))):
            total = own.clone()
            dist.all_reduce_coalesced([total[first], total[second]])
            found["sum " + name] = total
        for begin in (0, 2, 4):
            whole = own.clone()
            dist.all_gather_into_tensor(whole, whole[begin:begin + 4])
            found[f"gathered of {begin}"] = whole
            whole = own.clone()
            dist.reduce_scatter_tensor(whole[begin:begin + 4], whole)
            found[f"scattered to {begin}"] = whole
        return found

    def open(self, backend, **where):
        self.dist.init_process_group(
            backend, rank=self.rank, world_size=RANKS,
            timeout=datetime.timedelta(seconds=60), **where)

    def everything(self, backend, store):
        self.open(backend, init_method=f"file://{store}.{backend}")
        found = {
            "ddp": self.ddp(),
            "ddp hook": self.hooked(bucket_cap_mb=25),
            "fsdp": self.fsdp(mixed=False),
            "fsdp bf16": self.fsdp(mixed=True),
            "calls": self.calls(),
        }
        self.dist.destroy_process_group()
        return found

    def again_and_again(self, store):
        """Groups one after another on one store, each rank late in turn."""
        torch, dist = self.torch, self.dist
        keys = dist.FileStore(f"{store}.again", RANKS)
        for turn in range(4):
            if turn % RANKS == self.rank:
                keys.wait([f"{turn} others come"])
            else:
                keys.set(f"{turn} others come", "1")
            self.open("shm", store=keys)
            if self.rank == 0:
                end_a_child(torch)
            if turn == 0:
                self.many_buckets()
            for _ in range(2):
                group = dist.new_group([1, 0])
                total = torch.ones(3)
                dist.all_reduce(total, group=group)
                assert total.tolist() == [RANKS] * 3, total
                dist.destroy_process_group(group)
            dist.destroy_process_group()

    def ends_in_order(self, store):
        """Rank 0 ends without destroy_process_group(), as rank 1 is told, and
        with a model that keeps the group until after Python's end."""
        torch, dist = self.torch, self.dist
        self.open("shm", init_method=f"file://{store}.end")
        KEPT.append(
            torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2)))
        KEPT[0](torch.ones(1, 2)).sum().backward()
        error = text_of(dist.monitored_barrier)
        assert "only implemented for GLOO" in error, error
        self.rank_0_leaves()

    def rank_0_leaves(self):
        """Without destroy_process_group(), at the end of its process."""
        torch, dist = self.torch, self.dist
        dist.barrier()
        if self.rank == 0:
            return
        error = text_of(lambda: dist.all_reduce(torch.ones(3)))
        assert "rank 0 has left" in error, error
        dist.destroy_process_group()


def text_of(action):
    try:
        action()
    except Exception as error:  # pylint: disable=broad-except
        return str(error)
    return "no error"


def has_no_part(torch):
    """Whether each use of the group is an error about the fork."""
    dist, ones = torch.distributed, torch.ones(3)
    for use in (lambda: dist.all_reduce(ones), dist.barrier,
                lambda: dist.isend(ones, dst=1),
                lambda: dist.irecv(ones, src=1)):
        error = text_of(use)
        if "found a forked child" not in error:
            print(f"expected an error about the fork, found: {error}",
                  flush=True)
            return False
    return True


def end_a_child(torch):
    """A forked child cannot use the group, and says at its exit nothing about
    the rank. One that does not use the group works."""
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        refused = has_no_part(torch)
        atexit._run_exitfuncs()  # pylint: disable=protected-access
        # PyTorch's FileStore counts the ends of its objects.
        os._exit(0 if refused else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    loader = torch.utils.data.DataLoader(
        range(3), num_workers=1, multiprocessing_context="fork")
    assert torch.cat(list(loader)).tolist() == [0, 1, 2]


def drop(folder):
    """The last reference to a backend goes in Python, while its thread runs a
    callback that needs the interpreter."""
    sys.path.insert(0, folder)
    from sherd import shm
    import torch
    import torch.distributed as dist
    store = dist.HashStore()
    backend = shm._open.create(  # pylint: disable=protected-access
        store, 0, 1, timeout_seconds=60, names=[], single_copy=True)
    group = dist.ProcessGroup(store, 0, 1)
    group._register_backend(  # pylint: disable=protected-access
        torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, backend)
    begun = threading.Event()
    state = {"dropping": False, "after": 0}

    def callback(_future):
        if threading.current_thread() is threading.main_thread():
            return  # The work had ended before then(), on a busy machine.
        begun.set()
        while state["after"] < 50:
            time.sleep(0.001)
            state["after"] += state["dropping"]

    options = dist.AllreduceOptions()
    options.asyncOp = True
    for _ in range(1000):
        work = group.allreduce([torch.ones(3)], options)
        future = work.get_future().then(callback)
        if not future.done():
            break
    begun.wait()
    del group, work, options
    state["dropping"] = True
    del backend
    future.wait()
    assert state["after"] == 50, state
    print("dropped", flush=True)


def fork_ranks(folder, store):
    """Ranks that are forked after the backend was imported leave as others do."""
    sys.path.insert(0, folder)
    import sherd.shm  # noqa: F401  Registers the backend.
    children = []
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            signal.alarm(100)
            ranks = Ranks(rank)
            ranks.open("shm", init_method=f"file://{store}")
            ranks.rank_0_leaves()
            sys.exit()
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
             for child in children]
    assert codes == [0] * RANKS, codes
    print("forked ranks left", flush=True)


def run_rank(folder, rank, store):
    warnings.simplefilter("ignore")
    sys.path.insert(0, folder)
    import sherd.shm  # noqa: F401  Registers the backend.
    ranks = Ranks(rank)
    over_shm = ranks.everything("shm", store)
    ranks.again_and_again(store)
    print(f"rank {rank}: again and again", flush=True)
    over_gloo = ranks.everything("gloo", store)
    # Two numbers have one sum, whatever the order: the bits are equal.
    for name, expected in over_gloo.items():
        assert over_shm[name] == expected, (
            f"{name}: expected {expected}, as over Gloo, "
            f"found {over_shm[name]}")
        print(f"rank {rank}: {name} equal", flush=True)
    ranks.ends_in_order(store)
    print(f"rank {rank}: ends in order", flush=True)


def main():
    folder = sys.argv[1]
    if not os.path.exists(os.path.join(folder, "sherd")):
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
        try:
            codes = [rank.wait(timeout=200) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        forked = subprocess.run(
            [sys.executable, __file__, folder, "fork",
             os.path.join(scratch, "forked")], timeout=120, check=False)
        codes.append(forked.returncode)
    # Hangs where the interpreter's lock is kept.
    dropped = subprocess.run(
        [sys.executable, __file__, folder, "drop"], timeout=60, check=False)
    codes.append(dropped.returncode)
    sys.exit(0 if codes == [0] * (RANKS + 2) else 1)


if __name__ == "__main__":
    if sys.argv[2:] == ["drop"]:
        drop(sys.argv[1])
    elif sys.argv[2:3] == ["fork"]:
        fork_ranks(sys.argv[1], sys.argv[3])
    elif len(sys.argv) == 4:
        run_rank(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    else:
        main()
