#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of `sherd generate` beside those of transformers.

  generate.py SHERD [--blocks N] [--tokens N] [--dtype fp32|bf16]

Models of GPT-2's and Llama's shapes with random weights; one row, greedy, with
a cache of keys and values, one thread each. Blocks alternate: each is one text
by sherd and one by transformers, and their ratio is one sample. Prints the
median ratio, above 1 where sherd is faster, with a 95 % interval by order
statistics. Only the making of tokens is timed, not the loading.
"""

import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "build" / "clients"))
PROMPT = "0123456789abcdef" * 4
POSITIONS = 512


def configurations(transformers):
    ends = {"vocab_size": 256, "bos_token_id": None, "eos_token_id": None}
    return {
        "gpt2, 85 million": transformers.GPT2Config(
            n_layer=12, n_embd=768, n_head=12, n_positions=POSITIONS, **ends
        ),
        "llama, 61 million, grouped queries": transformers.LlamaConfig(
            hidden_size=640, intermediate_size=1792, num_hidden_layers=14,
            num_attention_heads=10, num_key_value_heads=2,
            max_position_embeddings=POSITIONS, **ends,
        ),
    }  # fmt: skip


def by_sherd(sherd, folder, given):
    words = [
        sherd, "generate", "--from", folder, "--prompt", PROMPT, "--temperature",
        "0", "--tokens", str(given.tokens), "--dtype", given.dtype, "--json",
    ]  # fmt: skip
    done = subprocess.run(
        words, check=True, capture_output=True, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    found = json.loads(done.stdout)
    return found["ids"], found["tokens_per_s"]


def by_transformers(torch, model, given):
    prompt = torch.tensor([list(PROMPT.encode())])
    begin = time.perf_counter()
    with torch.inference_mode():
        made = model.generate(
            prompt, max_new_tokens=given.tokens, do_sample=False, pad_token_id=0
        )
    seconds = time.perf_counter() - begin
    return made[0, prompt.shape[1] :].tolist(), given.tokens / seconds


def interval(samples):
    """The median with the order statistics that hold it in 95 % of cases."""
    ordered = sorted(samples)
    count = len(ordered)
    below = 0.0
    cut = 0
    for k in range(count // 2):
        below += math.comb(count, k) / 2**count
        if below > 0.025:
            break
        cut = k
    return ordered[cut], statistics.median(ordered), ordered[count - 1 - cut]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sherd")
    parser.add_argument("--blocks", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    given = parser.parse_args()
    import torch
    import transformers

    torch.set_num_threads(1)
    dtype = torch.bfloat16 if given.dtype == "bf16" else torch.float32
    for name, config in configurations(transformers).items():
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            model = model.to(dtype)
            by_transformers(torch, model, given)  # Warms up.
            ours, theirs, ratios = [], [], []
            for _ in range(given.blocks):
                made, speed = by_sherd(given.sherd, folder, given)
                expected, their_speed = by_transformers(torch, model, given)
                if given.dtype == "fp32" and made != expected:
                    sys.exit(f"{name}: expected {expected}, found {made}")
                ours.append(speed)
                theirs.append(their_speed)
                ratios.append(speed / their_speed)
        low, middle, high = interval(ratios)
        print(
            f"{name}, {given.dtype}: sherd {statistics.median(ours):.1f} tokens/s, "
            f"transformers {statistics.median(theirs):.1f}, ratio {middle:.2f} "
            f"[{low:.2f}, {high:.2f}], {given.blocks} blocks"
        )


if __name__ == "__main__":
    main()
