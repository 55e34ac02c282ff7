# SPDX-License-Identifier: Apache-2.0
"""What tells torch.optim and torch.nn.utils that parameters are sharded.

An optimizer of torch.optim over a handle's slices publishes them after each step, and
its zero_grad() drops what no_sync() has kept of them, but not what
no_sync(axis="replicate") has summed up.
One over the parameters of the module itself, one that does not update each element by
itself, and a gradient norm of some ranks only, would be wrong without a word, so these
raise or do the right thing.
"""

import functools
import sys
import weakref

import torch
from torch.optim import optimizer as torch_optimizer

from ._handles import handles
from .errors import FailedPreconditionError, InvalidArgumentError

_MARK = "_sherd_owner"  # An attribute of tensors.
# Classes of optimizers that take norms or products over whole parameters, or factor them.
# By name, since Transformers and others have their own.
_NOT_ELEMENTWISE = {"LBFGS", "Adafactor", "LAMB", "Lamb", "LARS", "Lars"}
# The dispatch key that parameters of a sharded module have, and what sherd leaves in their
# .grad when it has taken a gradient.
_KEY = torch._C._parse_dispatch_key(  # pylint: disable=protected-access
    "TESTING_ONLY_GenericWrapper")


def refuse_copy(*_):
    """What a part of a sharded module does when it is copied or pickled."""
    raise FailedPreconditionError(
        "[python] a sharded module cannot be copied or pickled, since each rank has "
        "a part of it: copy it before fully_shard()")


class _Owner:
    """Whose a tensor is, and whether it is a slice."""

    __reduce_ex__ = refuse_copy

    def __init__(self, handle, is_slice):
        self.handle = weakref.ref(handle)
        self.is_slice = is_slice


def mark(tensors, handle, is_slice):
    """Remembers whose these are."""
    owner = _Owner(handle, is_slice)
    for tensor in tensors:
        setattr(tensor, _MARK, owner)


def unmark(tensors):
    """Undoes mark()."""
    for tensor in tensors:
        if hasattr(tensor, _MARK):
            delattr(tensor, _MARK)


def owner_of(tensor):
    """The handle whose slice or parameter of the module this is, or None."""
    owner = getattr(tensor, _MARK, None)
    return owner.handle() if owner is not None else None


def _owners(tensors):
    """(handle, whether slices) of all that sharded tensors among these belong to."""
    # In the order of the tensors, which is that of all ranks.
    owners = dict.fromkeys([getattr(tensor, _MARK, None) for tensor in tensors])
    owners.pop(None, None)
    found = ((owner.handle(), owner.is_slice) for owner in owners)
    return [(handle, is_slice) for handle, is_slice in found if handle is not None]


def _owners_of(optimizer):
    return _owners(
        [tensor for group in optimizer.param_groups for tensor in group["params"]])


# What an optimizer that is in its step has to publish: it is asked once a step
# for its parameters, which is all that a step costs in Python.
_stepping = weakref.WeakKeyDictionary()


def _check_kind(optimizer, handle):
    """Raises on every rank for a kind of optimizer that does not work with slices."""
    kinds = {kind.__name__ for kind in type(optimizer).__mro__}
    if "SparseAdam" in kinds:
        raise InvalidArgumentError(
            "[python] expected an optimizer of dense gradients, found SparseAdam: the "
            "gradients of a sharded module are dense, also those of nn.Embedding(sparse=True); "
            "sherd.replicate() keeps them sparse")
    unfit = kinds & (_NOT_ELEMENTWISE | {"ZeroRedundancyOptimizer"})
    if not unfit or all(part.numel() == whole.numel() for part, whole in zip(
            handle.parameters(), handle.module_parameters())):
        return  # Each rank has all parameters whole.
    if "ZeroRedundancyOptimizer" in unfit:
        raise InvalidArgumentError(
            "[python] expected the optimizer that ZeroRedundancyOptimizer would make, over "
            "handle.parameters(), found ZeroRedundancyOptimizer: the optimizer state of a "
            "sharded module is sharded already")
    raise InvalidArgumentError(
        "[python] expected an optimizer that updates each element by itself, as AdamW "
        f"and SGD do, found {min(unfit)}, which would see the slices of this rank in "
        "place of whole parameters")


