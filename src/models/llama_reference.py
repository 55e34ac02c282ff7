#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what llama_test.cpp expects, from Hugging Face's LlamaForCausalLM
and the models like it.

Needs `transformers`, which nothing else here does: run it once in a Python of
its own, and again only to add a case.

    python3 src/models/llama_reference.py >tests/golden/llama_huggingface.txt

The weights follow the rule of fill_by_rule() in llama_test.cpp. A case is a line
`case NAME key=value ...` (names as in LlamaConfig), then `logits`, row by row,
`loss` of predicting each id from those before it, and for every parameter its
name, its shape and the product of its gradient with a probe.
"""

import torch
import transformers

ROWS, POSITIONS, VOCABULARY = 2, 7, 11
SIZES = {"layers": 2, "width": 16, "heads": 4, "intermediate": 20}
CASES = {
    "grouped_query": {"kv_heads": 2, "tied_head": 0},
    "multi_head": {"kv_heads": 4, "tied_head": 0, "rope_theta": 500000.0},
    "multi_query": {"kv_heads": 1, "tied_head": 1, "norm_epsilon": 0.01},
    "rope_linear": {"kv_heads": 2, "tied_head": 0, "rope_kind": 1},
    # Of its three wavelengths one is short, one long and one between.
    "rope_llama3": {
        "kv_heads": 2, "tied_head": 0, "rope_kind": 2, "head_width": 6,
        "rope_theta": 4.0,
    },
    # The same with another rule, and larger scores.
    "rope_yarn": {
        "kv_heads": 2, "tied_head": 0, "rope_kind": 3, "head_width": 6,
        "rope_theta": 4.0,
    },
    "qwen2": {"kv_heads": 2, "tied_head": 1, "qkv_bias": 1},
    "qwen3": {"kv_heads": 2, "tied_head": 1, "qk_norm": 1, "head_width": 6},
    "mistral": {"kv_heads": 2, "tied_head": 0, "sliding_window": 3},
}
DEFAULTS = {
    "rope_theta": 10000.0, "norm_epsilon": 1e-6, "rope_kind": 0, "qkv_bias": 0,
    "qk_norm": 0, "head_width": 0, "sliding_window": 0,
}  # fmt: skip
# By the number of RopeKind, with the numbers of config_of() in llama_test.cpp.
ROPE = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 4.0},
    {
        "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0,
        "high_freq_factor": 2.0, "original_max_position_embeddings": 14,
    },
    {
        "rope_type": "yarn", "factor": 4.0, "beta_fast": 2.0, "beta_slow": 0.5,
        "original_max_position_embeddings": 14,
    },
]  # fmt: skip


def family_of(options):
    head = {"head_dim": options["head_width"]} if options["head_width"] else {}
    if options["qkv_bias"]:
        return transformers.Qwen2Config, {}
    if options["qk_norm"]:
        return transformers.Qwen3Config, head
    if options["sliding_window"]:
        window = {"sliding_window": options["sliding_window"]}
        return transformers.MistralConfig, window
    return transformers.LlamaConfig, head


def build(options):
    family, more = family_of(options)
    config = family(
        vocab_size=VOCABULARY,
        hidden_size=SIZES["width"],
        intermediate_size=SIZES["intermediate"],
        num_hidden_layers=SIZES["layers"],
        num_attention_heads=SIZES["heads"],
        num_key_value_heads=options["kv_heads"],
        max_position_embeddings=POSITIONS,
        rms_norm_eps=options["norm_epsilon"],
        rope_parameters=ROPE[options["rope_kind"]]
        | {"rope_theta": options["rope_theta"]},
        tie_word_embeddings=bool(options["tied_head"]),
        attn_implementation="eager",
        use_cache=False,
        **more,
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            index = torch.arange(parameter.numel(), dtype=torch.float64)
            value = (index**2 * 0.013 + index * 0.7 + number).sin() * 0.3
            value += 1.0 if parameter.dim() == 1 else 0.0
            parameter.copy_(value.view(parameter.shape))
    return model


def product_with_probe(gradient):
    index = torch.arange(gradient.numel(), dtype=torch.float64)
    return (gradient.double().flatten() * index.cos()).sum().item()


def show(values):
    return " ".join(f"{value:.9g}" for value in values)


def main():
    print("# Written by src/models/llama_reference.py, fp32 on a CPU, with")
    print(f"# transformers {transformers.__version__}, torch {torch.__version__}")
    index = torch.arange(ROWS * POSITIONS)
    ids = ((index * 5 + 3) % VOCABULARY).view(ROWS, POSITIONS)
    for name, changes in CASES.items():
        options = DEFAULTS | changes
        model = build(options)
        result = model(input_ids=ids, labels=ids)
        result.loss.backward()
        settings = {"vocabulary": VOCABULARY, "sequence": POSITIONS} | SIZES
        settings |= options
        print(f"case {name}", *(f"{k}={v:.9g}" for k, v in settings.items()))
        for row in result.logits.reshape(-1, VOCABULARY).tolist():
            print("logits", show(row))
        print("loss", show([result.loss.item()]))
        for key, parameter in model.named_parameters():
            shape = "x".join(str(size) for size in parameter.shape)
            product = product_with_probe(parameter.grad)
            print("gradient", key, shape, show([product]))


if __name__ == "__main__":
    main()
