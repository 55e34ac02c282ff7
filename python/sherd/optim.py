# SPDX-License-Identifier: Apache-2.0
"""sherd's optimizers, which update slices that are adjacent in memory by one
kernel. They take the handle of fully_shard() or replicate(), publish what they have
written, and have step(), zero_grad() and ``lr``.

Groups are dictionaries: "names" (a shell pattern for whole names, or several; `*`
crosses dots), and "lr_scale" (default 1) or "weight_decay" (default the optimizer's
own). The first group that matches counts. Instead of a handle they take a part of its
parameters, which split() makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import _core
from ._handles import check_handle
from ._options import options_of
from .errors import InvalidArgumentError

_KEYS = {"names", "lr_scale", "weight_decay"}


def _found(group):
    if not isinstance(group, dict):
        return f"a {type(group).__name__}"
    return f"the keys {', '.join(map(str, group)) or 'none'}"


def _group(number, group):
    """What the extension takes for a group."""
    if not isinstance(group, dict) or "names" not in group or set(group) - _KEYS:
        raise InvalidArgumentError(
            f"[python] groups[{number}]: expected a dictionary with names and, if "
            f"wished, lr_scale and weight_decay, found {_found(group)}")
    names = group["names"]
    return options_of(
        _core.ParameterGroup, names=[names] if isinstance(names, str) else list(names),
        learning_rate_scale=group.get("lr_scale"),
        weight_decay=group.get("weight_decay"))


def _groups(groups):
    return [_group(number, group) for number, group in enumerate(groups)]


class Part:
    """Some of the parameters of a handle, made by split()."""

    def __init__(self, core_parameters: Any) -> None:
        self.core_parameters = core_parameters


def split(handle, names: str | Sequence[str]) -> tuple[Part, Part]:
    """Two parts of a handle's parameters, each for one of sherd's optimizers: those
    whose name fits one of the patterns, as for groups, and the rest.

        matrices, rest = sherd.split(handle, ["h.*.c_*.weight"])  # Norms are no matrices.
        optimizers = {"muon": sherd.Muon(matrices, lr=0.02), "adamw": sherd.AdamW(rest)}

    What saves, loads or returns state takes such a dictionary. Every rank steps them in
    the same order, and reads no parameters in between. Mirrors sherd::split.
    """
    check_handle(handle)
    names = [names] if isinstance(names, str) else list(names)
    matching, rest = handle.core_parameters.split(names)
    return Part(matching), Part(rest)


def _parameters_of(handle_or_part):
    if not isinstance(handle_or_part, Part):
        check_handle(handle_or_part)
    return handle_or_part.core_parameters


class AdamW(_core.AdamW):
    """Decoupled weight decay; the numbers of torch.optim.AdamW. With
    ``in_backward=True`` slices are updated while backward runs."""

    def __init__(self, handle, lr: float = 1e-3,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 1e-2, groups: Sequence[dict] = (),
                 in_backward: bool = False) -> None:
        if not isinstance(betas, (tuple, list)) or len(betas) != 2:
            raise InvalidArgumentError(
                f"[python] betas: expected two numbers, found {betas!r}")
        self.core_parameters = _parameters_of(handle)
        super().__init__(self.core_parameters, options_of(
            _core.AdamWOptions, learning_rate=lr, beta1=betas[0], beta2=betas[1],
            epsilon=eps, weight_decay=weight_decay, groups=_groups(groups),
            in_backward=in_backward))


class SGD(_core.SGD):
    """Stochastic gradient descent; the numbers of torch.optim.SGD."""

    def __init__(self, handle, lr: float = 1e-2, momentum: float = 0.0,
                 nesterov: bool = False, weight_decay: float = 0.0,
                 groups: Sequence[dict] = ()) -> None:
        self.core_parameters = _parameters_of(handle)
        super().__init__(self.core_parameters, options_of(
            _core.SGDOptions, learning_rate=lr, momentum=momentum, nesterov=nesterov,
            weight_decay=weight_decay, groups=_groups(groups)))


class Muon(_core.Muon):
    """Orthogonalised momentum for matrices; the numbers of torch.optim.Muon. Takes
    parameters of two dimensions only: split() a handle that has others. Needs
    ``share_gradients=True`` where parameters are sharded. scale: "original" or
    "match_rms_adamw", as adjust_lr_fn of torch.optim.Muon. coefficients, iterations
    and eps: ns_coefficients, ns_steps and eps there. iteration_dtype: of the iterations,
    torch.bfloat16 or torch.float32, which is more exact."""

    def __init__(self, handle, lr: float = 1e-3, momentum: float = 0.95,
                 nesterov: bool = True, weight_decay: float = 0.1,
                 scale: str = "original", *,
                 coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
                 iterations: int = 5, eps: float = 1e-7,
                 iteration_dtype: torch.dtype = torch.bfloat16) -> None:
        self.core_parameters = _parameters_of(handle)
        super().__init__(self.core_parameters, options_of(
            _core.MuonOptions, learning_rate=lr, momentum=momentum, nesterov=nesterov,
            weight_decay=weight_decay, scale=scale, coefficients=coefficients,
            iterations=iterations, epsilon=eps, iteration_dtype=iteration_dtype))


class GradScaler:
    """Scales the loss of training in fp16, and skips a step on every rank when a
    gradient of any rank has overflowed. Use: ``scaler.scale(loss).backward();
    scaler.unscale_(); handle.clip_grad_norm(1.0); scaler.step(optimizer);
    scaler.update()``. One for all optimizers of a model. ``uses_fp16=True``: autocast
    or a hook uses fp16, of which the handle knows nothing. Mirrors
    torch.amp.GradScaler and sherd::GradScaler."""

    def __init__(self, handle, init_scale: float = 65536.0,
                 growth_factor: float = 2.0, backoff_factor: float = 0.5,
                 growth_interval: int = 2000, uses_fp16: bool = False) -> None:
        check_handle(handle)
        self._core = _core.GradScaler(handle.core_parameters, options_of(
            _core.GradScalerOptions, init_scale=init_scale, growth_factor=growth_factor,
            backoff_factor=backoff_factor, growth_interval=growth_interval,
            uses_fp16=uses_fp16))

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss times the scale, to run backward from."""
        return self._core.scale(loss)

    def unscale_(self, *_optimizers: Any) -> None:
        """Divides the gradients by the scale. Collective. step() does it where it
        is still to be done."""
        self._core.unscale()

    def step(self, *optimizers: Any) -> bool:
        """step() of each optimizer, of torch.optim or sherd, unless a gradient of
        any rank is infinite or not a number. Returns whether it was made, the same
        on every rank."""
        def make():
            for optimizer in optimizers:
                optimizer.step()
        return self._core.step(make)

    def update(self) -> None:
        """Chooses the scale of the next step."""
        self._core.update()

    def get_scale(self) -> float:
        """The factor of this step."""
        return self._core.get_scale()

    def state_dict(self) -> dict[str, float]:
        """The scale and how long it has held, the same on every rank."""
        return {name: tensor.item() for name, tensor in self._core.state()}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restores state_dict(), or that of torch.amp.GradScaler. Raises
        InvalidArgumentError where something is missing; nothing has changed then."""
        tensors = self._core.state()
        # torch's has "_growth_tracker".
        keys = {name: name if name in state else f"_{name}" for name, _ in tensors}
        missing = [name for name, key in keys.items() if key not in state]
        if missing:
            raise InvalidArgumentError(
                "[python] GradScaler.load_state_dict: expected "
                f"{' and '.join(keys)}, found no {' and no '.join(missing)}")
        for name, tensor in tensors:
            tensor.fill_(state[keys[name]])


class WeightAverage(_core.WeightAverage):
    """An exponential moving average of the weights. update() after each optimizer step;
    swap(), on every rank, before an evaluation and again after it, exchanges it with the
    weights; reset() begins again with the present weights. tensors() are this rank's
    averages by name, to save them and to copy_() saved ones into. ``decay`` is the share
    that an update keeps. Mirrors torch.optim.swa_utils.AveragedModel and sherd::WeightAverage."""

    def __init__(self, handle, decay: float = 0.999) -> None:
        super().__init__(_parameters_of(handle), decay)


__all__ = ["AdamW", "GradScaler", "Muon", "SGD", "WeightAverage", "split"]
