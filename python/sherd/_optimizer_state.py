# SPDX-License-Identifier: Apache-2.0
"""The state of torch.optim's optimizers as tensors that share its memory.

PyTorch makes state in the first step. A replica that comes back has to fetch it
before, so it is made here, as the first step would, where it is not there yet.
"""

import torch

from .errors import InvalidArgumentError


def _adam(group):
    keys = ["step", "exp_avg", "exp_avg_sq"]
    return keys + ["max_exp_avg_sq"] * group["amsgrad"]


def _sgd(group):
    if group["momentum"] and group["dampening"]:
        # Its first step is another than those from a momentum of zero.
        raise InvalidArgumentError(
            "[python] torch.optim.SGD: expected a dampening of 0 beside momentum, "
            f"found {group['dampening']}")
    return ["momentum_buffer"] * bool(group["momentum"])


def _rms_prop(group):
    keys = ["step", "square_avg"]
    return (keys + ["momentum_buffer"] * (group["momentum"] > 0)
            + ["grad_avg"] * group["centered"])


_KEYS = {
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adam,
    torch.optim.SGD: _sgd,
    torch.optim.RMSprop: _rms_prop,
    torch.optim.Adagrad: lambda group: ["step", "sum"],
}


def _make(state, keys, parameter):
    for key in keys:
        if state.get(key) is None:
            state[key] = (torch.zeros((), dtype=torch.float32) if key == "step"
                          else torch.zeros_like(parameter))


def reader_of(optimizer, named):
    """A function that returns (parameter's name, key, tensor) of all state.
    `named`: names and tensors, among them those of the optimizer."""
    keys_of = _KEYS.get(type(optimizer))
    if keys_of is None:
        raise InvalidArgumentError(
            "[python] expected an optimizer of sherd, or Adam, AdamW, SGD, RMSprop or "
            f"Adagrad of torch.optim, found {type(optimizer).__name__}")
    names = {id(tensor): name for name, tensor in named}

    def read():
        found = []
        for group in optimizer.param_groups:
            keys = keys_of(group)
            for parameter in group["params"]:
                if id(parameter) not in names:
                    if not parameter.numel():
                        continue  # What a rank without slices has instead.
                    raise InvalidArgumentError(
                        "[python] expected an optimizer over the parameters of the "
                        "handle, found one of a parameter of shape "
                        f"{tuple(parameter.shape)} that is none of them")
                state = optimizer.state[parameter]
                _make(state, keys, parameter)
                found += [(names[id(parameter)], key, state[key]) for key in keys]
        return found

    read()
    return read


__all__ = ["reader_of"]
