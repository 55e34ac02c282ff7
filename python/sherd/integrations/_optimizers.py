# SPDX-License-Identifier: Apache-2.0
"""Optimizers that were made over the parameters of a plain module, which became
sharded since."""

from ..errors import FailedPreconditionError
from ..optimizer_state import load_optimizer_state_dict, optimizer_state_dict


class OverSlices:
    """Has an optimizer of torch.optim update this rank's slices instead of a sharded
    module's parameters, group by group, so that groups made by names stay.

    From then on the optimizer's state_dict() and load_state_dict() are those of the
    optimizer of the plain module, with whole tensors, so that plain PyTorch and other
    numbers of ranks read what is saved; both are collective, and state_dict() gives
    ranks other than 0 an empty dictionary.
    """

    def __init__(self, handle, optimizer):
        self._handle = handle
        self._optimizer = optimizer
        named = {id(parameter): name
                 for name, parameter in handle.module.named_parameters()}
        slices = dict(handle.named_parameters())
        if any(optimizer.state.values()):
            raise FailedPreconditionError(
                "[python] expected an optimizer that has not made a step before its "
                "module was sharded, found state of "
                f"{len(optimizer.state)} parameters")
        self._names = [[named[id(parameter)] for parameter in group["params"]]
                       for group in optimizer.param_groups]
        for group, names in zip(optimizer.param_groups, self._names):
            group["params"] = [slices[name] for name in names if name in slices]
        optimizer.state_dict = self.state_dict
        optimizer.load_state_dict = self.load_state_dict

    def _places(self):
        """The number that torch.optim's dictionaries have for each name."""
        names = sum(self._names, [])
        return {name: place for place, name in enumerate(names)}

    def state_dict(self):
        state = optimizer_state_dict(self._handle, self._optimizer, "rank0")
        if not state:
            return {}
        places = self._places()
        return {
            "state": {places[name]: values for name, values in state["state"].items()},
            "param_groups": [
                group | {"params": [places[name] for name in names]}
                for group, names in zip(state["param_groups"], self._names)]}

    def load_state_dict(self, state):
        named = {}
        if state:
            names = sum(self._names, [])
            groups = zip(state["param_groups"], self._names)
            named = {
                "state": {names[place]: value
                          for place, value in state["state"].items()},
                "param_groups": [group | {"params": of_group}
                                 for group, of_group in groups]}
        load_optimizer_state_dict(self._handle, self._optimizer, named)


def over_slices(handle, optimizer):
    """OverSlices, unless the optimizer has no parameters of the sharded module."""
    sharded = {id(parameter) for parameter in handle.module_parameters()}
    given = {id(parameter) for group in optimizer.param_groups
             for parameter in group["params"]}
    if not given & sharded:
        return
    if given - sharded:
        raise FailedPreconditionError(
            "[python] expected an optimizer of parameters of one sharded module, "
            f"found {len(given - sharded)} others among {len(given)}")
    OverSlices(handle, optimizer)
