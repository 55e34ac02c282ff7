# SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other, so that an error of one is an error of all."""

import io
import json

import torch

from . import _core, errors


def gathered(world, value):
    """Every rank's `value`, which JSON can hold, by rank. Collective."""
    texts = _core.all_gather_texts(world, json.dumps(value))
    return [json.loads(text) for text in texts]


def of_rank0(world, make):
    """What make() returns on rank 0, on every rank; raises what it raises there.
    Tensors, numbers, texts, and lists and dictionaries of those. Collective."""
    written = io.BytesIO()

    def write():
        if world.rank == 0:
            torch.save(make(), written)
    on_every_rank(world, write)
    first = _core.all_gather_texts(world, written.getvalue())[0]
    # Rank 0 of the same job wrote it.
    return torch.load(io.BytesIO(first), weights_only=False)


def on_every_rank(world, action):
    """What action() returns; where it raises on some rank, all raise. Collective."""
    result, raised = None, None
    try:
        result = action()
    except Exception as error:  # pylint: disable=broad-exception-caught
        raised = error
    told = [type(raised).__name__, str(raised)] if raised else None
    try:
        for rank, failure in enumerate(gathered(world, told)):
            if raised is not None:
                raise raised
            if failure:
                kind = getattr(errors, failure[0], errors.Error)
                raise kind(f"{failure[1]} (rank {rank})")
    finally:
        raised = None  # An error that refers to its own frame keeps all in it alive.
    return result
