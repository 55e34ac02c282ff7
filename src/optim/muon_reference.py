# SPDX-License-Identifier: Apache-2.0
"""Prints the numbers that muon_test.cpp expects, by torch.optim.Muon.

Values and gradients follow value_at() and gradient_at() in muon_test.cpp. With
iterations in fp32, too: PyTorch's own code, told that bfloat16() is a copy.
Run once: python3 src/optim/muon_reference.py
"""

import torch

STEPS = 3
SHAPES = [(6, 10), (12, 5), (8, 8), (1, 7)]
CASES = {
    "defaults": {"lr": 0.02},
    "plain": {"lr": 0.02, "nesterov": False, "weight_decay": 0.0, "momentum": 0.5},
    "rms": {"lr": 0.02, "adjust_lr_fn": "match_rms_adamw", "weight_decay": 0.3},
    "cubic": {"lr": 0.02, "ns_coefficients": (1.5, -0.5, 0.0), "ns_steps": 7},
}


def values(shape, number):
    i = torch.arange(shape[0] * shape[1], dtype=torch.float64)
    return ((0.7 * i + number).sin() * 0.3).float().view(shape)


def gradients(shape, number, step):
    i = torch.arange(shape[0] * shape[1], dtype=torch.float64)
    wave = 0.9 * i + 0.013 * i * i + 1.7 * step + number
    return wave.sin().float().view(shape)


def run(options):
    parameters = [
        torch.nn.Parameter(values(shape, n)) for n, shape in enumerate(SHAPES)
    ]
    muon = torch.optim.Muon(parameters, **options)
    for step in range(STEPS):
        for n, parameter in enumerate(parameters):
            parameter.grad = gradients(SHAPES[n], n, step)
        muon.step()
    found = []
    for n, parameter in enumerate(parameters):
        flat = parameter.detach().view(-1)
        found += [flat[0], flat[flat.numel() // 2], flat[-1], flat.norm()]
    return found


def main():
    print(f"// torch {torch.__version__}")
    casts = {"kFloat": torch.Tensor.clone, "kBFloat16": torch.Tensor.bfloat16}
    for dtype, cast in casts.items():
        torch.Tensor.bfloat16 = cast
        for name, options in CASES.items():
            numbers = ", ".join(f"{x.item():.6f}F" for x in run(options))
            print(f'{{"{name}", at::{dtype}, {{{numbers}}}}},')


if __name__ == "__main__":
    main()