def _check_assigned(optimizer):
    """Raises where a gradient lies in the module, whose optimizer would not see it."""
    for group in optimizer.param_groups:
        for part in group["params"]:
            owner = getattr(part, _MARK, None)
            handle = owner.handle() if owner is not None else None
            whole = handle.whole_of.get(id(part)) if handle is not None else None
            if whole is None or whole.grad is None or not whole.requires_grad:
                continue
            # pylint: disable-next=protected-access
            if not torch._C._dispatch_keys(whole.grad).has(_KEY):
                raise FailedPreconditionError(
                    "[python] expected gradients of a sharded module that come from "
                    "backward(), found a .grad that the program has assigned to a parameter "
                    f"of shape {tuple(whole.shape)}, which no optimizer over slices sees: call "
                    "torch.autograd.backward(parameters, gradients) in place of assigning "
                    "them, which averages them over all ranks")


def _before_step(optimizer, _args, _kwargs):
    owners = _owners_of(optimizer)
    for handle, is_slice in owners:
        if not is_slice:
            raise FailedPreconditionError(
                "[python] expected an optimizer over handle.parameters(), this "
                "rank's slices, found one over the parameters of the sharded "
                "module, which have no gradients")
        _check_kind(optimizer, handle)
    if owners:
        _check_assigned(optimizer)
        _stepping[optimizer] = [handle for handle, _ in owners]


def _zero_grad(original):
    @functools.wraps(original)
    def zero_grad(self, *args, **kwargs):
        original(self, *args, **kwargs)
        given = {id(tensor) for group in self.param_groups for tensor in group["params"]}
        for handle, is_slice in _owners_of(self):
            if is_slice:
                handle.core_parameters.drop_kept(
                    [name for name, part in handle.named_parameters()
                     if id(part) in given])
    return zero_grad


def _is_within_another(optimizer, step):
    """Whether `step`, the frame of a step of this optimizer, runs within another one, as
    it does where a derived class calls super().step(). The stack says so: a count of
    hooks would be wrong after a step that has raised."""
    frame = step.f_back
    while frame is not None:
        # PyTorch wraps step() of each class by the same code.
        if frame.f_code is step.f_code and frame.f_locals.get("self") is optimizer:
            return True
        frame = frame.f_back
    return False


def _after_step(optimizer, _args, _kwargs):
    # pylint: disable-next=protected-access
    if optimizer in _stepping and _is_within_another(optimizer, sys._getframe(1)):
        return  # What follows may write, too.
    for handle in _stepping.pop(optimizer, ()):
        # Units that are frozen stay as they are, unlike after handle.publish().
        handle.core_parameters.publish()


def _lacks_some(handle, given, is_slice):
    """Whether, on any rank, parameters that are trained are not among these, or slices
    that have a gradient: a list of those that have one lacks other slices on each rank.
    Collective, since the other ranks would wait for one that raises alone."""
    listed = {id(tensor) for tensor in given}
    ours = handle.parameters() if is_slice else handle.module_parameters()
    lacks = len(listed) != len(given) or any(
        tensor.requires_grad and id(tensor) not in listed
        and not (is_slice and tensor.grad is None) for tensor in ours)
    any_lacks = torch.tensor([float(lacks)], dtype=torch.float64, device="cpu")
    handle.core_parameters.all_reduce_max(any_lacks)
    return any_lacks.item() > 0


def _clip_grad_norm(original):
    @functools.wraps(original)
    def clip_grad_norm_(parameters, max_norm, norm_type=2.0,
                        error_if_nonfinite=False, foreach=None):
        if isinstance(parameters, torch.Tensor):
            parameters = [parameters]
        parameters = list(parameters)
        owners = _owners(parameters)
        if not owners:
            return original(parameters, max_norm, norm_type, error_if_nonfinite,
                            foreach)
        handles = {id(handle) for handle, _ in owners}
        handle, is_slice = owners[0]
        # Frozen ones have no gradients.
        given = [tensor for tensor in parameters if tensor.requires_grad]
        sharded = sum(hasattr(tensor, _MARK) for tensor in given)
        mine = sum(tensor.requires_grad for tensor in (
            handle.parameters() if is_slice else handle.module_parameters()))
        if len(handles) != 1 or sharded != len(given) or _lacks_some(
                handle, given, is_slice):
            raise InvalidArgumentError(
                "[python] clip_grad_norm_: expected all parameters of one sharded "
                f"module, found {sharded} of {mine} that are trained and {len(given)} "
                "in all; handle.clip_grad_norm() clips by the norm over all ranks")
        norm = handle.clip_grad_norm(max_norm, norm_type, error_if_nonfinite)
        # Of which no digit is lost, as for PyTorch's in fp64.
        return torch.tensor(norm, dtype=functools.reduce(
            torch.promote_types, {tensor.dtype for tensor in given}, torch.float32),
            device=parameters[0].device)
    clip_grad_norm_.sherd_original = original
    return clip_grad_norm_


