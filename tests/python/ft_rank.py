# SPDX-License-Identifier: Apache-2.0
"""One rank of a replica that ft_test.py starts: ft_rank.py PACKAGE FOLDER KIND.

All samples are alike, so that the parameters after a step do not depend on who
computed it. Replica 1 kills itself in its first life; the run ends ten steps after it
has computed again.
"""

import fcntl
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

KILLED_IN = 5
STEPS_AFTER_RETURN = 10
STEP_S = 0.05  # As a real model computes: sums are fetched faster than they are made.


def make_model():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 33), nn.Tanh(), nn.Linear(33, 3))


def loss_of(model, count):
    inputs = torch.arange(6.0).expand(count, 6) / 8
    targets = torch.tensor([0.25, -0.5, 1.0]).expand(count, 3)
    return nn.functional.mse_loss(model(inputs), targets)


def learning_rate(number):
    return 1e-2 / (1 + number / 10)


def make_optimizer(kind, handle, sherd):
    """`kind` is the name of an optimizer in torch.optim, or "sherd"."""
    if kind == "sherd":
        return sherd.AdamW(handle, lr=1e-2)
    return make_torch_optimizer(kind, handle.parameters())


def make_torch_optimizer(kind, parameters):
    options = {"momentum": 0.9, "nesterov": True} if kind == "SGD" else {}
    return getattr(torch.optim, kind)(parameters, lr=1e-2, **options)


def set_learning_rate(optimizer, rate):
    if isinstance(optimizer, torch.optim.Optimizer):
        for group in optimizer.param_groups:
            group["lr"] = rate
    else:
        optimizer.lr = rate


class End:
    """The step with which the run ends: replica 1 says that it computes again, and
    then rank 0 of replica 0 decides."""

    def __init__(self, folder, replica, rank, first_life):
        self.returned, self.file = folder / "returned", folder / "end"
        self.decides = replica == 0 and rank == 0
        self.returns = replica == 1 and not first_life

    def is_before(self, step):
        if self.returns and len(step.samples):
            self.returned.touch()
        if self.decides and self.returned.exists() and not self.file.exists():
            whole = self.file.with_suffix(".new")
            whole.write_text(str(step.number + STEPS_AFTER_RETURN))
            whole.rename(self.file)
        return self.file.exists() and step.number > int(self.file.read_text())


def whole_values(handle):
    with handle.summon_full_parameters(read_only=True) as full:
        return {key: full.tensor(key).clone() for key, _ in handle.module.named_parameters()}


def train(folder, kind, sherd):
    replica, rank = int(os.environ["SHERD_REPLICA"]), int(os.environ["RANK"])
    life = folder / f"life-{replica}-{rank}"
    first_life = not life.exists()
    life.touch()
    model = make_model()
    handle = sherd.fully_shard(model, units=[])
    optimizer = make_optimizer(kind, handle, sherd)
    average = sherd.WeightAverage(handle, decay=0.9)
    made = torch.tensor(0)

    def update(number):
        made.add_(1)
        set_learning_rate(optimizer, learning_rate(number))
        handle.clip_grad_norm(0.5)
        optimizer.step()
        average.update()

    end = End(folder, replica, rank, first_life)
    with sherd.ft.Session(handle, optimizer, update=update, average=average,
                          tensors={"made": made}) as session:
        for step in session:
            # Collective, so that all ranks of the replica see the same end.
            if max(handle.mesh.world.all_gather([end.is_before(step)]))[0]:
                break
            assert 0 <= step.place < step.replicas, step
            if len(step.samples):
                time.sleep(STEP_S)
                loss = loss_of(model, len(step.samples))
                if step.number % 2:
                    session.last_backward()
                loss.backward()
                assert session.other_work(len, step.samples) == len(step.samples)
            if replica == 1 and first_life and step.number >= KILLED_IN:
                os.kill(os.getpid(), signal.SIGKILL)
        name, number = session.state_name, session.step
    assert made == number, (made, number)
    values = whole_values(handle)
    average.swap()
    averages = whole_values(handle)
    if rank == 0:
        torch.save({"values": values, "averages": averages, "name": name, "step": number},
                   folder / f"final-{replica}.pt")
    handle.close()


