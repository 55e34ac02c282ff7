# SPDX-License-Identifier: Apache-2.0
"""What torch.distributed.checkpoint saves and loads of a job."""

from typing import Any

from ._handles import check_handle
from .optimizer_state import load_optimizer_state_dict, optimizer_state_dict


class TrainingState:
    """A module and its optimizer as torch.distributed.checkpoint.stateful.Stateful:
    each rank saves and loads its own parts.

        state = {"training": sherd.TrainingState(handle, optimizer)}
        torch.distributed.checkpoint.save(state, checkpoint_id="run/dcp")
        torch.distributed.checkpoint.load(state, checkpoint_id="run/dcp")

    Any number of ranks loads it, and so does PyTorch into the whole tensors of a plain
    module. Needs a process group where there are several ranks.
    """

    def __init__(self, handle, optimizer=None):
        check_handle(handle)
        self.handle, self.optimizer = handle, optimizer

    def state_dict(self) -> dict[str, Any]:
        """{"model": ..., "optimizer": ...} in parts. Collective."""
        state = {"model": self.handle.state_dict("sharded") if self._is_sharded()
                 else self.handle.module.state_dict()}
        if self.optimizer is not None:
            state["optimizer"] = optimizer_state_dict(
                self.handle, self.optimizer, "sharded")
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what was loaded into state_dict(), and publishes. Collective."""
        model = self.handle if self._is_sharded() else self.handle.module
        model.load_state_dict(state_dict["model"])
        if self.optimizer is not None:
            load_optimizer_state_dict(
                self.handle, self.optimizer, state_dict["optimizer"])

    def _is_sharded(self):
        """Whether the handle has parts; a replicated module is whole on every rank."""
        return hasattr(self.handle, "state_dict")