def _total_norm(original):
    @functools.wraps(original)
    def get_total_norm(tensors, *args, **kwargs):
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        given = {id(tensor) for tensor in tensors}
        # A rank that owns no slices would be given nothing, and does not take part: so this
        # cannot be the norm over all ranks.
        if any(id(part.grad) in given for handle in list(handles)
               if hasattr(handle, "module_parameters") for part in handle.parameters()
               if part.grad is not None):
            raise FailedPreconditionError(
                "[python] expected handle.clip_grad_norm(math.inf), which returns the norm "
                "over all ranks and clips nothing, found get_total_norm of gradients of "
                "slices, which knows those of this rank only")
        return original(tensors, *args, **kwargs)
    return get_total_norm


def _clip_with_norm(original):
    @functools.wraps(original)
    def clip_grads_with_norm_(parameters, *args, **kwargs):
        parameters = ([parameters] if isinstance(parameters, torch.Tensor)
                      else list(parameters))
        if _owners(parameters):
            raise FailedPreconditionError(
                "[python] expected handle.clip_grad_norm(), which clips by the norm over all "
                "ranks, found clip_grads_with_norm_, or PyTorch's own clip_grad_norm_ (if it "
                "was imported before sherd), which knows this rank's gradients only")
        return original(parameters, *args, **kwargs)
    return clip_grads_with_norm_


def _load_state_dict(original):
    @functools.wraps(original)
    def load_state_dict(self, state_dict, *args, **kwargs):
        _check_shapes(self, state_dict)
        return original(self, state_dict, *args, **kwargs)
    return load_state_dict


def _check_shapes(optimizer, saved):
    """Raises where `saved` has state of whole parameters for slices."""
    for group, theirs in zip(optimizer.param_groups, saved.get("param_groups", [])):
        for part, key in zip(group["params"], theirs.get("params", [])):
            if owner_of(part) is None:
                continue
            for name, value in saved["state"].get(key, {}).items():
                if isinstance(value, torch.Tensor) and value.dim() and (
                        value.shape != part.shape):
                    raise InvalidArgumentError(
                        f"[python] load_state_dict of {type(optimizer).__name__}: expected "
                        f"{name} of this rank's slice of shape {tuple(part.shape)}, found "
                        f"shape {tuple(value.shape)}, as a plain module or another number of "
                        "ranks has it; sherd.load_optimizer_state_dict(handle, optimizer, "
                        "state) loads whole state")


def _grad_scaler(original):
    @functools.wraps(original)
    def of_scaler(self, optimizer, *args, **kwargs):
        if self.is_enabled() and any(
                is_slice for _, is_slice in _owners_of(optimizer)):
            raise FailedPreconditionError(
                "[python] expected sherd.GradScaler(handle) for a sharded module, "
                f"found {type(self).__name__}, which would skip a step on those "
                "ranks only whose own slices have overflowed")
        return original(self, optimizer, *args, **kwargs)
    return of_scaler


def _is_shared(original):
    @functools.wraps(original)
    def is_shared(self):
        if not self.is_cuda:
            # Raises for a parameter that is not whole, where PyTorch's own would abort.
            self.filename  # pylint: disable=pointless-statement
        return original(self)
    return is_shared


def install():
    """Once, when sherd is imported."""
    scaler = torch.amp.GradScaler
    scaler.unscale_ = _grad_scaler(scaler.unscale_)
    scaler.step = _grad_scaler(scaler.step)
    torch.optim.Optimizer.zero_grad = _zero_grad(torch.optim.Optimizer.zero_grad)
    torch.optim.Optimizer.load_state_dict = _load_state_dict(
        torch.optim.Optimizer.load_state_dict)
    torch_optimizer.register_optimizer_step_pre_hook(_before_step)
    torch_optimizer.register_optimizer_step_post_hook(_after_step)
    clip = _clip_grad_norm(torch.nn.utils.clip_grad_norm_)
    utils = torch.nn.utils
    utils.clip_grad_norm_ = utils.clip_grad.clip_grad_norm_ = clip
    if hasattr(utils, "get_total_norm"):
        utils.get_total_norm = _total_norm(utils.get_total_norm)
    torch.UntypedStorage.is_shared = _is_shared(torch.UntypedStorage.is_shared)
    # What PyTorch's own calls, of which a program may have a reference already.
    for where, name in ((utils.clip_grad, "_clip_grads_with_norm_"),
                        (utils, "clip_grads_with_norm_")):
        if hasattr(where, name):
            setattr(where, name, _clip_with_norm(getattr(where, name)))
