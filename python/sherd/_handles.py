# SPDX-License-Identifier: Apache-2.0
"""The handles of sharded and replicated modules of this process, and its open sessions."""

import weakref

from .errors import FailedPreconditionError, InvalidArgumentError

handles = weakref.WeakSet()
sessions = weakref.WeakSet()  # Of sherd.ft.


def check_handle(handle):
    """Raises unless it is one; a module or its parameters are a likely mistake."""
    if handle not in handles:
        raise InvalidArgumentError(
            "[python] expected the handle that fully_shard() or replicate() has "
            f"returned, found a {type(handle).__name__}")


def refuse_join():
    """What join_hook() of a handle does."""
    raise FailedPreconditionError(
        "[python] expected `with handle.join(after_backward):`, which supports inputs whose "
        "number differs between ranks, found torch.distributed.algorithms.Join")
