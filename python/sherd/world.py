# SPDX-License-Identifier: Apache-2.0
"""The ranks of a job: from the environment, a process group or a device mesh."""

from __future__ import annotations

import atexit
import sys
from typing import Union

import torch.distributed as dist

from . import _core
from ._fork import check_not_forked
from ._fork import worlds as _worlds
from ._handles import handles
from ._options import options_of
from .errors import FailedPreconditionError, InvalidArgumentError

Mesh = _core.Mesh

# What fully_shard() and replicate() take: see there.
Where = Union[None, "_core.World", "_core.Mesh", dist.ProcessGroup, dist.DeviceMesh]


class World:
    """Makes worlds. A world is this process's membership in the group of all ranks of a job.

    from_environment() and from_process_group() return the same object every time they
    are asked for the same ranks, with the options of the first time, until close():
    then they make another one. single() makes one each time. A world has ``rank``,
    ``size``, ``local_rank``, ``local_size``, ``barrier()``, ``all_gather(numbers)``,
    ``broadcast(tensors)``, ``subset(ranks)`` and ``close()``. Mirrors
    torch.distributed.init_process_group.
    """

    def __new__(cls):
        raise InvalidArgumentError(
            "[python] expected World.from_environment(), from_process_group() or "
            "single(), found World()")

    @staticmethod
    def from_environment(deadline_s: float = 600.0,
                         rendezvous_deadline_s: float = 300.0,
                         share_connections: bool = False,
                         network_interface: str = "") -> _core.World:
        """The ranks that torchrun, `sherd run`, Slurm or Open MPI has started;
        this process alone where there are none. Collective. A wait for another rank fails
        when that rank has made no progress for `deadline_s` seconds.

        share_connections: models made over this world share connections, instead of having
            their own, and fail together. New connections are made after every 64 models, closed
            ones included. Must be the same on all ranks. Mirrors share_comm_ctx() of FSDP2.
        network_interface: the interface, such as "eth0", for connections between
            hosts; "": the one that leads to rank 0. Ranks of one host use the
            loopback address."""
        check_not_forked()
        if None not in _worlds:
            _worlds[None] = _core.World.from_environment(options_of(
                _core.WorldOptions, deadline_s=deadline_s,
                rendezvous_deadline_s=rendezvous_deadline_s,
                share_connections=share_connections,
                network_interface=network_interface))
        return _worlds[None]

    @staticmethod
    def from_process_group(group: dist.ProcessGroup | None = None,
                           deadline_s: float = 600.0,
                           rendezvous_deadline_s: float = 300.0,
                           share_connections: bool = False,
                           network_interface: str = "") -> _core.World:
        """The ranks of a process group of torch.distributed, by default of the
        default one, through its store. Collective over the group. The group's own
        connections are not used. The options are those of from_environment(). Raises
        FailedPreconditionError where there is no such group, or this rank is not in
        it."""
        check_not_forked()
        store = _store_of(group)
        group = group or dist.group.WORLD
        if group not in _worlds:
            _worlds[group] = _made_over(
                store, dist.get_process_group_ranks(group), options_of(
                    _core.WorldOptions, deadline_s=deadline_s,
                    rendezvous_deadline_s=rendezvous_deadline_s,
                    share_connections=share_connections,
                    network_interface=network_interface))
        return _worlds[group]

    @staticmethod
    def single() -> _core.World:
        """This process alone."""
        check_not_forked()
        return _core.World.single()


def _made_over(store, ranks, options):
    """A world of these ranks, in this order. Its keys stay in the store, also when it
    is closed, and another process group may have the same store: how many worlds this
    rank has made there is in the store, too, and makes the keys differ."""
    rank = ranks.index(dist.get_rank())
    # Names the ranks where it must: every key begins with it.
    everybody = list(ranks) == list(range(dist.get_world_size()))
    name = "sherd" if everybody else f"sherd-ranks-{'-'.join(map(str, ranks))}"
    count = f"{name}/made-by-{rank}"
    prefix = f"{name}/{store.add(count, 0)}"
    world = _core.World.from_store(
        dist.PrefixStore(prefix, store), rank, len(ranks), options)
    store.add(count, 1)
    return world


def _store_of(group):
    if not dist.is_initialized():
        raise FailedPreconditionError(
            "[python] World.from_process_group: expected a process group of "
            "torch.distributed, found none: call "
            "torch.distributed.init_process_group() before, or use "
            "World.from_environment()")
    try:
        # pylint: disable-next=protected-access
        return dist.distributed_c10d._get_process_group_store(
            group or dist.group.WORLD)
    except (KeyError, ValueError) as error:
        raise FailedPreconditionError(
            "[python] World.from_process_group: expected a process group that has "
            "this rank and was not destroyed, found "
            f"{type(group).__name__}") from error


def _close(world):
    """What World.close() is: afterwards the same ranks can make another world."""
    world.end()
    for key, made in list(_worlds.items()):
        if made == world:
            del _worlds[key]


_core.World.close = _close


def mesh_of(where: Where = None) -> _core.Mesh:
    """The Mesh that a World, Mesh, ProcessGroup or DeviceMesh stands for; None
    stands for the default process group where there is one, else the environment."""
    check_not_forked()
    if where is None:
        where = (World.from_process_group() if dist.is_initialized()
                 else World.from_environment())
    if isinstance(where, dist.ProcessGroup):
        where = World.from_process_group(where)
    if isinstance(where, _core.World):
        return Mesh(where)
    if isinstance(where, Mesh):
        return where
    if isinstance(where, dist.DeviceMesh):
        return _of_device_mesh(where)
    raise InvalidArgumentError(
        "[python] expected a World, Mesh, ProcessGroup or DeviceMesh, found "
        f"{type(where).__name__}")


def _of_device_mesh(mesh):
    if mesh.ndim == 1:
        return Mesh(World.from_process_group(mesh.get_group()))
    ranks = mesh.mesh.flatten().tolist()
    if mesh.ndim != 2 or dist.get_rank() not in ranks:
        raise InvalidArgumentError(
            "[python] expected a DeviceMesh of one dimension, or of two, replicas "
            f"and shards, with rank {dist.get_rank()} in it, found {mesh.ndim} "
            f"dimensions and ranks {ranks}")
    replicate, shard = mesh.shape
    return Mesh(_world_of_ranks(tuple(ranks)), replicate, shard)


def _world_of_ranks(ranks):
    """Of these of the default process group, in this order, which no group may have."""
    if ranks == tuple(range(dist.get_world_size())):
        return World.from_process_group()
    if ranks not in _worlds:
        _worlds[ranks] = _made_over(_store_of(None), ranks, _core.WorldOptions())
    return _worlds[ranks]


@atexit.register
def _close_worlds():
    # A rank that ends with an exception does not wait for others; they are told
    # that it has left. A forked child has no worlds.
    if hasattr(sys, "last_value") or not _worlds:
        return
    # A world waits until the others leave it, and after sys.exit() they may be waiting
    # for this rank in the exchange of a model, whose end tells them that it has left.
    models = [handle._core for handle in handles]  # pylint: disable=protected-access
    for closes in models + list(_worlds.values()):
        try:
            closes.close()
        except Exception as error:  # pylint: disable=broad-exception-caught
            print(f"sherd: {error}", file=sys.stderr)
    _worlds.clear()


__all__ = ["Mesh", "World", "mesh_of"]
