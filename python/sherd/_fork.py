# SPDX-License-Identifier: Apache-2.0
"""What a forked child finds of its parent's models, sessions and worlds.

A child has copies of them, but neither their threads nor their connections, so that
a use would wait for ever and an end would speak in the parent's name. What the
parent has is therefore kept there, never ended, and every use is an error. Children
that use none of it, such as workers of a DataLoader, notice nothing.
"""

import os

from . import _core
from ._handles import handles, sessions
from .errors import FailedPreconditionError

# One for each process group and each tuple of ranks, and one for the environment, under
# None: models of one job share their connections.
worlds = {}
_forked = False


def check_not_forked():
    """Raises FailedPreconditionError in a child of a process that had ranks."""
    if _forked:
        raise FailedPreconditionError(
            "[python] sherd was used before this process was forked, which is no "
            "rank of the job: use it in the process that forked, or start the other "
            'by torch.multiprocessing.get_context("spawn")')


class _OfParent:
    """In place of the engine of a model or a session."""

    def __getattr__(self, name):
        check_not_forked()
        raise AttributeError(name)


def _in_child():
    global _forked  # pylint: disable=global-statement
    live = [*handles, *sessions]
    if not live and not worlds:
        return
    _forked = True
    kept = [owner._core for owner in live]  # pylint: disable=protected-access
    _core.forbid_after_fork(kept + list(worlds.values()))
    for owner in live:
        owner._core = _OfParent()  # pylint: disable=protected-access
    sessions.clear()
    worlds.clear()


def install():
    """Once, when sherd is imported."""
    os.register_at_fork(after_in_child=_in_child)
