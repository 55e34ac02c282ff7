# SPDX-License-Identifier: Apache-2.0
"""What sherd raises. The text names what was expected and what was found.

What a handler of a signal has raised while this rank waited for another, such as
KeyboardInterrupt, comes instead of the error of that wait.
"""

from __future__ import annotations

import os
import re


class Error(RuntimeError):
    """The base of all. Mirrors sherd::Error of C++."""

    code = "error"

    @property
    def rank(self) -> int:
        """This process's rank in its job, 0 without one."""
        if "RANK" in os.environ:
            return int(os.environ["RANK"])
        from ._fork import worlds  # pylint: disable=import-outside-toplevel
        for world in worlds.values():
            return world.rank
        return 0

    @property
    def unit(self) -> str | None:
        """The name of the unit that the text tells of; None where it tells of none."""
        found = re.search(r"\bunit (?:used here is )?([^\s,;:]+)", str(self))
        return found and found[1]


class InvalidArgumentError(Error, ValueError):
    """The call can never work as written."""

    code = "invalid_argument"


class FailedPreconditionError(Error):
    """The right call at the wrong moment."""

    code = "failed_precondition"


class PeerLostError(Error):
    """Another rank died or closed its connection."""

    code = "peer_lost"


class PeerMismatchError(Error):
    """Another rank does something else than this one."""

    code = "peer_mismatch"


class DeadlineExceededError(Error, TimeoutError):
    """Nobody answered in time."""

    code = "deadline_exceeded"


class UnavailableError(Error):
    """A file, port or other resource could not be had."""

    code = "unavailable"


class AbortedError(Error):
    """Another rank gave up this step and said why."""

    code = "aborted"
