# SPDX-License-Identifier: Apache-2.0
"""Fault-tolerant training: several replicas of a model train in lock step; one may
die, hang or be cut off while the others go on, and come back while they train.

    model = make_model()                        # The same on every rank of every replica.
    handle = sherd.fully_shard(model)           # Over the ranks of this replica.
    optimizer = sherd.AdamW(handle, lr=3e-4)
    with sherd.ft.Session(handle, optimizer) as session:
        for step in session:
            if step.number > 1000:
                break
            if len(step.samples):               # Else it follows the others.
                loss = loss_of(model, step.samples)
                session.last_backward()
                loss.backward()

started by ``sherd run --fault-tolerant --replicas 3 --samples-per-replica 12 --
python train.py``. Mirrors sherd::ft::ReplicaSession; docs/guide/python.md.
"""

import atexit
import weakref

import torch

from . import _core
from . import world as _world  # noqa: F401  Worlds, imported first, end after sessions.
from ._handles import check_handle, sessions
from ._optimizer_state import reader_of
from ._options import member, set_option
from ._session_checks import (
    check_alike, check_arguments, check_optimizers, check_options, check_saves, check_timeout,
    named)
from ._session_process import LeaveHandlers, check_alone, note_begun, refusals
from ._session_steps import OptimizerSteps
from ._together import on_every_rank
from ._tree import checkpoint_tree
from .checkpoints import ignored_parameters
from .errors import InvalidArgumentError


class TrainingStep:
    """What to compute for a step.

    number: the step that it makes, counted from 1.
    samples: int64 tensor of the numbers of this rank's samples, 1-D. They come from
        an endless order in which each is in one committed step. Empty: the replica
        only follows this step. Every rank of the replica has the same number of samples: make
        one batch of them, or micro-batches whose number depends only on the number of samples.
    replica_samples: samples of all ranks of the replica.
    replicas, place: how many replicas are in the step, and which of them this is.
    warms_up: its gradients are thrown away (option warm_up).
    """

    def __init__(self, core):
        self.number = core.step
        ranges = [torch.arange(begin, end) for begin, end in core.spans]
        self.samples = torch.cat(ranges) if ranges else torch.empty(0, dtype=torch.int64)
        self.replica_samples = core.replica_samples
        self.replicas = core.replicas
        self.place = core.place
        self.warms_up = core.warms_up


