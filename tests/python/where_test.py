# SPDX-License-Identifier: Apache-2.0
"""Over which ranks a module is sharded: process groups of two backends, device
meshes, parts of them, and meshes of replicas and shards."""

import os
import unittest

import ranks
import torch
import torch.distributed as dist
from torch import nn

STEPS = 3


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))


def loss_of(model, step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return model(torch.randn(4, 8, generator=generator)).square().mean()


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def trained_alone(members):
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
    for step in range(STEPS):
        (sum(loss_of(model, step, rank) for rank in members) / len(members)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


class Where(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import sherd  # pylint: disable=import-outside-toplevel
        import sherd.shm  # noqa: F401  Registers a backend.
        cls.sherd = sherd
        dist.init_process_group("gloo")
        cls.rank, cls.size = ranks.rank(), ranks.size()

    @classmethod
    def tearDownClass(cls):
        dist.destroy_process_group()

    def check(self, where, members, by=None, **options):
        """This rank and `members` train as one process would with their batches."""
        by = by or self.sherd.fully_shard
        model = mlp()
        handle = by(model, where, **options)
        slices = (model if by is self.sherd.replicate else handle).parameters()
        optimizer = torch.optim.AdamW(slices, lr=1e-2, eps=1e-4)
        for step in range(STEPS):
            loss_of(model, step, self.rank).backward()
            optimizer.step()
            optimizer.zero_grad()
        if by is self.sherd.replicate:
            found = weights(model)
        else:
            with handle.summon_full_parameters(read_only=True):
                found = weights(model)
        torch.testing.assert_close(found, trained_alone(members), rtol=0, atol=1e-5)
        handle.close()

    def test_process_groups(self):
        everybody = range(self.size)
        self.check(None, everybody)
        self.check(dist.group.WORLD, everybody, by=self.sherd.replicate)
        self.check(dist.new_group(backend="shm"), everybody)
        halves = [list(everybody[:self.size // 2]), list(everybody[self.size // 2:])]
        for backend in ("gloo", "shm"):
            mine, _ = dist.new_subgroups_by_enumeration(halves, backend=backend)
            members = halves[self.rank // (self.size // 2)]
            self.check(mine, members)
            self.check(mine, members, by=self.sherd.replicate)

    def test_device_meshes(self):
        everybody = range(self.size)
        mesh = dist.init_device_mesh("cpu", (self.size,))
        self.check(mesh, everybody)
        replicas = 2
        mesh = dist.init_device_mesh(
            "cpu", (replicas, self.size // replicas), mesh_dim_names=("dp", "shard"))
        for axes in ("shard", "both"):
            for exchange in ("shared_memory", "messages"):
                self.check(mesh, everybody, optimizer_axes=axes, exchange=exchange)
        self.check(mesh["shard"], mesh.mesh[mesh.get_local_rank(0)].tolist())
        self.check(mesh["dp"], mesh.mesh[:, mesh.get_local_rank(1)].tolist(),
                   by=self.sherd.replicate)

    def test_device_meshes_of_other_orders_and_of_a_part_of_all_ranks(self):
        everybody = torch.arange(self.size)
        mesh = dist.DeviceMesh("cpu", everybody.view(2, -1).t().contiguous())
        self.check(mesh, range(self.size))
        self.check(mesh, range(self.size), optimizer_axes="both", exchange="messages")
        cube = dist.init_device_mesh(
            "cpu", (2, 1, self.size // 2), mesh_dim_names=("other", "dp", "shard"))
        mine = cube.mesh[cube.get_local_rank(0)].flatten().tolist()
        self.check(cube["dp", "shard"], mine)
        self.check(cube["dp", "shard"], mine)  # By the same world.
        cube = dist.init_device_mesh(
            "cpu", (2, self.size // 2, 1), mesh_dim_names=("dp", "other", "shard"))
        mine = cube.mesh[:, cube.get_local_rank(1)].flatten().tolist()
        self.check(cube["dp", "shard"], mine)
        self.check(cube["dp", "shard"], mine, by=self.sherd.replicate)
        with self.assertRaisesRegex(
                self.sherd.InvalidArgumentError, "of one dimension, or of two"):
            self.sherd.fully_shard(mlp(), cube)

    def test_models_may_share_connections(self):
        world = self.sherd.World.from_process_group(
            dist.new_group(), share_connections=True)
        handles, sockets = [], []
        for _ in range(3):
            handles.append(self.sherd.fully_shard(mlp(), world, exchange="messages"))
            loss_of(handles[-1].module, 0, self.rank).backward()
            world.barrier()
            sockets.append(sum(
                "socket" in os.readlink(f"/proc/self/fd/{number}")
                for number in os.listdir("/proc/self/fd")
                if os.path.islink(f"/proc/self/fd/{number}")))
        self.assertEqual(sockets[1], sockets[2])
        for handle in handles:
            handle.close()
        self.check(world, range(self.size), exchange="messages")

    def test_meshes_of_sherd(self):
        world = self.sherd.World.from_process_group()
        mesh = self.sherd.Mesh(world, replicate=2)
        self.assertEqual((mesh.replicate_size, mesh.shard_size), (2, self.size // 2))
        self.check(mesh, range(self.size), strategy="shard_grad_op")
        self.check(world, range(self.size), strategy="no_shard")


if __name__ == "__main__":
    ranks.main()
