# SPDX-License-Identifier: Apache-2.0
"""The state that an optimizer of torch.optim has before its first step.

PyTorch makes state in the first step. What a step makes of an element is seen by a
trial, so that no optimizer need be known by name.
"""

import copy

import torch

from .errors import InvalidArgumentError


def hyperparameters(group):
    """What a parameter group has besides names or tensors."""
    return {key: value for key, value in group.items() if key != "params"}


class _Recorder(dict):
    """The state of a parameter that notes what each key was set to first, which is before the
    first update: an optimizer then changes tensors in place or sets the key again."""

    def __init__(self):
        super().__init__()
        self.first = {}

    def __setitem__(self, key, value):
        if key not in self.first:
            self.first[key] = value.clone() if isinstance(value, torch.Tensor) else value
        super().__setitem__(key, value)


def _small(like):
    """Zeros of as many dimensions and of the dtype of that parameter."""
    return torch.zeros((2,) * max(like.dim(), 1), dtype=like.dtype, device="cpu")


def _after_trial(optimizer, number, gradient, state, like):
    """Values and state after a step of a few zeros like that parameter with the options of
    that group."""
    probe = _small(like).requires_grad_()
    probe.grad = torch.full_like(probe, gradient)
    trial = copy.copy(optimizer)
    trial.state = type(optimizer.state)(dict)
    trial.state[probe] = state
    options = copy.deepcopy(hyperparameters(optimizer.param_groups[number]))
    trial.param_groups = [options | {"params": [probe]}]
    type(optimizer).step(trial)
    return probe.detach(), trial.state[probe]


def first_state(optimizer, number, like):
    """What the state of a parameter like this, of that group, is at first: a step with a
    gradient of zeros shows it. None where that is not possible, and where it has tensors of
    another shape than the parameter."""
    state = _Recorder()
    try:
        probe, shown = _after_trial(optimizer, number, 0.0, state, like)
    except Exception:  # pylint: disable=broad-exception-caught
        return None  # An optimizer that needs more than that.
    result = {}
    for key, value in shown.items():
        value = state.first.get(key, value)  # Where it was set in another way, after the step.
        if isinstance(value, torch.Tensor) and value.dim() > 0:
            if value.shape != probe.shape:
                return None
            result[key] = torch.full_like(
                like.detach(), value.flatten()[0].item(), dtype=value.dtype)
        elif isinstance(value, (torch.Tensor, int, float)):
            result[key] = value * 0 if key == "step" else value
    return result


def starts_alike(optimizer, number, like):
    """Whether a first step of a parameter like this is the same from first_state() as from
    none."""
    given = first_state(optimizer, number, _small(like))
    plain, _ = _after_trial(optimizer, number, 1.0, {}, like)
    return torch.equal(plain, _after_trial(optimizer, number, 1.0, given, like)[0])


def is_trained(tensor):
    """False where it can have no state: what a rank without slices has, and frozen
    parameters, which a replicated module leaves alone."""
    return tensor.numel() > 0 and tensor.requires_grad


def _keys_of(optimizer, number, parameter, is_there):
    """The keys of the state of that parameter; None where that is not known, or has something
    else than numbers and tensors of its shape."""
    like = parameter if is_there else _small(parameter)
    state = optimizer.state[parameter] if is_there else first_state(optimizer, number, like)
    if state is None or not all(
            isinstance(value, torch.Tensor) and (value.dim() == 0 or value.shape == like.shape)
            for value in state.values()):
        return None
    return list(state) if is_there or starts_alike(optimizer, number, like) else None


def _keys(optimizer, number):
    """The keys of the state of a parameter of that group."""
    group = optimizer.param_groups[number]
    mine = [parameter for parameter in group["params"] if parameter.numel() > 0]
    if not mine:
        return []  # This rank has no slice of them.
    is_there = all(optimizer.state.get(parameter) for parameter in mine)  # As of Adagrad.
    # A trial shows those of all parameters with as many dimensions.
    looked_at = mine if is_there else {parameter.dim(): parameter for parameter in mine}.values()
    keys = [_keys_of(optimizer, number, parameter, is_there) for parameter in looked_at]
    if None in keys or any(set(others) != set(keys[0]) for others in keys):
        raise InvalidArgumentError(
            "[python] expected an optimizer of sherd, or one of torch.optim whose first "
            "step is the same from a state of tensors that is there before, each one number or "
            "of the shape of the parameter, as that of AdamW is, found "
            f"{type(optimizer).__name__} with {hyperparameters(group)}")
    return keys[0]


def reader_of(optimizer, named):
    """A function that returns (parameter's name, key, tensor) of all state, which it
    makes where it is not there yet: a replica that comes back fetches it before its
    first step. `named`: names and tensors, among them those of the optimizer."""
    names = {id(tensor): name for name, tensor in named}
    keys = [_keys(optimizer, number) for number in range(len(optimizer.param_groups))]

    def read_one(number, parameter):
        state = optimizer.state[parameter]
        missing = [key for key in keys[number] if state.get(key) is None]
        first = first_state(optimizer, number, parameter) if missing else {}
        state.update({key: first[key] for key in missing})
        return [(names[id(parameter)], key, state[key]) for key in keys[number]]

    def read():
        found = []
        for number, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                if id(parameter) in names:
                    found += read_one(number, parameter)
                elif is_trained(parameter):
                    raise InvalidArgumentError(
                        "[python] expected an optimizer over the parameters of the "
                        "handle, found one of a parameter of shape "
                        f"{tuple(parameter.shape)} that is none of them")
        return found

    read()
    return read
