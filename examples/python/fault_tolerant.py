# SPDX-License-Identifier: Apache-2.0
"""A small network on a table of real numbers, as replicas that may die:

    sherd run --fault-tolerant --replicas 3 --samples-per-replica 32 -- \
        python examples/python/fault_tolerant.py

End any of its processes with kill -9: the others go on, and it comes back. The
table is Friedman's first (Multivariate Adaptive Regression Splines, 1991).
"""

import math

import torch
from torch import nn

import sherd

ROWS, STEPS = 4096, 2000


def make_table():
    x = torch.rand(ROWS, 10)
    y = (10 * torch.sin(math.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2
         + 10 * x[:, 3] + 5 * x[:, 4] + torch.randn(ROWS))
    return x, y.unsqueeze(1)


torch.manual_seed(1991)  # The same table and first values everywhere.
inputs, targets = make_table()
model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
                      nn.Linear(64, 1))
handle = sherd.fully_shard(model)  # Over the ranks of this replica.
optimizer = torch.optim.AdamW(handle.parameters(), lr=1e-2)
with sherd.ft.Session(handle, optimizer) as session:
    for step in session:
        if step.number > STEPS:
            break
        if len(step.samples):  # Else it follows the others.
            rows = step.samples * 1009 % ROWS
            loss = nn.functional.mse_loss(model(inputs[rows]), targets[rows])
            session.last_backward()
            loss.backward()
            if step.place == 0 and step.number % 400 == 0:
                print(f"step {step.number} of {step.replicas} replicas, loss {loss:.2f}")
if session.step == STEPS:
    with torch.no_grad():
        error = nn.functional.mse_loss(model(inputs), targets)
    print(f"explained: {1 - error / targets.var():.3f} of the variance")
else:  # It left early, or came back when the others had ended and has the first values.
    print(f"nothing to evaluate at step {session.step} of {STEPS}")
handle.close()
