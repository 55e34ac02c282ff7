# SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other, so that an error of one is an error of all."""

import contextlib
import contextvars
import io
import json

import torch

from . import _core, errors


# The call that the user has made. It begins all that ranks tell each other, since a rank
# whose call has raised goes on with another, and must not take what it gets for an answer.
_CALL = contextvars.ContextVar("call", default="")


@contextlib.contextmanager
def same_call(world, name):
    """A scope of a call that the user makes on every rank: raises PeerMismatchError on
    all where some rank makes another one. Inside another such call it does nothing.
    Collective."""
    if _CALL.get():
        yield
        return
    outside = _CALL.set(name)
    try:
        _texts(world, b"")
        yield
    finally:
        _CALL.reset(outside)


def described(name, **arguments):
    """The name of a call with those arguments that ranks have to agree on, for same_call():
    the types of optimizers, and whether there is an average."""
    texts = [f"{key}={' '.join(str(value).split())}" for key, value in arguments.items()
             if value is not None]
    return f"{name}({', '.join(texts)})"


def kind_of(optimizer):
    """The type of an optimizer, or of each in a dictionary, for described()."""
    if isinstance(optimizer, dict):
        kinds = [f"{name}: {type(one).__name__}" for name, one in optimizer.items()]
        return f"{{{', '.join(kinds)}}}"
    return None if optimizer is None else type(optimizer).__name__


def _texts(world, mine):
    """Every rank's bytes, by rank, of the same call. Collective."""
    try:
        texts = _core.all_gather_texts(world, _CALL.get().encode() + b"\n" + mine)
    except errors.DeadlineExceededError as error:
        if not _CALL.get():
            raise
        raise errors.DeadlineExceededError(
            f"{error}; this rank has called {_CALL.get()}: call it on every rank") from None
    ends = [text.find(b"\n") + 1 for text in texts]
    calls = [text[:end].decode(errors="replace").strip() or "another function"
             for text, end in zip(texts, ends)]
    for rank, call in enumerate(calls):
        if call != calls[0]:
            raise errors.PeerMismatchError(
                f"[python] ranks went different ways: rank 0 wants to call "
                f"{calls[0]}, rank {rank} wants to call {call}; expected the same "
                "call on every rank")
    return [text[end:] for text, end in zip(texts, ends)]


def gathered(world, value):
    """Every rank's `value`, which JSON can hold, by rank. Collective."""
    return [json.loads(text) for text in _texts(world, json.dumps(value).encode())]


def of_rank0(world, make):
    """What make() returns on rank 0, on every rank; raises what it raises there.
    Tensors, numbers, texts, and lists and dictionaries of those. Collective."""
    written = io.BytesIO()

    def write():
        if world.rank == 0:
            torch.save(make(), written)
    on_every_rank(world, write)
    first = _texts(world, written.getvalue())[0]
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
