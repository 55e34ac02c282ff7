# SPDX-License-Identifier: Apache-2.0
"""What a session changes in its process: handlers of signals, and how the process ends."""

import contextlib
import functools
import os
import signal
import sys
import threading
import weakref

from .errors import FailedPreconditionError, InvalidArgumentError

_REFUSED = 2  # With this status C++ programs end, too; launchers do not start them again.
_begun = set()  # The places of the sessions that have had a step.


class LeaveHandlers:
    """Handlers by which a session leaves at SIGTERM, and at SIGUSR1, which `sherd replica drain`
    sends. They are only put in place of the default ones, and on the main thread, where Python
    allows it."""

    def __init__(self, session):
        self._session = weakref.ref(session)
        self._process = os.getpid()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGUSR1, signal.SIGTERM):
                if signal.getsignal(number) is signal.SIG_DFL:
                    signal.signal(number, self._leave)

    def remove(self):
        """Signals end the process again."""
        self._session = lambda: None
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGUSR1, signal.SIGTERM):
                if signal.getsignal(number) == self._leave:
                    signal.signal(number, signal.SIG_DFL)

    def _leave(self, number, _frame):
        session = self._session()
        if session is not None and os.getpid() == self._process:
            session.leave()
            return
        # The session has ended on another thread, or this is a forked child.
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


def check_alone(place, open_places):
    """Raises where this process has had a session of this place, the coordinator and the number
    of the replica: the coordinator would take a second one for a newer process."""
    if place in _begun or place in open_places:
        raise FailedPreconditionError(
            "[python] Session: expected one session in a process, found another of replica "
            f"{place[1]} at {place[0]}; train on in the same session, and put several models into "
            "one module, such as torch.nn.ModuleDict, with a dictionary of optimizers")


def note_begun(place):
    """Called when a session of this place has its first step, or a later one."""
    _begun.add(place)


@contextlib.contextmanager
def refusals(steps):
    """A scope of a call to the session. When it raises because starting the program again would
    not help, and nothing catches that, the process ends with status 2. What the update raises
    is something else."""
    try:
        yield
    except InvalidArgumentError as error:
        if not steps.has_raised:
            error.is_refusal = True
            _chain_hook()
        raise


@functools.cache
def _chain_hook():
    before = sys.excepthook

    def hook(kind, error, trace):
        before(kind, error, trace)
        # At a prompt the user goes on.
        if getattr(error, "is_refusal", False) and not hasattr(sys, "ps1"):
            raise SystemExit(_REFUSED)

    sys.excepthook = hook
