# SPDX-License-Identifier: Apache-2.0
"""Distributed training of unmodified PyTorch modules, on CPUs and CUDA GPUs.

    import sherd, torch
    handle = sherd.fully_shard(model)            # Ranks of torchrun or `sherd run`.
    optimizer = torch.optim.AdamW(handle.parameters(), lr=3e-4)
    loss = model(batch); loss.backward(); optimizer.step(); optimizer.zero_grad()

fully_shard() shards parameters, gradients and optimizer state; replicate() averages
gradients. The engine is the C++ library sherd; docs/guide/python.md.
"""

from ._build import __version__, torch_version, check_torch

check_torch()  # Before the extension, whose symbols are those of one version.

# pylint: disable=wrong-import-position
from . import _backward, _fork, _slices, errors, ft, hooks
from .checkpoints import CheckpointSaver, LoadReport, load, save
from .errors import (
    AbortedError, DeadlineExceededError, Error, FailedPreconditionError,
    InvalidArgumentError, PeerLostError, PeerMismatchError, UnavailableError)
from .optim import SGD, AdamW, GradScaler, Muon, WeightAverage, split
from .optimizer_state import load_optimizer_state_dict, optimizer_state_dict
from .replicated import DistributedDataParallel, replicate
from .sharded import FullyShardedDataParallel, fully_shard, handle_of
from .training_state import TrainingState
from .units import MixedPrecision, UnitOptions
from .world import Mesh, World

_backward.install()
_fork.install()
_slices.install()

__all__ = [
    "AbortedError", "AdamW", "CheckpointSaver", "DeadlineExceededError",
    "DistributedDataParallel", "Error", "FailedPreconditionError",
    "FullyShardedDataParallel", "GradScaler", "InvalidArgumentError", "LoadReport",
    "Mesh", "MixedPrecision", "Muon", "PeerLostError", "PeerMismatchError", "SGD",
    "TrainingState", "UnavailableError", "UnitOptions", "WeightAverage", "World",
    "__version__",
    "errors", "ft", "fully_shard", "handle_of", "hooks", "load", "load_optimizer_state_dict",
    "optimizer_state_dict", "replicate", "save", "split", "torch_version",
]
