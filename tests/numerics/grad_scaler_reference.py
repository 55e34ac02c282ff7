# SPDX-License-Identifier: Apache-2.0
"""Prints the losses and scales, as powers of two, that grad_scaler_test.cpp
expects, by torch.amp.GradScaler.

The GPT-2 of src/models/gpt_reference.py, its weights kept in fp32, used in fp16
as MixedPrecisionPolicy(param_dtype=torch.float16) does. Run once:
python3 tests/numerics/grad_scaler_reference.py
"""

import math
import pathlib
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "src" / "models"))
import gpt_reference  # noqa: E402

STEPS, ROWS = 50, 4
VOCABULARY, SEQUENCE = gpt_reference.VOCABULARY, gpt_reference.SEQUENCE


def batch(step):
    ids = (torch.arange(ROWS * SEQUENCE) * 5 + 3 + step) % VOCABULARY
    return ids.view(ROWS, SEQUENCE), (ids * 3 + 1).view(ROWS, SEQUENCE) % VOCABULARY


def train(ranks):
    """Losses and scales of each step, as that many ranks have them."""
    model = gpt_reference.Gpt()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            index = torch.arange(parameter.numel(), dtype=torch.float64) * 0.7
            values = ((index + number).sin() * 0.3).view(parameter.shape)
            parameter.copy_(values)
    adamw = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=12)
    losses, scales = [], []
    for step in range(STEPS):
        mean = 0.0
        for ids, targets in zip(*(part.chunk(ranks) for part in batch(step))):
            half = {name: p.half() for name, p in model.named_parameters()}
            logits = torch.func.functional_call(model, half, (ids,)).float()
            loss = torch.nn.functional.cross_entropy(
                logits.view(-1, VOCABULARY), targets.reshape(-1)
            )
            scaler.scale(loss).backward()
            mean += loss.item() / ranks
        for parameter in model.parameters():
            parameter.grad /= ranks
        scaler.unscale_(adamw)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(adamw)
        losses.append(mean)
        scales.append(scaler.get_scale())
        scaler.update()
        adamw.zero_grad()
    return losses, scales


def main():
    print(f"// torch {torch.__version__}")
    for ranks in (1, 2):
        losses, scales = train(ranks)
        print("ranks", ranks)
        print("losses", ", ".join(f"{loss:.5f}" for loss in losses))
        print("scales", ", ".join(f"{math.log2(scale):.0f}" for scale in scales))


if __name__ == "__main__":
    main()
