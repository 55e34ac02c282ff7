# SPDX-License-Identifier: Apache-2.0
"""Prints the numbers that gpt_test.cpp expects, from a GPT-2 in Python.

Uses torch.nn's own layers, not sherd. The weights follow the rule of
fill_by_rule() in gpt_test.cpp. Run once: python3 src/models/gpt_reference.py
"""

import torch
from torch import nn

LAYERS, WIDTH, HEADS, SEQUENCE, VOCABULARY = 2, 12, 3, 7, 11


class Conv1D(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x):
        return x @ self.weight + self.bias


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1 = nn.LayerNorm(WIDTH)
        self.attn = nn.ModuleDict(
            {"c_attn": Conv1D(WIDTH, 3 * WIDTH), "c_proj": Conv1D(WIDTH, WIDTH)}
        )
        self.ln_2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.ModuleDict(
            {"c_fc": Conv1D(WIDTH, 4 * WIDTH), "c_proj": Conv1D(4 * WIDTH, WIDTH)}
        )

    def forward(self, x):
        b, t, c = x.shape
        parts = self.attn["c_attn"](self.ln_1(x)).chunk(3, dim=-1)
        q, k, v = (p.view(b, t, HEADS, c // HEADS).transpose(1, 2) for p in parts)
        scores = q @ k.mT / (c // HEADS) ** 0.5
        future = torch.full((t, t), float("-inf"), dtype=x.dtype).triu(diagonal=1)
        mixed = torch.softmax(scores + future, dim=-1) @ v
        x = x + self.attn["c_proj"](mixed.transpose(1, 2).reshape(b, t, c))
        hidden = nn.GELU(approximate="tanh")(self.mlp["c_fc"](self.ln_2(x)))
        return x + self.mlp["c_proj"](hidden)


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.wpe = nn.Embedding(SEQUENCE, WIDTH)
        self.h = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(WIDTH)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.ln_f(x) @ self.wte.weight.T


def main():
    torch.set_default_dtype(torch.float64)
    model = Gpt()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            index = torch.arange(parameter.numel()) * 0.7 + number
            parameter.copy_((index.sin() * 0.3).view(parameter.shape))
    ids = ((torch.arange(3 * SEQUENCE) * 5 + 3) % VOCABULARY).view(3, SEQUENCE)
    logits = model(ids)
    targets = (ids * 3 + 1) % VOCABULARY
    loss = nn.CrossEntropyLoss()(logits.view(-1, VOCABULARY), targets.view(-1))
    print(f"torch {torch.__version__}")
    print(f"loss {loss.item():.12f}")
    print(f"sum of logits {logits.sum().item():.12f}")
    print(f"last logit {logits[2, 6, 10].item():.12f}")


if __name__ == "__main__":
    main()