class Session:
    """A replica's membership in fault-tolerant training. Collective over the ranks
    of this replica, as are all methods but leave().

    handle: of fully_shard() or replicate(); parameters are fp32, all on the CPU or on
        one GPU, and no optimizer updates them in backward.
    optimizer: one of sherd, or one of torch.optim whose first step is the same if its state is
        made beforehand, such as Adam, AdamW, NAdam, SGD without dampening, RMSprop and Adagrad;
        or a dictionary of several by name. The session makes their steps: from the first
        begin_step() until close(), step() outside `update` raises FailedPreconditionError.
    update: function of the step number that updates the parameters from the ``.grad`` of the
        handle's parameters: clipping, learning-rate schedule, optimizer step. It is called on
        the thread that trains, in begin_step() or finish_step(), once for each step, also those
        that this replica has missed; compute learning rates from the number. None: it calls
        step() of each optimizer, through the `scaler` if there is one, which is then updated, as
        is the `average`.
        If it raises, the session has ended, because the step may have been made only in part:
        restart the process.
    scaler: a sherd.GradScaler that scales the losses. An `update` of your own must call its
        step() and update(). ``non_finite_gradients`` is then "give" unless you set it, so that
        all replicas find an overflow in the sum and skip the step.
    average: a WeightAverage of the handle's parameters, part of the state. An `update` of your
        own must call its update().
    tensors: dictionary of all other tensors that `update` changes, in place: CPU tensors that are
        whole and equal on every rank of the replica. Raises InvalidArgumentError on every rank if
        they differ at first.
    checkpoints: folder in which the replicas, taking turns, save a checkpoint every `save_every`
        steps (0: never) and when they end, in case all replicas are lost. A session begins with
        the newest checkpoint; the newest `keep_last` are kept.
    options: those of sherd::ft::SessionOptions by name, such as `config`, `warm_up`,
        `digest_every`, ``non_finite_gradients="stop"`` or
        ``timeouts={"leave": 10, "fetch": 2.5}`` in seconds; otherwise as the environment
        says. `held` is none of them: `checkpoints` sets it.

    The module's buffers, and its parameters that the handle leaves alone, are part of the state,
    too; checkpoints have the persistent buffers only. The optimizers' parameter groups must not
    change. A session that was closed no longer keeps `update`. Raises sherd.Error if an argument
    is invalid, if the process has another session of this replica, or had one that got a step,
    and in a process that `sherd run --fault-tolerant` has not started, unless SHERD_COORDINATOR
    and SHERD_REPLICA are set.

    Until close(), SIGTERM and SIGUSR1 call leave(), if the session was made on the main thread and
    the program has not set handlers of its own. If the replica is refused for good and nothing
    catches the InvalidArgumentError, the process ends with status 2, as C++ programs do, so that
    launchers do not start it again.
    """

    def __init__(self, handle, optimizer, *, update=None, scaler=None, average=None,
                 tensors=None, checkpoints=None, save_every=0, keep_last=2, **options):
        check_handle(handle)
        world, optimizers = handle.mesh.world, named(optimizer)

        def check():
            check_optimizers(optimizers)
            check_arguments(update, scaler, average, tensors)
            check_saves(checkpoints, save_every, keep_last)

        on_every_rank(world, check)
        self._buffers = _Buffers(handle.module)
        self._calls = _Calls()
        self._steps = OptimizerSteps(optimizers)
        self._closed = False
        state, saved = _states_of(
            handle, optimizers, scaler, average, tensors or {}, self._calls)
        check_alike(world, tensors or {})
        if scaler is not None:
            options = {"non_finite_gradients": "give"} | options
        self.options = _options(options)
        self._place = (self.options.coordinator, self.options.replica)
        places = {session._place for session in sessions}
        on_every_rank(world, lambda: check_alone(self._place, places))
        step = self._steps.around(_checked(
            update or _all_steps(optimizers, scaler, average), optimizers, self._buffers))
        self._core = _core.Session(
            world, handle.core_parameters, state, saved, self._calls.to(step),
            self.options, str(checkpoints or ""), save_every, keep_last)
        sessions.add(self)
        self._handlers = LeaveHandlers(self)
        for left in (self._handlers.remove, self._steps.release):
            weakref.finalize(self, left).atexit = False

    def __iter__(self):
        """Yields the steps; each is finished when the next one is requested. A loop that is left
        with `break` does not finish its step."""
        while (step := self.begin_step()) is not None:
            yield step
            self.finish_step()

    def begin_step(self):
        """What to compute next, with ``.grad`` cleared; None when the replica has
        left or the run has ended. Waits while the coordinator is away or there are
        too few replicas; state that the replica lacked has been fetched then. Raises
        sherd.AbortedError when the replica cannot take part any more, and InvalidArgumentError
        when starting the program again would not help. If a handler of a signal raises while
        this waits, call it again to go on."""
        self._buffers.adopt()
        self._steps.guard()
        with refusals(self._steps):
            core = self._core.begin_step()
        if core is None:
            return None
        note_begun(self._place)
        return TrainingStep(core)

    def last_backward(self):
        """To be called before the last backward of a step: gradients are then summed
        across replicas while it runs. Not for reentrant checkpointing."""
        self._core.last_backward()

    def finish_step(self):
        """Sums gradients across replicas and waits for the decision. True: the step
        was made, and `update` was called. False: nothing was changed, and the next
        begin_step() says what to do."""
        self._buffers.adopt()
        with refusals(self._steps):
            return self._core.finish_step()

    def other_work(self, function, *arguments, **named):
        """Calls `function` and returns its result. For work in the body of the loop that is not
        part of the step, such as an evaluation: the function may take a minute
        (`--first-hang-after` of `sherd run`), whereas a step that takes more than 5 s and ten times
        as long as usual is taken for a hang."""
        results = []
        self._core.other_work(lambda: results.append(function(*arguments, **named)))
        return results[0]

    @property
    def step(self):
        """The last step that this replica has."""
        return self._core.step

    @property
    def state_name(self):
        """The name of the state that this replica holds. Equal names: equal bits of what
        `update` changes. Raises inside `update`."""
        return self._core.state_name

    @property
    def samples_of_update(self):
        """In `update`: how many samples its step has over all replicas."""
        return self._core.samples_of_update

    def learning_rate_factor(self, scaling="sqrt"):
        """To be called in `update`: the factor for the learning rate of a step that has fewer
        samples because replicas are missing. scaling: "none", "linear" or "sqrt". The launcher
        sets the number of samples of a full step."""
        kind = member(_core.LearningRateScaling, "scaling", scaling)
        return _core.learning_rate_factor(
            kind, self.samples_of_update, self.options.samples_full)

    def leave(self):
        """The replica finishes its current step, and begin_step() returns None then.
        From any thread or signal handler."""
        self._core.leave()

    def close(self):
        """Ends the session: saves a checkpoint if `checkpoints` is set, and waits for at most a
        minute until the other replicas have the last step. Idempotent; if it raises, call it
        again to do the rest."""
        if not self._closed:
            self._buffers.adopt()
            self._core.close()
            self._closed = True
            sessions.discard(self)
            self._calls.drop()
            self._steps.release()
            self._handlers.remove()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.close()
        else:
            self._handlers.remove()

    def __reduce_ex__(self, protocol):
        raise InvalidArgumentError("[python] a Session cannot be copied or pickled")


