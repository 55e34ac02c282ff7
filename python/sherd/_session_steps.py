# SPDX-License-Identifier: Apache-2.0
"""The optimizers of a session make their steps inside its update only: a step that one
replica makes alone, in the loop, would make its parameters differ from the others'."""

import functools

import torch

from .errors import FailedPreconditionError


class OptimizerSteps:
    """Knows when the update of a session runs, and refuses the steps of its optimizers at
    other times."""

    def __init__(self, optimizers):
        self._optimizers = list(optimizers.values())
        self._undo = None  # What takes the checks away again, once they are there.
        self._runs = False
        self.has_raised = False

    def around(self, update):
        """`update` as the session calls it."""
        def inside(number):
            self._runs = True
            try:
                update(number)
            except BaseException:
                self.has_raised = True
                raise
            finally:
                self._runs = False
        return inside

    def guard(self):
        """From now on a step outside the update raises."""
        if self._undo is None:
            self._undo = [self._guard(optimizer) for optimizer in self._optimizers]

    def release(self):
        """Every step is fine again."""
        for undo in self._undo or []:
            undo()
        self._undo = []

    def _guard(self, optimizer):
        if isinstance(optimizer, torch.optim.Optimizer):
            return optimizer.register_step_pre_hook(self._check).remove
        # Those of sherd have no hooks.
        optimizer.step = functools.partial(self._step, optimizer)
        return functools.partial(vars(optimizer).pop, "step", None)

    def _step(self, optimizer):
        self._check(optimizer)
        type(optimizer).step(optimizer)

    def _check(self, optimizer, *_):
        if not self._runs:
            raise FailedPreconditionError(
                f"[python] {type(optimizer).__name__}: expected step() in the update of the "
                "sherd.ft.Session only, found a call outside it; the session makes the step, once "
                "all replicas agree on it: leave it out of the loop, or close the session before")
