# SPDX-License-Identifier: Apache-2.0
"""Optimizers that were made over the parameters of a plain module, which became
sharded since."""

from ..errors import FailedPreconditionError
from ..optimizer_state import load_optimizer_state_dict, optimizer_state_dict


def over_slices(handle, optimizer):
    """Has an optimizer of torch.optim update this rank's slices instead of a sharded
    module's parameters, group by group, so that groups made by names stay. Leaves one
    alone that has no parameters of the module.

    From then on the optimizer's state_dict() and load_state_dict() are those of the
    optimizer of the plain module, with whole tensors, so that plain PyTorch and other
    numbers of ranks read what is saved; both are collective, and state_dict() gives
    ranks other than 0 an empty dictionary.
    """
    sharded = {id(parameter) for parameter in handle.module_parameters()}
    given = {id(parameter) for group in optimizer.param_groups
             for parameter in group["params"]}
    if not given & sharded:
        return
    if given - sharded:
        raise FailedPreconditionError(
            "[python] expected an optimizer of parameters of one sharded module, "
            f"found {len(given - sharded)} others among {len(given)}")
    if any(optimizer.state.values()):
        raise FailedPreconditionError(
            "[python] expected an optimizer that has not made a step before its "
            "module was sharded, found state of "
            f"{len(optimizer.state)} parameters")
    named = {id(parameter): name for name, parameter in handle.module.named_parameters()}
    slices = dict(handle.named_parameters())
    by_group = [[named[id(parameter)] for parameter in group["params"]]
                for group in optimizer.param_groups]
    names = sum(by_group, [])
    # The number that torch.optim's dictionaries have for each name.
    places = {name: place for place, name in enumerate(names)}

    def state_dict():
        state = optimizer_state_dict(handle, optimizer, "rank0")
        return {} if not state else {
            "state": {places[name]: values for name, values in state["state"].items()},
            "param_groups": [
                group | {"params": [places[name] for name in of_group]}
                for group, of_group in zip(state["param_groups"], by_group)]}

    def load_state_dict(state):
        load_optimizer_state_dict(handle, optimizer, {} if not state else {
            "state": {names[place]: value for place, value in state["state"].items()},
            "param_groups": [
                group | {"params": of_group}
                for group, of_group in zip(state["param_groups"], by_group)]})

    for group, of_group in zip(optimizer.param_groups, by_group):
        group["params"] = [slices[name] for name in of_group if name in slices]
    optimizer.state_dict = state_dict
    optimizer.load_state_dict = load_state_dict