class _Calls:
    """What a session calls in Python, until it is closed. C++ keeps these functions, where
    the garbage collector does not see that one of them refers to the session."""

    def __init__(self):
        self._functions = []

    def to(self, function):
        """A function that calls this one and does not keep it."""
        number = len(self._functions)
        self._functions.append(function)
        functions = self._functions
        return lambda *arguments: functions[number](*arguments)

    def drop(self):
        self._functions.clear()


def _all_steps(optimizers, scaler, average):
    def update(_number):
        if scaler is not None:
            scaler.step(*optimizers.values())
            scaler.update()
        else:
            for optimizer in optimizers.values():
                optimizer.step()
        if average is not None:
            average.update()
    return update


def _checked(update, optimizers, buffers):
    """`update`, unless it changes what parameters optimizers have: a replica that comes
    back could not restore their state. The state then has the buffers that it has assigned: a
    checkpoint, or a replica that comes back, may read them before the program runs again."""
    def sizes():
        return {name: [len(group["params"]) for group in optimizer.param_groups]
                for name, optimizer in optimizers.items()
                if isinstance(optimizer, torch.optim.Optimizer)}
    first = sizes()

    def checked(number):
        update(number)
        found = sizes()
        if found != first:
            raise InvalidArgumentError(
                "[python] Session: expected an update that leaves the parameter groups "
                f"as they are, with {first} parameters, found {found}; give all "
                "parameters to the optimizer at first: those that are frozen, or that no "
                "replica uses, have no gradient and stay as they are")
        buffers.adopt()
    return checked


class _Buffers:
    """The buffers of a module, by the tensors that the state of a session has."""

    def __init__(self, module):
        seen = set()
        self._places = []
        for prefix, owner in module.named_modules():
            for key, tensor in owner._buffers.items():  # pylint: disable=protected-access
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    self._places.append((owner, f"{prefix}.{key}".lstrip("."), key, tensor))

    @torch.no_grad()
    def adopt(self):
        """Copies buffers that were assigned to the tensors of the state."""
        for owner, name, key, tensor in self._places:
            now = owner._buffers.get(key)  # pylint: disable=protected-access
            if now is tensor:
                continue
            if now is None or (now.shape, now.dtype) != (tensor.shape, tensor.dtype):
                raise InvalidArgumentError(
                    f"[python] Session: expected buffer {name} to stay of shape "
                    f"{tuple(tensor.shape)} and {tensor.dtype}, found "
                    f"{None if now is None else (tuple(now.shape), now.dtype)}")
            tensor.copy_(now)
            owner._buffers[key] = tensor  # pylint: disable=protected-access


def _states_of(handle, optimizers, scaler, average, tensors, calls):
    """What replicas fetch from each other, with all buffers, and what checkpoints have of
    it, with the persistent ones, as load() expects it."""
    fetched, saved = _core.CheckpointState(), _core.CheckpointState()
    parameters, others = handle.core_parameters, ignored_parameters(handle)
    fetched.add_tensors("model", list(handle.module.named_buffers()), True)
    saved.add_buffers(checkpoint_tree(handle.module))
    read = {section: calls.to(reader_of(optimizer, parameters.items()))
            for section, optimizer in optimizers.items()
            if isinstance(optimizer, torch.optim.Optimizer)}
    for state in (fetched, saved):
        state.add_parameters(parameters)
        state.add_tensors("model", others, True)
        state.add_tensors("tensors", list(tensors.items()), False)
        if average is not None:
            state.add_averages(average)
        if scaler is not None:
            # pylint: disable-next=protected-access
            state.add_tensors("scaler", scaler._core.state(), False)
        for section, optimizer in optimizers.items():
            state.add_optimizer(section, read.get(section, optimizer), parameters)
    return fetched, saved


def _options(given):
    options = _core.SessionOptions.from_environment()
    for name, value in given.items():
        if not hasattr(options, name):
            raise InvalidArgumentError(
                "[python] Session: expected an option of sherd::ft::SessionOptions, "
                f"found {name}")
        if name == "timeouts":
            _set_timeouts(options.timeouts, value)
        else:
            set_option(options, name, value)
    check_options(options)
    return options


def _set_timeouts(timeouts, given):
    """Seconds by the names of sherd::ft::SessionTimeouts; the others stay."""
    names = [name for name in dir(timeouts) if not name.startswith("_")]
    if not isinstance(given, dict) or not set(given) <= set(names):
        raise InvalidArgumentError(
            "[python] timeouts: expected a dictionary of seconds by name, of "
            f"{', '.join(names)}, found {given!r}")
    for name, seconds in given.items():
        check_timeout(name, seconds)
        set_option(timeouts, name, seconds)


@atexit.register
def _drop_open():
    # What a program that fails leaves open: its threads and connections end before
    # the interpreter does. Nobody is waited for.
    for session in list(sessions):
        session._handlers.remove()  # pylint: disable=protected-access
        session._core = None  # pylint: disable=protected-access


__all__ = ["Session", "TrainingStep"]