def train_until_update_raises(sherd):
    """And leaves its session open, as a program that fails does."""
    model = make_model()
    handle = sherd.replicate(model)

    def update(number):
        if number == 3:
            raise ValueError(f"no step {number}")

    session = sherd.ft.Session(
        handle, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        update=update)
    try:
        for step in session:
            loss_of(model, len(step.samples)).backward()
    except ValueError as error:
        print("raised:", error, flush=True)
    try:
        session.begin_step()
    except sherd.Error as error:
        print("afterwards:", error, flush=True)


def sum_of(average):
    return sum(mean.double().sum().item() for mean in average.tensors().values())


def train_ten_steps_more(folder, sherd):
    """Than the newest checkpoint has."""
    handle = sherd.fully_shard(make_model(), units=[])
    adamw = torch.optim.AdamW(handle.parameters(), lr=1e-2)
    average = sherd.WeightAverage(handle, decay=0.9)
    with sherd.ft.Session(handle, adamw, average=average, checkpoints=folder / "checkpoints",
                          save_every=4) as session:
        print("average at first:", sum_of(average), flush=True)
        first = session.step + 1
        for step in session:
            if step.number == first + 10:
                break
            loss = loss_of(handle.module, len(step.samples))
            loss.backward()
        print(f"steps {first} to {session.step}", flush=True)
    print("average at last:", sum_of(average), flush=True)
    steps = {state["step"].item() for state in adamw.state.values()}
    print("steps of the optimizer:", steps, flush=True)


class Counting(nn.Sequential):
    """Counts its forwards in a buffer that it assigns."""

    def __init__(self, *layers):
        super().__init__(*layers)
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, inputs):
        self.count = self.count + 1
        return super().forward(inputs)


def train_with_more_state(folder, sherd):
    model = Counting(*make_model())
    handle = sherd.fully_shard(model, units=[])
    adamw = sherd.AdamW(handle, lr=1e-2)
    scaler = sherd.GradScaler(handle, init_scale=8.0, growth_interval=3, uses_fp16=True)

    def update(_number):
        scaler.step(adamw)
        scaler.update()

    with sherd.ft.Session(handle, adamw, update=update, scaler=scaler,
                          checkpoints=folder / "checkpoints") as session:
        print(f"count {model.count.item()}, scale {scaler.get_scale()}", flush=True)
        first = session.step + 1
        for step in session:
            if step.number == first + 10:
                break
            scaler.scale(loss_of(model, len(step.samples))).backward()
    try:
        report = sherd.load(folder / "checkpoints", handle, adamw)
        print(f"loaded step {report.step}, count {model.count.item()}", flush=True)
    except sherd.Error as error:  # A program that fails would be started again.
        print("not loaded:", error, flush=True)


def train_with_interruptions(folder, sherd):
    """Of the first begin_step(), as another run has the folder of checkpoints, and of the
    last save, whose folder is away."""
    handle = sherd.fully_shard(make_model(), units=[])
    adamw = torch.optim.AdamW(handle.parameters(), lr=1e-2)
    saves, away = folder / "checkpoints", folder / "away"

    def update(number):
        adamw.step()
        if number == 1:
            try:
                session.close()
            except sherd.Error as error:
                print("inside an update:", error, flush=True)

    session = sherd.ft.Session(handle, adamw, update=update, checkpoints=saves)
    with open(saves / ".run", "wb") as other_run:
        fcntl.flock(other_run, fcntl.LOCK_EX)
        for _ in range(2):  # A second call asks for the folder again.
            try:
                session.begin_step()
            except sherd.Error as error:
                print("not begun:", error, flush=True)
    step = session.begin_step()
    print(f"begins again with step {step.number}", flush=True)
    while session.step < 5:
        loss_of(handle.module, len(step.samples)).backward()
        session.finish_step()
        step = session.begin_step()
    saves.rename(away)
    saves.touch()
    try:
        session.close()
    except sherd.Error as error:
        print("not closed:", error, flush=True)
    saves.unlink()
    away.rename(saves)
    session.close()
    print("saved step", sherd.load(saves, handle, adamw).step, flush=True)


def main():
    package, folder, kind = sys.argv[1:]
    sys.path.insert(0, package)
    import sherd  # pylint: disable=import-outside-toplevel
    torch.set_num_threads(1)
    if kind == "raises":
        train_until_update_raises(sherd)
    elif kind == "more state":
        train_with_more_state(Path(folder), sherd)
    elif kind == "interrupted":
        train_with_interruptions(Path(folder), sherd)
    elif kind == "saves":
        train_ten_steps_more(Path(folder), sherd)
    else:
        train(Path(folder), kind, sherd)


if __name__ == "__main__":
    main()
