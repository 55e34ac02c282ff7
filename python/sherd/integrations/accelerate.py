# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's accelerate with models that are sharded by sherd.

    from sherd.integrations.accelerate import shard
    accelerator = shard(accelerate.Accelerator(cpu=True))
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

Everything else is as accelerate documents it. docs/guide/hugging_face.md.
"""

import os
from pathlib import Path

import torch

from .._together import on_every_rank
from ..errors import InvalidArgumentError
from ..sharded import fully_shard, handle_of
from ._optimizers import over_slices


class _Sharding:
    """What shard() puts in the place of methods of one Accelerator."""

    def __init__(self, accelerator, options):
        self._accelerator = accelerator
        self._options = options
        self._prepare = accelerator.prepare
        self._prepare_model = accelerator.prepare_model
        self._get_state_dict = accelerator.get_state_dict
        accelerator.prepare = self.prepare
        accelerator.prepare_model = self.prepare_model
        accelerator.get_state_dict = self.get_state_dict
        accelerator.clip_grad_value_ = self.clip_grad_value_
        accelerator.register_load_state_pre_hook(self._load_models)

    def prepare(self, *objects, **more):
        prepared = self._prepare(*objects, **more)
        # pylint: disable=protected-access
        for model in self._accelerator._models:
            handle = handle_of(model)
            for optimizer in self._accelerator._optimizers if handle else ():
                over_slices(handle, optimizer.optimizer)
        return prepared

    def prepare_model(self, model, device_placement=None, evaluation_mode=False):
        # In this mode accelerate adds autocast and no DistributedDataParallel.
        model = self._prepare_model(model, device_placement, evaluation_mode=True)
        trains = any(parameter.requires_grad for parameter in model.parameters())
        if trains and not evaluation_mode and handle_of(model) is None:
            handle = fully_shard(model, **self._options)
            model.no_sync = handle.no_sync  # Accelerator.no_sync() looks for it.
            model.load_state_dict = _loader(handle)
        return model

    def clip_grad_value_(self, parameters, clip_value):
        raise InvalidArgumentError(
            "[python] clip_grad_value_: expected clip_grad_norm_(), as accelerate does "
            "with FSDP: the parameters of a sharded module have no gradients")

    def get_state_dict(self, model, unwrap=True):
        handle = handle_of(model)
        if handle is None:
            return self._get_state_dict(model, unwrap)
        return handle.state_dict("rank0")

    def _load_models(self, models, folder):
        # Those that are left in `models` would be loaded by accelerate.
        for place, model in enumerate(list(models)):
            handle = handle_of(model)
            if handle is None:
                model.load_state_dict(_saved(folder, place), strict=False)
            else:
                _load_sharded(handle, folder, place)
        models.clear()


def _saved(folder, place):
    """The model of this place that Accelerator.save_state() wrote."""
    end = f"_{place}" if place > 0 else ""
    safe = Path(folder) / f"model{end}.safetensors"
    if safe.is_file():
        # pylint: disable-next=import-outside-toplevel
        from safetensors.torch import load_file
        return load_file(safe)
    return torch.load(Path(folder) / f"pytorch_model{end}.bin", map_location="cpu",
                      weights_only=True)


def _load_sharded(handle, folder, place):
    """Rank 0 reads. Tied tensors have one of their names in the file."""
    def read():
        if handle.mesh.world.rank != 0:
            return {}
        state = _saved(folder, place)
        named = list(handle.module.named_parameters(remove_duplicate=False))
        found = {id(parameter): state[name] for name, parameter in named if name in state}
        return state | {name: found[id(parameter)] for name, parameter in named
                        if id(parameter) in found}
    handle.load_state_dict(on_every_rank(handle.mesh.world, read))


def _loader(handle):
    def load_state_dict(state_dict, strict=True, assign=False):
        """handle.load_state_dict(). Collective, as callers in transformers are."""
        del assign  # Parameters stay the same objects.
        return handle.load_state_dict(state_dict, strict)
    return load_state_dict


def shard(accelerator, **options):
    """Has ``accelerator.prepare()`` shard each model with trainable parameters by
    ``sherd.fully_shard(model, **options)``, in place, and optimizers update slices.

    accelerator: an accelerate.Accelerator before the first prepare(), on CPUs:
        ``Accelerator(cpu=True)``. Its ranks are those of torch.distributed.
    Returns it. clip_grad_norm_(), no_sync(), accumulate(), save_state(),
    load_state() and get_state_dict(), which gives rank 0 the whole tensors, work as
    with accelerate's FSDP. Raises sherd.Error for one of another kind.
    """
    kind = str(accelerator.distributed_type).rsplit(".", maxsplit=1)[-1]
    if kind not in ("MULTI_CPU", "NO"):
        raise InvalidArgumentError(
            "[python] shard: expected an Accelerator for CPUs, Accelerator(cpu=True) "
            f"without a plugin, found one for {kind}")
    if accelerator.device.type != "cpu":  # It would move models and batches there.
        raise InvalidArgumentError(
            "[python] shard: expected an Accelerator for CPUs, Accelerator(cpu=True), or "
            "a Trainer with TrainingArguments(use_cpu=True), found one for the device "
            f"{accelerator.device}")
    if accelerator.num_processes == 1 and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InvalidArgumentError(
            "[python] shard: expected as many processes as WORLD_SIZE, "
            f"{os.environ['WORLD_SIZE']}, found 1 in the Accelerator: it takes CPUs by "
            "Accelerator(cpu=True), a Trainer by TrainingArguments(use_cpu=True)")
    if accelerator._models:  # pylint: disable=protected-access
        raise InvalidArgumentError(
            "[python] shard: expected an Accelerator before its first prepare(), "
            "found one that has prepared a model")
    _Sharding(accelerator, options)
    return accelerator
