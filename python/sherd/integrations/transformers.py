# SPDX-License-Identifier: Apache-2.0
"""transformers.Trainer with a model that is sharded by sherd.

    from sherd.integrations.transformers import shard
    trainer = shard(transformers.Trainer(model, args, train_dataset=dataset))
    trainer.train()

Set ``use_cpu=True`` in TrainingArguments. docs/guide/hugging_face.md.
"""

import contextlib

import transformers

from ..errors import InvalidArgumentError
from ..sharded import handle_of
from . import accelerate

_MAJOR_MIN = 5  # Before, a Trainer calls _save() on rank 0 alone.


def _names(model):
    """A scope in which peft may read the names of its state."""
    handle = handle_of(model)
    return contextlib.nullcontext() if handle is None else handle.state_dict_names()


def shard(trainer, **options):
    """Has ``trainer.train()`` shard its model by ``sherd.fully_shard(model,
    **options)``, in place. Also for classes derived from Trainer.

    trainer: a Trainer whose train() has not been called yet; it is also returned. Checkpoints
    have the format of a plain Trainer, with whole tensors, and either kind of run resumes from
    those of the other, on any number of ranks. Raises sherd.Error for arguments that are not
    supported, and for transformers before version 5.
    """
    if int(transformers.__version__.split(".", maxsplit=1)[0]) < _MAJOR_MIN:
        raise InvalidArgumentError(
            f"[python] shard: expected transformers {_MAJOR_MIN} or newer, where every "
            "rank takes part in saving a model, found transformers "
            f"{transformers.__version__}")
    if trainer.args.save_on_each_node:
        raise InvalidArgumentError(
            "[python] shard: expected save_on_each_node=False, since rank 0 saves "
            "what all have together, found True")
    accelerate.shard(trainer.accelerator, **options)
    save, save_optimizer = trainer._save, trainer._save_optimizer_and_scheduler
    load_best = trainer._load_best_model

    def save_model(output_dir=None, state_dict=None):
        handle = handle_of(trainer.model)
        if handle is not None and state_dict is None:
            state_dict = handle.state_dict("rank0")
        with _names(trainer.model):
            return save(output_dir, state_dict)

    def load_best_model():
        with _names(trainer.model):
            return load_best()

    def save_optimizer_and_scheduler(output_dir):
        if not trainer.args.should_save:
            trainer.optimizer.state_dict()  # Rank 0's call waits for all.
        return save_optimizer(output_dir)

    trainer._save = save_model
    trainer._load_best_model = load_best_model
    trainer._save_optimizer_and_scheduler = save_optimizer_and_scheduler
    return trainer
